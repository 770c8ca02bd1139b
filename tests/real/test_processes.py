"""Processes that vLLM starts in other ways than by a spawn, which the engines here use."""

from __future__ import annotations

import os
import subprocess
import sys

from vllm_compat.session import VARIABLE, active_adapters

# What vLLM runs first in its engine core and in every worker.
CHILD = """
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm_compat.session import active_adapters
print("adapters:", ",".join(active_adapters()))
"""


def adapters_of_a_fresh_interpreter(environment: dict[str, str]) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, env=environment, check=True
    )
    (line,) = (line for line in ran.stdout.splitlines() if line.startswith("adapters: "))
    return line.removeprefix("adapters: ").strip()


def test_a_fresh_interpreter_comes_to_its_parents_adapters() -> None:
    assert adapters_of_a_fresh_interpreter(dict(os.environ)) == ",".join(active_adapters())


def test_it_stays_as_it_is_where_the_parent_applied_nothing() -> None:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    assert adapters_of_a_fresh_interpreter(environment) == ""


def test_a_forked_process_has_them_already() -> None:
    from vllm.plugins import load_general_plugins

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        load_general_plugins()
        os.write(writer, ",".join(active_adapters()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == ",".join(active_adapters())
    os.waitpid(child, 0)
