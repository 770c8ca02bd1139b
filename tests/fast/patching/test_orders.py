"""Every order of importing and patching comes to the same."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

EVENTS = ("target", "consumer", "install", "revert", "again")
# A revert or a second install before the first install is another order with other names.
ORDERS = [
    order
    for order in itertools.permutations(EVENTS)
    if order.index("install") < min(order.index("revert"), order.index("again"))
]


def test_there_are_as_many_orders_as_there_should_be():
    assert len(ORDERS) == 40  # a third of 5!


@pytest.fixture(scope="module")
def outcomes(module_packages):
    """Each order in a process of its own, a few at a time."""

    def run(order):
        script = str(Path(__file__).with_name("one_order.py"))
        return subprocess.run(
            [sys.executable, "-B", script, module_packages.root, *order],
            env={"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
        )

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {order: pool.submit(run, order) for order in ORDERS}


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_order(outcomes, order):
    done = outcomes[order].result()
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
