"""Importing speculators, applying and reverting, in every order, each in its own process."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from itertools import permutations
from pathlib import Path

import pytest
from packaging.version import Version

# transformers 5 keeps speculators from being imported at all while the adapters are off.
NEEDS_APPLY = Version(version("transformers")) >= Version("5")


def orders() -> list[tuple[str, ...]]:
    found = {
        *permutations(("import", "apply", "revert")),
        *permutations(("import", "apply", "revert", "apply")),
    }
    return sorted(order for order in found if not NEEDS_APPLY or imported_while_on(order))


def imported_while_on(order: tuple[str, ...]) -> bool:
    before = [event for event in order[: order.index("import")] if event != "import"]
    return before[-1:] == ["apply"]


@pytest.mark.parametrize("order", orders(), ids="-".join)
def test_order(order: tuple[str, ...]) -> None:
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("one_order.py")), *order],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
