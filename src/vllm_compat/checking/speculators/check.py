"""Everything in the consumer that does not work as it is on one vLLM, all at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vllm_compat.checking.incompatibility import Incompatibility
from vllm_compat.checking.speculators import binding
from vllm_compat.checking.speculators.declared import declared
from vllm_compat.checking.speculators.history import first_step
from vllm_compat.checking.speculators.pair import Pair
from vllm_compat.context import Context, Place

if TYPE_CHECKING:
    from vllm_compat.checking.incompatibility import Kind


def check(context: Context) -> tuple[Incompatibility, ...]:
    """Each place that does not work as it is, whether an adapter covers it or not, in order.

    Empty for a consumer that does not drive vLLM in its own process.
    """
    if not context.consumer.in_process:
        return ()
    pair = Pair(context)
    unbound = [*binding.imports(pair), *binding.calls(pair)]
    found = [*unbound, *declared(pair), *_left_over(pair, unbound)]
    return tuple(sorted(found, key=lambda one: (one.module, one.line, one.symbol, one.what)))


def _left_over(pair: Pair, unbound: list[Incompatibility]) -> Iterator[Incompatibility]:
    """Verdicts "not covered" that no call shows: an adapter needs more than speculators does."""
    told = [one.symbol for one in unbound if not one.covered_by]
    for site in pair.report.uncovered:
        if any(f"{symbol}:".startswith(f"{site.symbol}:") for symbol in told):
            continue
        module, _, name = site.where.partition(":")
        places = pair.consumer.places(name)
        line = places[0].line if places else int(name) if name.isdigit() else 0
        finding = pair.context.probe(site.symbol)
        step = first_step(
            site.symbol, pair.start, pair.version, finding, lambda f: f.status == "absent"
        )
        kind: Kind = "gone" if finding.status == "absent" else "behaviour changed"
        decision = site.decision
        what = f"{decision.reason}: {decision.found}; needed: {decision.needed}"
        release = step.release if step else ""
        place = Place(module, line)
        yield pair.one(place, site.symbol, kind, what, adapter=site.name, release=release)
