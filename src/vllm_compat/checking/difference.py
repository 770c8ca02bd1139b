"""What changed between two releases of vLLM under the symbols that speculators relies on.

Signatures are compared as recorded; what no signature shows comes out of the adapters' own
declarations of what broke.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from packaging.version import Version

from vllm_compat.adapters import REGISTRY
from vllm_compat.checking.incompatibility import NO_DRIFT
from vllm_compat.contracts.recorded import RecordedTree
from vllm_compat.contracts.recording import record
from vllm_compat.contracts.table import Contract
from vllm_compat.probe import Finding, Parameter, Signature, SourceTree

if TYPE_CHECKING:
    from typing import TypeAlias

    from vllm_compat.checking.incompatibility import Kind

    Release: TypeAlias = Contract | RecordedTree | SourceTree

Group = Literal["breaking", "behavioural", "added"]

_BY_PLACE = ("positional_only", "positional_or_keyword")
_BEHAVIOURAL = ("return changed", "behaviour changed")


class Change(NamedTuple):
    """One thing that changed.

    Attributes:
        symbol: under which it was before, ``"module:Qualified.name"``.
        group: ``breaking``: a call or import that worked may fail. ``behavioural``: it works, and
            may do something else. ``added``: there is more than before.
        kind: what sort of change; ``appeared`` for a symbol that was not there.
        what: one line, old and new.
        pr: the numbers of the pull requests, where known.
    """

    symbol: str
    group: Group
    kind: Kind | Literal["appeared"]
    what: str
    pr: str = ""


class Difference(NamedTuple):
    """All that changed from one release to another.

    Attributes:
        before: the one release.
        after: the other.
        changes: by symbol.
        unchanged: the symbols that are as they were, be it absent.
        not_compared: the symbols of which only one of the two was recorded.
    """

    before: str
    after: str
    changes: tuple[Change, ...]
    unchanged: tuple[str, ...]
    not_compared: tuple[str, ...]

    def in_group(self, group: Group) -> tuple[Change, ...]:
        """The changes of one group."""
        return tuple(change for change in self.changes if change.group == group)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, the changes by group."""
        groups: tuple[Group, ...] = ("breaking", "behavioural", "added")
        return {
            "before": self.before,
            "after": self.after,
            **{name: [change._asdict() for change in self.in_group(name)] for name in groups},
            "unchanged": list(self.unchanged),
            "not_compared": list(self.not_compared),
        }


def difference(before: Release, after: Release) -> Difference:
    """What changed from ``before`` to ``after``, each a record or sources to be recorded.

    Raises:
        UnreadableVllmError: sources that do not say which release they are.
    """
    old, new = _contract(before), _contract(after)
    both = sorted(old.findings.keys() & new.findings.keys())
    changes: list[Change] = []
    for symbol in both:
        changes += _changes(symbol, old, new)
    declared = list(_declared(old.release, new.release))
    told = {(change.symbol, change.kind) for change in declared if change.group == "breaking"}
    changes = [change for change in changes if (change.symbol, change.kind) not in told]
    changes += declared
    changed = {change.symbol for change in changes}
    return Difference(
        old.release,
        new.release,
        tuple(sorted(changes, key=lambda change: change.symbol)),
        tuple(symbol for symbol in both if symbol not in changed),
        tuple(sorted(old.findings.keys() ^ new.findings.keys())),
    )


def _contract(release: Release) -> Contract:
    if isinstance(release, SourceTree):
        return record(release.root)
    return release.contract if isinstance(release, RecordedTree) else release


def _changes(symbol: str, old: Contract, new: Contract) -> Iterator[Change]:
    before, after = old.findings[symbol], new.findings[symbol]
    if before.status == "absent":
        if after.status == "found":
            yield Change(symbol, "added", "appeared", f"absent -> {_shown(after)}")
        return
    if after.status == "found":
        yield from _between(symbol, before, after)
        return
    home = _new_home(symbol, old, new)
    if home is None:
        yield Change(symbol, "breaking", "gone", f"{_shown(before)} -> absent")
    else:
        yield Change(symbol, "breaking", "moved", f"{symbol} -> {home.symbol}")
        yield from _between(symbol, before, home)


def _new_home(symbol: str, old: Contract, new: Contract) -> Finding | None:
    """What has the same name in another module, and had not before."""
    path = symbol.partition(":")[2]
    for known, finding in new.findings.items():
        if path and known.partition(":")[2] == path and finding.status == "found":
            was = old.findings.get(known)
            if was is None or was.status == "absent":
                return finding
    return None


