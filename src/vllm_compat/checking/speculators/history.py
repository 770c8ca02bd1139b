"""When a symbol of vLLM changed, and how: its recorded releases, walked towards one vLLM."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from vllm_compat.contracts.recorded import vllm_table
from vllm_compat.contracts.table import findings
from vllm_compat.probe import Finding
from vllm_compat.versions import numbers

if TYPE_CHECKING:
    from vllm_compat.checking.incompatibility import Kind


class Step(NamedTuple):
    """A change: a symbol as it was, as it was then, and the first release with that.

    ``release`` is empty where no recorded release has it yet.
    """

    before: Finding
    after: Finding
    release: str


def first_step(
    symbol: str, start: str, here: str, finding: Finding, bad: Callable[[Finding], bool]
) -> Step | None:
    """The change through which ``symbol``, good in the release ``start``, is bad in ``finding``.

    ``here`` is the version of the vLLM that ``finding`` is of; it may be older than ``start``, and
    where it says no version it counts as the newest. None where no record shows a good state.
    """
    recorded = findings(vllm_table(), symbol)
    first, last = numbers(start), numbers(here) or (float("inf"),)
    forward = last >= first
    low, high = min(first, last), max(first, last)
    path = [
        (release, found)
        for release, found in recorded.items()
        if low <= numbers(release) <= high and numbers(release) != last
    ]
    if not forward:
        path.reverse()
    path.append((next((name for name in recorded if numbers(name) == last), ""), finding))
    for (near, good), (far, found) in pairwise(path):
        if bad(good):
            return None
        if bad(found):
            return Step(good, found, far) if forward else Step(found, good, near)
    return None


def argument_kind(step: Step, name: str) -> tuple[Kind, str]:
    """What happened to the parameter ``name``, and its new name where it was given one."""
    before, after = (
        finding.signature.parameters if finding.signature is not None else ()
        for finding in (step.before, step.after)
    )
    old, new = [p.name for p in before], [p.name for p in after]
    if name not in old:
        return "parameter added", ""
    if name in new:
        return "parameter became required", ""
    place = old.index(name)
    if place < len(new) and new[place] not in old and after[place][1:3] == before[place][1:3]:
        return "parameter renamed", new[place]
    return "parameter removed", ""
