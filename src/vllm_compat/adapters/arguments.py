"""Adapters that only change the arguments of a call: one declaration each, judged by binding.

The call is read from speculators' source, the signature from vLLM's. If the call binds, nothing is
done. If it binds once the adapter has dropped and supplied what it knows, it is adapted. If it does
not, vLLM wants something nobody here knows: uncovered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from vllm_compat.adapters.adapter import Adapter, Break, Decision, uncovered
from vllm_compat.adapters.premise import Premise
from vllm_compat.context import GENERATOR, Call, Context
from vllm_compat.patching import Patch, Wrap
from vllm_compat.probe import Finding, Signature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Provide = Callable[["Mapping[str, Any]"], "Any"]


def constant(value: Any) -> Provide:
    """A value that does not depend on the call."""
    return lambda _call: value


class Rewrite:
    """The change to a call that fits it to a signature.

    Args:
        signature: what vLLM has.
        drop: keywords that speculators passes and vLLM may no longer take.
        supply: keywords that vLLM may take and speculators does not pass, each with a function of
            the call's own keywords that gives the value.
        force: keywords whose value is ours whenever vLLM takes them, passed by speculators or not.
    """

    def __init__(
        self,
        signature: Signature,
        drop: Sequence[str],
        supply: Mapping[str, Provide],
        force: Mapping[str, Provide],
    ) -> None:
        self.drop = frozenset(name for name in drop if not signature.accepts(name))
        self.supply = {name: give for name, give in supply.items() if signature.accepts(name)}
        self.force = {name: give for name, give in force.items() if signature.accepts(name)}

    def keywords(self, call: Call) -> frozenset[str]:
        """The keywords of ``call`` after the change."""
        return (frozenset(call.keywords) - self.drop) | set(self.supply) | set(self.force)

    def changes(self, call: Call) -> bool:
        """Whether ``call`` is changed at all."""
        return bool(self.force) or self.keywords(call) != frozenset(call.keywords)

    def __call__(self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        changed = {name: value for name, value in kwargs.items() if name not in self.drop}
        for name, give in self.supply.items():
            if name not in kwargs:
                changed[name] = give(kwargs)
        for name, give in self.force.items():
            changed[name] = give(kwargs)
        return wrapped(*args, **changed)


def argument_adapter(
    *,
    name: str,
    symbol: str,
    candidates: Sequence[str] = (),
    speculators: str,
    broke: tuple[Break, ...],
    removal: str,
    drop: Sequence[str] = (),
    supply: Mapping[str, Provide] | None = None,
    force: Mapping[str, Provide] | None = None,
    reason: str = "",
    premises: tuple[Premise, ...] = (),
) -> Adapter:
    """An adapter for a call of ``symbol`` by its own name in speculators' generator module."""
    called = symbol.rpartition(":")[2]

    def rewrite(finding: Finding) -> Rewrite:
        assert finding.signature is not None
        return Rewrite(finding.signature, drop, supply or {}, force or {})

    def needed(context: Context) -> Decision:
        calls = context.consumer.calls(called)
        if not calls:
            return Decision("unused", f"this speculators does not call {called}")
        finding = context.probe(symbol, *candidates)
        if finding.signature is None:
            return uncovered(
                f"{called} is gone", found=finding.note or finding.status, needed=symbol
            )
        signature = finding.signature
        changed = rewrite(finding)
        problems = [
            problem
            for call in calls
            for problem in signature.problems(call.positional, changed.keywords(call))
        ]
        if problems:
            return uncovered(
                f"{called} takes other arguments than speculators passes",
                found=f"{called}{signature}",
                needed="; ".join(dict.fromkeys(problems)),
            )
        if not any(changed.changes(call) for call in calls):
            return Decision("fits", f"{called}{signature} takes the call as it is")
        parts = [
            *(f"drops {n}" for n in sorted(changed.drop) if any(n in c.keywords for c in calls)),
            *(f"supplies {n}" for n in changed.supply if any(n not in c.keywords for c in calls)),
            *(f"sets {n}" for n in changed.force),
        ]
        return Decision("adapted", ", ".join(parts) + (f": {reason}" if reason else ""))

    def patches(context: Context) -> Sequence[Patch]:
        changed = rewrite(context.probe(symbol, *candidates))
        return [Wrap(GENERATOR, called, changed, name)]

    where = f"{GENERATOR}:{called}"
    return Adapter(name, symbol, where, speculators, broke, removal, needed, patches, premises)


def check_calls(context: Context, name: str, finding: Finding) -> Decision | None:
    """A call of ``name`` by speculators that does not bind to what vLLM has, as a decision."""
    if finding.signature is None:
        return None
    for call in context.consumer.calls(name):
        problems = finding.signature.problems(call.positional, call.keywords)
        if problems:
            return uncovered(
                f"{name} takes other arguments than speculators passes",
                found=f"{name}{finding.signature}",
                needed="; ".join(problems),
            )
    return None