def _between(symbol: str, before: Finding, after: Finding) -> Iterator[Change]:
    if before.kind != after.kind and before.kind and after.kind:
        what = f"a {before.kind} -> a {after.kind}"
        yield Change(symbol, "breaking", "behaviour changed", what)
    if before.signature is not None and after.signature is not None:
        for group, kind, what in _of_signatures(before.signature, after.signature):
            yield Change(symbol, group, kind, what)


def _of_signatures(before: Signature, after: Signature) -> Iterator[tuple[Group, Kind, str]]:
    old, new = _named(before), _named(after)
    renamed = dict(_renamed(before, after))
    for name, parameter in old.items():
        if name in renamed:
            yield "breaking", "parameter renamed", f"{name} -> {renamed[name]}"
        elif name not in new:
            yield "breaking", "parameter removed", f"{_text(parameter)} -> none"
        else:
            yield from _of_parameters(parameter, new[name])
    for name, parameter in new.items():
        if name not in old and name not in renamed.values():
            behind = _behind(before, after, name)
            what = f"none -> {_text(parameter)}"
            if behind:
                what += f", in front of {behind}"
            breaks = parameter.required or bool(behind)
            yield "breaking" if breaks else "added", "parameter added", what
    orders: tuple[tuple[Group, bool], ...] = (("breaking", True), ("behavioural", False))
    for group, by_place in orders:
        was, now = (
            [p.name for p in parameters.values() if (p.kind in _BY_PLACE) == by_place]
            for parameters in (old, new)
        )
        moved = [(w, n) for w, n in zip(_only(was, now), _only(now, was), strict=True) if w != n]
        if moved:
            what = f"{', '.join(w for w, _ in moved)} -> {', '.join(n for _, n in moved)}"
            yield group, "behaviour changed", f"order: {what}"


def _of_parameters(before: Parameter, after: Parameter) -> Iterator[tuple[Group, Kind, str]]:
    what = f"{_text(before)} -> {_text(after)}"
    if before.kind != after.kind:
        taken = {
            "positional_only": {"place"},
            "positional_or_keyword": {"place", "name"},
            "keyword_only": {"name"},
        }
        for way in taken.get(before.kind, set()) - taken.get(after.kind, set()):
            yield "breaking", "behaviour changed", f"{before.name} is no longer given by {way}"
    if after.required and not before.required:
        yield "breaking", "parameter became required", what
    elif before.required != after.required:
        yield "added", "behaviour changed", what
    elif before.default != after.default:
        yield "behavioural", "behaviour changed", what


def _only(names: list[str], others: list[str]) -> list[str]:
    return [name for name in names if name in others]


def _named(signature: Signature) -> dict[str, Parameter]:
    """The parameters by name; ``*`` and ``**`` have no name that counts."""
    stars = {"var_positional": "*", "var_keyword": "**"}
    return {stars.get(p.kind, p.name): p for p in signature.parameters}


def _renamed(before: Signature, after: Signature) -> Iterator[tuple[str, str]]:
    """Names that went, each with the one that came in its place and is alike in all else."""
    old, new = _named(before), _named(after)
    for was, now in zip(before.parameters, after.parameters, strict=False):
        if was.name not in new and now.name not in old and was[1:4] == now[1:4]:
            yield was.name, now.name


def _behind(before: Signature, after: Signature, name: str) -> str:
    """The first parameter that is given by place, was there before, and is now behind ``name``."""
    by_place = [p.name for p in after.parameters if p.kind in _BY_PLACE]
    if name not in by_place:
        return ""
    known = [p.name for p in before.parameters if p.kind != "keyword_only"]
    return next((n for n in by_place[by_place.index(name) :] if n in known), "")


def _declared(before: str, after: str) -> Iterator[Change]:
    """What no signature shows, out of the adapters' declarations."""
    for adapter in REGISTRY:
        for known in adapter.broke:
            kind = known.kind
            if not kind or kind in NO_DRIFT or not known.release[:1].isdigit():
                continue  # a signature shows it, or it is not vLLM's doing
            if Version(before) < Version(known.release) <= Version(after):
                symbol = known.symbol or adapter.symbol
                group: Group = "behavioural" if kind in _BEHAVIOURAL else "breaking"
                yield Change(symbol, group, kind, known.what, known.pr)


def _text(parameter: Parameter) -> str:
    stars = {"var_positional": "*", "var_keyword": "**"}.get(parameter.kind, "")
    default = "" if parameter.default is None else f"={parameter.default}"
    return f"{stars}{parameter.name}{default}"


def _shown(finding: Finding) -> str:
    return f"a {finding.kind}" if finding.kind else finding.location or "there"
