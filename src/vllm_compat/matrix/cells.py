"""One speculators on one vLLM: the verdict out of their records, and what shows that it is right.

The verdict is the judge's. A run is evidence for a verdict and never makes one: a run of a pair
that the judge refuses is a contradiction, and an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from packaging.version import InvalidVersion, Version

from vllm_compat.adapters import transformers_torch
from vllm_compat.contracts import (
    NotRecordedError,
    RecordedConsumer,
    load_speculators,
    load_vllm,
    recorded_context,
    releases,
    speculators_releases,
)
from vllm_compat.judge import judge
from vllm_compat.matrix.runs import BadRunError, Evidence, NoStart, Run, recorded_runs

Verdict = Literal["works", "adapted", "refused", "not judged"]
Level = Literal["contract", "stub", "cpu run", "gpu run"]
# The first vLLM with `extract_hidden_states`, which speculators 0.5 and later ask a server for.
NATIVE_FROM = "0.17.0"
# What `tests/stub` runs on the stand-in of every recorded vLLM.
STUBBED = ("0.3.0", "0.4.0", "0.4.0.1")
# Decided from the transformers that is installed, which no record of a pair can know.
OF_THE_ENVIRONMENT = transformers_torch.ADAPTER.name


class Cell(NamedTuple):
    """One pair.

    Attributes:
        verdict: ``works`` as it is; ``adapted``: with the adapters; ``refused``: a call site breaks
            and nothing mends it; ``not judged``: nothing here says.
        adapters: those that it takes on any machine. The one that depends on the installed
            transformers is not among them.
        reason: why it is refused, or not judged.
        runs: the runs that showed the states to be right.
        cannot_start: why this vLLM cannot be started where runs are made; empty where it can, or
            nobody tried.
    """

    speculators: str
    vllm: str
    verdict: Verdict
    adapters: tuple[str, ...] = ()
    reason: str = ""
    runs: tuple[Run, ...] = ()
    cannot_start: str = ""

    @property
    def fits(self) -> bool:
        """Whether every call site is covered, by the record."""
        return self.verdict in ("works", "adapted")

    @property
    def evidence(self) -> tuple[Level, ...]:
        """What shows the verdict, weakest first: calls fit up to ``stub``, states are right from
        there on."""
        levels: list[Level] = []
        if self.fits:
            levels.append("contract")
            if self.speculators in STUBBED:
                levels.append("stub")
        devices = {run.device for run in self.runs}
        if "cpu" in devices:
            levels.append("cpu run")
        if "gpu" in devices:
            levels.append("gpu run")
        return tuple(levels)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            **self._asdict(),
            "adapters": list(self.adapters),
            "runs": [run._asdict() for run in self.runs],
            "evidence": list(self.evidence),
        }


def in_process_speculators() -> tuple[str, ...]:
    """The recorded releases that drive vLLM in their own process, oldest first.

    The others talk to a server.
    """
    return tuple(name for name in speculators_releases() if load_speculators(name).in_process)


def cell(speculators: str, vllm: str, evidence: Evidence | None = None) -> Cell:
    """The cell of one pair.

    Args:
        speculators: a recorded release.
        vllm: a recorded release, with or without a local part such as ``+cpu``.
        evidence: in place of what comes with this package.

    Raises:
        NotRecordedError: one of the two is not recorded.
        BadRunError: the evidence contradicts the verdict, or itself.
    """
    consumer = load_speculators(speculators)
    judged = _judged(consumer, speculators, _public(vllm))
    of_this = [
        one
        for one in (recorded_runs() if evidence is None else evidence)
        if (one.speculators, one.vllm) == (judged.speculators, judged.vllm)
    ]
    runs = tuple(one for one in of_this if isinstance(one, Run))
    failures = [one for one in of_this if isinstance(one, NoStart)]
    _check_runs(judged, runs, failures)
    return judged._replace(
        runs=tuple(sorted(runs, key=lambda run: (run.device, run.runner))),
        cannot_start="; ".join(one.cannot_start for one in failures),
    )


def row(speculators: str, evidence: Evidence | None = None) -> tuple[Cell, ...]:
    """The cells of one speculators on every recorded vLLM, oldest first.

    Raises:
        NotRecordedError: this speculators is not recorded.
        BadRunError: the evidence contradicts a verdict, or itself.
    """
    return tuple(cell(speculators, vllm, evidence) for vllm in releases())


def nearest_working(speculators: str, vllm: str) -> str | None:
    """The vLLM nearest to ``vllm``, by releases in between, on which this speculators works.

    One that a run has shown to work; only where there is no such run at all, one on which every
    call fits. None where no such release is known, or one of the two is no release.
    """
    try:
        return nearest(row(speculators), vllm)
    except (NotRecordedError, InvalidVersion):
        return None


def nearest(cells: Sequence[Cell], vllm: str) -> str | None:
    """The same, out of the cells of one speculators.

    Raises:
        InvalidVersion: ``vllm`` is no version.
    """
    here = Version(_public(vllm))
    fitting = [one for one in cells if one.fits and not one.cannot_start]
    candidates = [one.vllm for one in fitting if one.runs] or [one.vllm for one in fitting]
    order = sorted({here, *(Version(one.vllm) for one in cells)})
    # Of two equally near, the newer.
    return min(
        reversed(candidates),
        key=lambda name: abs(order.index(Version(name)) - order.index(here)),
        default=None,
    )


def _public(version: str) -> str:
    """Without the local part: a build for another device is the same release."""
    try:
        return Version(version).public
    except InvalidVersion:
        return version


def _judged(consumer: RecordedConsumer, speculators: str, vllm: str) -> Cell:
    if not consumer.in_process and vllm in releases():
        return _native(speculators, vllm)
    report, _ = judge(recorded_context(load_vllm(vllm), consumer))
    if report.uncovered:
        reason = "; ".join(
            f"{site.decision.reason}: found {site.decision.found}, needed {site.decision.needed}"
            for site in report.uncovered
        )
        return Cell(speculators, vllm, "refused", reason=reason)
    adapters = tuple(site.name for site in report.adapted if site.name != OF_THE_ENVIRONMENT)
    return Cell(speculators, vllm, "adapted" if adapters else "works", adapters)


def _native(speculators: str, vllm: str) -> Cell:
    if Version(vllm) < Version(NATIVE_FROM):
        reason = (
            "this speculators asks a vLLM server for hidden states, which vLLM can extract from"
            f" {NATIVE_FROM} on"
        )
        return Cell(speculators, vllm, "refused", reason=reason)
    return Cell(speculators, vllm, "not judged", reason="native path, not judged yet")


def _check_runs(judged: Cell, runs: tuple[Run, ...], failures: list[NoStart]) -> None:
    pair = f"speculators {judged.speculators} on vLLM {judged.vllm}"
    if runs and not judged.fits:
        raise BadRunError(
            f"a run says that {pair} works, the judge does not",
            found=f"a run of {runs[0].date}; the verdict is {judged.verdict}: {judged.reason}",
            next_step="take the run away, or mend the record or the adapters: one of them is wrong",
        )
    kinds = [(run.device, run.runner) for run in runs]
    if len(set(kinds)) < len(kinds):
        raise BadRunError(
            f"two files tell of the same run of {pair}",
            found=", ".join(f"{device} {runner}" for device, runner in kinds),
            next_step="keep the newer one",
        )
    started = {run.device for run in runs} & {one.device for one in failures}
    if started:
        raise BadRunError(
            f"one file says that {pair} ran on a {started.pop()}, another that it cannot start",
            next_step="take away the one that no longer holds",
        )
