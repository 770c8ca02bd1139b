"""What no signature shows: the changes and faults that the adapters declare, where they bite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vllm_compat.adapters import REGISTRY, Adapter, Break
from vllm_compat.checking.incompatibility import NO_DRIFT, Incompatibility
from vllm_compat.checking.speculators.pair import Pair
from vllm_compat.versions import numbers

if TYPE_CHECKING:
    from vllm_compat.checking.incompatibility import Kind

FAULT = "speculators "


def declared(pair: Pair) -> Iterator[Incompatibility]:
    """Each declared change or fault, at each place it bites."""
    for adapter in REGISTRY:
        for change in adapter.broke:
            if not change.kind or not _bites(pair, adapter, change):
                continue
            is_fault = change.release.startswith(FAULT)
            of_record = change.kind == "environment" and pair.is_recorded
            what = change.what
            if not is_fault and not _has_come(pair, change):
                what = f"not yet: {what}"
            for place in pair.consumer.places(change.at):
                if place.module == adapter.call_site.partition(":")[0]:
                    found = pair.one(
                        place,
                        change.symbol or adapter.symbol,
                        _kind(pair, change.kind),
                        what,
                        adapter=adapter.name,
                        release="" if is_fault else change.release,
                        pr=change.pr,
                    )
                    # The adapter was not asked about the environment that the record stands for.
                    covered = found._replace(covered_by=adapter.name, next_step="")
                    yield covered if of_record else found


def _bites(pair: Pair, adapter: Adapter, change: Break) -> bool:
    if change.line and change.line != pair.line:
        return False
    state = pair.decisions[adapter.name].state
    if change.release.startswith(FAULT):
        known = numbers(pair.line) >= numbers(change.release.removeprefix(FAULT))[:2]
        shown = not change.shows or _has_come(pair, change)
        return known and shown and state in ("adapted", "uncovered")
    if change.kind == "environment":
        # What else is installed decides, where the vLLM is; of a record, the release.
        return pair.context.has_come(change.release) if pair.is_recorded else state == "adapted"
    if state not in ("adapted", "uncovered") or (
        change.until and pair.context.has_come(change.until)
    ):
        return False
    if not _has_come(pair, change) and pair.context.has_come(change.release):
        return False  # vLLM has changed once more: the verdict says how
    # It lies between the vLLM that speculators was written for and this one, on either side.
    return _has_come(pair, change) is pair.is_later(change.release)


def _has_come(pair: Pair, change: Break) -> bool:
    """Whether this vLLM has the change: what it shows tells, or else the release."""
    if not change.shows:
        return pair.context.has_come(change.release)
    symbol, _, parameter = change.shows.removesuffix(")").partition("(")
    finding = pair.context.probe(symbol)
    if not parameter or finding.status == "absent":
        return finding.status != "absent"
    return finding.signature is not None and finding.signature.accepts(parameter)


def _kind(pair: Pair, kind: Kind) -> Kind:
    """A vLLM that speculators says it supports has not drifted from it: the fault is its own."""
    return "fault" if pair.is_official and kind not in NO_DRIFT else kind
