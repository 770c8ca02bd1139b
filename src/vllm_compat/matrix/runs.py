"""What real engines showed: the files that ``nox -s real -- --record`` writes, read and doubted.

A file is a run that passed, or the reason why a release cannot be started.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from packaging.version import InvalidVersion, Version

from vllm_compat.errors import VllmCompatError

# A state of another layer or token is 0.6 and more away. On a CPU all is float32 and within 1e-5; a
# GPU may compute with fewer bits, and still has to be far from wrong.
LOOSEST_BOUND = {"cpu": 1e-4, "gpu": 0.1}


class BadRunError(VllmCompatError, ValueError):
    """A file of a run that is no evidence."""


class Run(NamedTuple):
    """One battery of tests that passed, all of it.

    Attributes:
        distribution: the name and version that vLLM was installed under.
        device: ``"cpu"`` or ``"gpu"``.
        runner: vLLM's model runner, ``"v1"`` or ``"v2"``.
        adapters: those that were on.
        families: the model families of which every layer was compared.
        left_out: families that could not be, with the reason.
        worst_error: the largest relative error of any token in any layer, against transformers.
        bound: what it had to stay below.
    """

    vllm: str
    speculators: str
    date: str
    distribution: str
    device: str
    runner: str
    torch: str
    transformers: str
    python: str
    adapters: list[str]
    cases: int
    families: list[str]
    worst_error: float
    bound: float
    left_out: dict[str, str]


class NoStart(NamedTuple):
    """A release that cannot be started where the runs are made, and exactly why."""

    vllm: str
    speculators: str
    date: str
    cannot_start: str
    device: str


Evidence = tuple[Run | NoStart, ...]


@lru_cache(maxsize=1)
def recorded_runs() -> Evidence:
    """Those that come with this package.

    Raises:
        BadRunError: a file is no evidence.
    """
    return read_runs(Path(__file__).with_name("runs"))


def read_runs(folder: Path) -> Evidence:
    """Every file of a folder, in the order of their names; none where there is no such folder.

    Raises:
        BadRunError: a file is no evidence.
    """
    return tuple(
        _read(file.name, file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))
    )


def _read(name: str, text: str) -> Run | NoStart:
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise TypeError("no JSON object")
        return _no_start(data) if "cannot_start" in data else _run(data)
    except (TypeError, ValueError, InvalidVersion) as error:
        raise BadRunError(
            f"{name} is no evidence of a run",
            found=str(error),
            needed="what tests/real/record.py writes, as it writes it",
            next_step="record this run again, or take the file away",
        ) from None


def _no_start(data: Mapping[str, Any]) -> NoStart:
    one = NoStart(**{"device": "cpu", **data})
    _check_strings(one)
    if not one.cannot_start.strip():
        raise ValueError("cannot_start gives no reason")
    return one


def _run(data: Mapping[str, Any]) -> Run:
    # The first files say nothing of what was left out.
    run = Run(**{"left_out": {}, **data})
    _check_strings(run)
    if run.runner not in {"v1", "v2"}:
        raise ValueError(f"runner {run.runner}")
    if Version(run.distribution.split()[-1]).public != run.vllm:
        raise ValueError(f"{run.distribution} is not vLLM {run.vllm}")
    for names in (run.adapters, run.families, list(run.left_out)):
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"no list of names: {names}")
    both = set(run.families) & set(run.left_out)
    if both:
        raise ValueError(f"run and left out: {', '.join(sorted(both))}")
    if not isinstance(run.cases, int) or run.cases < 1:
        raise ValueError(f"{run.cases} cases")
    # No error at all would mean that nothing was compared. Written so that NaN fails.
    if not 0 < run.worst_error <= run.bound <= LOOSEST_BOUND[run.device]:
        raise ValueError(
            f"worst error {run.worst_error}, bound {run.bound}; a {run.device} run must stay"
            f" between 0 and {LOOSEST_BOUND[run.device]}"
        )
    return run


def _check_strings(one: Run | NoStart) -> None:
    for field, kind in get_type_hints(type(one)).items():
        value = getattr(one, field)
        if kind is str and not isinstance(value, str):
            raise TypeError(f"{field} is {value!r}")
    date.fromisoformat(one.date)
    if one.device not in LOOSEST_BOUND:
        raise ValueError(f"device {one.device}")
