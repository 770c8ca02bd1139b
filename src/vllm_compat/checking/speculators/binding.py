"""What binding shows: names that are not where they are imported from, calls that do not bind.

The recorded releases tell what sort of change broke them, and when.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vllm_compat.adapters import REGISTRY
from vllm_compat.checking.incompatibility import Incompatibility
from vllm_compat.checking.speculators.history import argument_kind, first_step
from vllm_compat.checking.speculators.pair import Pair, answering
from vllm_compat.context import Call, Place
from vllm_compat.contracts.reached import REACHED
from vllm_compat.contracts.recorded import vllm_table
from vllm_compat.probe import Finding

if TYPE_CHECKING:
    from vllm_compat.checking.incompatibility import Kind


def imports(pair: Pair) -> Iterator[Incompatibility]:
    """Names that are not where they are imported from."""
    for imported in pair.consumer.imports:
        finding = pair.context.probe(imported.symbol, *_homes(imported.symbol))
        if finding.status != "found":
            module = imported.symbol.partition(":")[0]
            adapter = pair.provided.get(imported.symbol) or pair.provided.get(module, "")
            place = Place(imported.module, imported.line)
            yield _absent(pair, place, imported.symbol, finding, adapter)


def calls(pair: Pair) -> Iterator[Incompatibility]:
    """Calls that do not bind, of what is imported and of what is reached through an instance."""
    for imported in pair.consumer.imports:
        name = imported.symbol.partition(":")[2]
        finding = pair.context.probe(imported.symbol, *_homes(imported.symbol))
        adapter = answering(imported.symbol)
        yield from _unbound(pair, name, finding, adapter.name if adapter else "")
    for spelled, method in REACHED.items():
        places = pair.consumer.places(spelled)
        if places:
            finding = pair.context.probe(method.symbol, *method.homes)
            if finding.status != "found":
                for place in places:
                    yield _absent(pair, place, method.symbol, finding, method.adapter)
            yield from _unbound(pair, spelled, finding, method.adapter)


def _homes(symbol: str) -> list[str]:
    """Where else a recorded release has something of that name."""
    name = symbol.partition(":")[2]
    return [s for s in vllm_table()["symbols"] if s != symbol and s.partition(":")[2] == name]


def _absent(
    pair: Pair, place: Place, symbol: str, finding: Finding, adapter: str
) -> Incompatibility:
    """A symbol that is elsewhere, or nowhere."""
    home, _, name = symbol.partition(":")
    kind: Kind = "gone"
    what = f"{home} has no {name}"
    if finding.status == "moved" and finding.location:
        kind = "moved"
        new_home, _, new_name = finding.location.partition(":")
        what += f": it is in {new_home}" if new_home != home else f": it is called {new_name}"
    step = first_step(
        symbol, pair.start, pair.version, pair.context.probe(symbol), lambda f: f.status != "found"
    )
    release = step.release if step else ""
    pr = _pr(adapter, release, name)
    return pair.one(place, symbol, kind, what, adapter=adapter, release=release, pr=pr)


def _unbound(pair: Pair, spelled: str, finding: Finding, adapter: str) -> Iterator[Incompatibility]:
    """Each argument of each call that the signature does not take, or misses."""
    if finding.signature is None:
        return
    name = finding.symbol.partition(":")[2]
    for call in pair.consumer.calls(spelled):
        for problem in finding.signature.problems(call.positional, call.keywords):

            def bad(found: Finding, problem: str = problem, call: Call = call) -> bool:
                signature = found.signature
                return signature is not None and problem in signature.problems(
                    call.positional, call.keywords
                )

            step = first_step(finding.symbol, pair.start, pair.version, finding, bad)
            missing = problem.startswith("missing")
            argument = problem.rpartition(" ")[2]
            kind: Kind = "parameter became required" if missing else "parameter removed"
            renamed = ""
            if step is not None:
                kind, renamed = argument_kind(step, argument)
            what = f"{name}: {problem}" + (f", which is called {renamed} now" if renamed else "")
            release = step.release if step else ""
            pr = _pr(adapter, release, argument)
            place = Place(call.module, call.line)
            yield pair.one(
                place, finding.symbol, kind, what, adapter=adapter, release=release, pr=pr
            )


def _pr(adapter: str, release: str, name: str) -> str:
    """The pull request, where the adapter declares what that release did to ``name``."""
    declared = [
        change
        for change in (REGISTRY[adapter].broke if adapter else ())
        if change.release == release
    ]
    naming = [change for change in declared if name.rpartition(".")[2] in change.what]
    return next((change.pr for change in naming or declared), "")
