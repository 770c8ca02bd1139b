"""What vllm-compat costs: starting a process with it, calling through one of its wrappers, and
the command `vllm-compat check`, against importing vLLM.

    python benchmarks/overhead.py [--json]

Needs vLLM, speculators and vllm-compat installed; imports neither of the first two, but for the
one comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from vllm_compat.adapters.arguments import Rewrite
from vllm_compat.patching import Wrap
from vllm_compat.probe.live import signature_of

BARE = "pass"
APPLY = "import vllm_compat; vllm_compat.apply()"
CHECK = """
import json, sys, vllm_compat
report = vllm_compat.apply()
loaded = [name for name in ("vllm", "torch", "speculators", "wrapt") if name in sys.modules]
print(json.dumps({"vllm": report.vllm, "speculators": report.speculators, "loaded": loaded}))
"""
WARM_UP, PAIRS = 5, 30
ROUNDS, CALLS = 40, 50_000
START_GOAL_MS, CALL_GOAL_NS, CHECK_GOAL_MS = 60, 2000, 500
CHECK_PAIRS = 5


def measure_start() -> dict[str, Any]:
    """Milliseconds of whole processes, bare and with ``apply()``, in turns: A B A B.

    By the clock, and of processor time, which other work on the machine disturbs less.
    """
    with TemporaryDirectory() as folder:
        # As in an installation in use: compiled by an earlier process, here by the warm-up.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        both = partial(run_process, BARE, environment), partial(run_process, APPLY, environment)
        pairs = [(both[0](), both[1]()) for _ in range(WARM_UP + PAIRS)][WARM_UP:]
    result = {}
    for index, kind in enumerate(("clock", "processor")):
        bare = [without[index] for without, _ in pairs]
        applied = [with_it[index] for _, with_it in pairs]
        # Of each pair, not of the medians: two processes in a row see much the same machine.
        more = [after - before for before, after in zip(bare, applied, strict=True)]
        result[kind] = {"bare": spread(bare), "apply": spread(applied), "more": spread(more)}
    return result


def measure_check() -> dict[str, float]:
    """Milliseconds by the clock of `vllm-compat check`, and of importing vLLM, over a bare one.

    In turns in one run, as the ratio of the two is what can be compared between machines.
    """
    times: dict[str, list[float]] = {"bare": [], "check": [], "import vllm": []}
    commands = {
        "bare": ["-c", BARE],
        "check": ["-m", "vllm_compat", "check"],
        "import vllm": ["-c", "import vllm.engine.arg_utils, vllm.entrypoints.llm"],
    }
    for name in ("check", "import vllm"):  # warm the file cache
        subprocess.run([sys.executable, *commands[name]], capture_output=True, check=False)
    for number in range(CHECK_PAIRS):
        for name, command in commands.items():
            if name == "import vllm" and number > 0:
                continue  # half a minute each
            started = time.perf_counter()
            subprocess.run([sys.executable, *command], capture_output=True, check=True)
            times[name].append((time.perf_counter() - started) * 1e3)
    bare = median(times["bare"])
    return {name: median(values) - bare for name, values in times.items() if name != "bare"}


def run_process(code: str, environment: dict[str, str]) -> tuple[float, float]:
    """Milliseconds by the clock and of processor time for a new interpreter to run the code."""
    clock, processor = time.perf_counter(), children_time()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    return (time.perf_counter() - clock) * 1e3, (children_time() - processor) * 1e3


def children_time() -> float:
    """Processor seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def spread(values: Any) -> dict[str, float]:
    """The quartiles and the median."""
    low, _, high = quantiles(values, n=4)
    return {"q1": low, "median": median(values), "q3": high}


def check_start() -> dict[str, Any]:
    """What ``apply()`` found, in a process of its own.

    Raises:
        AssertionError: it imported what it must not.
    """
    output = subprocess.run(
        [sys.executable, "-c", CHECK], check=True, capture_output=True, text=True
    ).stdout
    found: dict[str, Any] = json.loads(output)
    loaded = found.pop("loaded")
    if loaded:
        raise AssertionError(f"apply() imported {', '.join(loaded)}")
    return found


def target(*, model: object, tokens: object, cache: object = None) -> None:
    """Stands for what speculators calls; its own time is next to nothing."""


def pass_on(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG001
    """The least a wrapper can do."""
    return wrapped(*args, **kwargs)


def measure_call() -> dict[str, float]:
    """Nanoseconds of one call, the best of many rounds: plain, and through two wrappers."""
    # As the adapters do it: one keyword dropped, one supplied.
    supply = {"cache": lambda _call: None}
    rewrite = Rewrite(signature_of(target), drop=("eos",), supply=supply, force={})
    passing, rewriting = wrap(pass_on), wrap(rewrite)
    calls: dict[str, Callable[[], None]] = {
        "plain": lambda: target(model=1, tokens=2, cache=None),
        "passing": lambda: passing(model=1, tokens=2, cache=None),
        "rewriting": lambda: rewriting(model=1, tokens=2, eos=3),
    }
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):  # in turns, so that a busy moment does not fall on one of them
        for name, call in calls.items():
            best[name] = min(best[name], timeit.timeit(call, number=CALLS) / CALLS * 1e9)
    return best


def wrap(wrapper: Any) -> Callable[..., None]:
    """``target``, wrapped as an adapter's patch does it."""
    wrapped: Callable[..., None] = Wrap(__name__, "target", wrapper, "benchmark").build(
        target, sys.modules[__name__]
    )
    return wrapped


def show(result: dict[str, Any]) -> None:
    """Print the results as tables."""
    print(", ".join(f"{name} {text}" for name, text in result["versions"].items()))
    labels = {"bare": "python -c pass", "apply": "import and apply()", "more": "difference"}
    for kind, rows in result["start_ms"].items():
        print(f"\n{f'process, {kind} ms':<28}{'median':>9}{'q1':>9}{'q3':>9}")
        for key, label in labels.items():
            row = rows[key]
            print(f"{label:<28}{row['median']:>9.1f}{row['q1']:>9.1f}{row['q3']:>9.1f}")
    more = result["start_ms"]["clock"]["more"]["median"]
    print(f"goal: less than {START_GOAL_MS} more: {'met' if more < START_GOAL_MS else 'MISSED'}")

    check = result["check_ms"]
    print(f"\n{'more than a bare process, ms':<28}")
    for name, value in check.items():
        print(f"{name:<28}{value:>9.0f}")
    print(f"ratio {check['check'] / check['import vllm']:.4f}")
    verdict = "met" if check["check"] < CHECK_GOAL_MS else "MISSED"
    print(f"goal: less than {CHECK_GOAL_MS} more: {verdict}")

    call = result["call_ns"]
    print(f"\n{f'call, ns (best of {ROUNDS})':<28}{'time':>9}{'more':>9}")
    for name, nanoseconds in call.items():
        print(f"{name:<28}{nanoseconds:>9.0f}{nanoseconds - call['plain']:>9.0f}")
    slowest = max(call.values()) - call["plain"]
    print(f"goal: less than {CALL_GOAL_NS} more: {'met' if slowest < CALL_GOAL_NS else 'MISSED'}")


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    as_json: bool = parser.parse_args().json
    versions = {
        "python": platform.python_version(),
        **check_start(),
        "vllm-compat": version("vllm-compat"),
        "wrapt": version("wrapt"),
        "cores": str(os.cpu_count()),
    }
    result = {
        "versions": versions,
        "start_ms": measure_start(),
        "check_ms": measure_check(),
        "call_ns": measure_call(),
    }
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        show(result)


if __name__ == "__main__":
    main()
