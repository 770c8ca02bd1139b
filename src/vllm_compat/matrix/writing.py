"""The matrix as people read it: ``compat_matrix.yaml``, and a table in the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from vllm_compat.contracts import releases, speculators_releases
from vllm_compat.matrix.cells import NATIVE_FROM, Cell, in_process_speculators, nearest, row
from vllm_compat.matrix.runs import BadRunError, Evidence, Run, recorded_runs

Cells = Mapping[str, Sequence[Cell]]
YAML, README = "compat_matrix.yaml", "README.md"
START, END = "<!-- matrix: python -m vllm_compat.matrix writes this -->", "<!-- /matrix -->"
HEAD = """\
# Which speculators works on which vLLM, how, and what shows it.
#
# Written by `python -m vllm_compat.matrix` out of the recorded signatures and the files of real
# runs in src/vllm_compat/matrix/runs. Never edit it: a test compares.
#
# verdict    works: as it is. adapted: with the adapters named. refused: a call breaks and nothing
#            mends it. not judged: nothing is said.
# adapters   what apply() puts on. Where transformers is 5 or later, transformers-torch besides.
# evidence   contract: every call site fits the recorded signatures, with the adapters.
#            stub: speculators' own code gets to its first step on a stand-in made of the record.
#            cpu run, gpu run: a real engine, every state compared with transformers'.
#            The first two show that calls fit, only a run that states are right.
# runs       made: cases are the tests that passed; worst_error is relative, of any token in any
#            layer. families: models whose every layer was compared, beside the Llama of all other
#            tests; left_out: what could not be run there, and why.
#            without: adapters that the cell has now and the run did not. besides: the reverse.
"""


class NoMarkersError(ValueError):
    """The README has no place for the table, or more than one."""


def rendered(root: Path, evidence: Evidence | None = None) -> dict[Path, str]:
    """The files below ``root`` that the matrix is written to, as they should be.

    ``evidence`` stands in place of what comes with this package.

    Raises:
        BadRunError: a run contradicts the verdict, is of no recorded pair, or is no evidence.
        NoMarkersError: the README has no place for the table.
    """
    cells = every_cell(recorded_runs() if evidence is None else evidence)
    readme = root / README
    return {
        root / YAML: as_yaml(cells),
        readme: with_table(readme.read_text(encoding="utf-8"), table(cells)),
    }


def every_cell(evidence: Evidence) -> Cells:
    """The cells of every recorded speculators on every recorded vLLM.

    Raises:
        BadRunError: a run contradicts the verdict, or is of no recorded pair.
    """
    for one in evidence:
        if one.vllm not in releases() or one.speculators not in speculators_releases():
            raise BadRunError(
                f"a run is of speculators {one.speculators} on vLLM {one.vllm}",
                needed="two recorded releases, spelled as recorded",
                next_step="record the release: vllm-compat record",
            )
    return {name: row(name, evidence) for name in speculators_releases()}


# -- YAML -----------------------------------------------------------------------------------------


def as_yaml(cells: Cells) -> str:
    """The whole file."""
    import yaml

    parts: list[dict[str, Any]] = [
        {
            f"speculators {name}": {
                f"vllm {one.vllm}": _entry(one, cells[name]) for one in cells[name]
            }
        }
        for name in in_process_speculators()
    ]
    parts.append({"native": _native(cells)})
    dumped = [
        yaml.safe_dump(part, sort_keys=False, default_flow_style=None, width=100) for part in parts
    ]
    return "\n".join([HEAD, *dumped])


def _entry(one: Cell, line: Sequence[Cell]) -> dict[str, Any]:
    entry = {
        "verdict": one.verdict,
        "reason": one.reason,
        "nearest": nearest(line, one.vllm) if one.verdict == "refused" else None,
        "adapters": list(one.adapters),
        "evidence": list(one.evidence),
        "cannot_start": one.cannot_start,
        "runs": [_run(run, one) for run in one.runs],
    }
    return {field: value for field, value in entry.items() if value}


def _run(run: Run, one: Cell) -> dict[str, Any]:
    made = {field: getattr(run, field) for field in ("date", "device", "runner", "cases")}
    error = {"worst_error": run.worst_error, "bound": run.bound}
    versions = ("distribution", "torch", "transformers", "python")
    entry = {
        "made": {**made, **error},
        "with": {field: getattr(run, field) for field in versions},
        "families": run.families,
        "left_out": [
            {
                "families": [name for name, why in run.left_out.items() if why == reason],
                "why": reason,
            }
            for reason in dict.fromkeys(run.left_out.values())
        ],
        "without": lacked(run, one),
        "besides": [name for name in run.adapters if name not in one.adapters],
    }
    return {field: value for field, value in entry.items() if value}


def lacked(run: Run, one: Cell) -> list[str]:
    """The adapters that the cell has now and that the run was made without."""
    return [name for name in one.adapters if name not in run.adapters]


def _native(cells: Cells) -> list[dict[str, Any]]:
    """speculators that talk to a server: all of them alike, for a range of vLLM releases."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for name, line in cells.items():
        for one in line if name not in in_process_speculators() else ():
            groups.setdefault((one.verdict, one.reason), []).append(one)
    first = f"none judged yet; vLLM {NATIVE_FROM} is the first with this path"
    return [
        {
            "speculators": list(dict.fromkeys(one.speculators for one in group)),
            "vllm": list(dict.fromkeys(one.vllm for one in group)),
            "verdict": verdict,
            "reason": reason,
            **({"nearest": first} if verdict == "refused" else {}),
        }
        for (verdict, reason), group in groups.items()
    ]


# -- README ---------------------------------------------------------------------------------------


def with_table(readme: str, text: str) -> str:
    """The README with ``text`` between the two markers.

    Raises:
        NoMarkersError: they are not there, once each and in order.
    """
    before, start, rest = readme.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end or START in after or END in before + after:
        raise NoMarkersError(f"README.md must have, once and in this order: {START} and {END}")
    return f"{before}{START}\n{text}{END}{after}"


def table(cells: Cells) -> str:
    """A row for each vLLM, or for neighbours of which the same is known."""
    names = in_process_speculators()
    columns = [cells[name] for name in names]
    lines = [(line[0].vllm, *map(_short, line)) for line in zip(*columns, strict=True)]
    text = [
        f"| vLLM | {' | '.join(f'speculators {name}' for name in names)} |",
        f"|---{'|---' * len(names)}|",
    ]
    for entries, group in groupby(lines, lambda line: line[1:]):
        vllm = [line[0] for line in group]
        span = vllm[0] if len(vllm) == 1 else f"{vllm[0]} to {vllm[-1]}"
        text.append(f"| {span} | {' | '.join(entries)} |")
    runs = [(run, one) for column in columns for one in column for run in one.runs]
    earlier = sorted({name for run, one in runs for name in lacked(run, one)})
    if earlier:
        text += ["", f"\\* runs made before these adapters came: {', '.join(earlier)}."]
    return "\n".join(text) + "\n"


def _short(one: Cell) -> str:
    if not one.runs:
        shown = ", ".join(one.evidence)
        if one.cannot_start:
            shown += "; cannot start"
        return f"{one.verdict}: {shown}" if shown else one.verdict
    shown = " and ".join(
        f"{run.device.upper()} run" + (f" ({run.runner.upper()})" if len(one.runs) > 1 else "")
        for run in one.runs
    )
    star = "\\*" if any(lacked(run, one) for run in one.runs) else ""
    return f"{one.verdict}: {shown}{star}, {max(run.worst_error for run in one.runs):.1e}"
