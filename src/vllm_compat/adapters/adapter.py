"""The one shape all adapters have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vllm_compat.adapters.premise import Premise
from vllm_compat.context import Context
from vllm_compat.named_tuple import NamedTuple
from vllm_compat.patching import Patch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from vllm_compat.checking.incompatibility import Kind

    State = Literal["fits", "adapted", "unused", "uncovered"]


class Break(NamedTuple):
    """One change of vLLM, or one fault of speculators, that an adapter answers to.

    Attributes:
        release: the vLLM release that brought it, or ``"speculators X"`` for a fault.
        pr: the numbers of the pull requests, where known.
        what: one line.
        kind: what sort of change, where no signature of the call shows it, so that ``check`` has to
            be told; empty: binding the call tells, or nothing of speculators' depends on it.
        symbol: what of vLLM it concerns, where that is not the adapter's symbol.
        at: the place it bites, as ``Consumer.places`` takes it, in the module of the call site.
        shows: what a vLLM with the change has, ``"module:name"`` or ``"module:name(parameter)"``,
            which decides in place of the release.
        until: the release that took it back.
        line: the one line of speculators that it bites, ``"0.3"``; empty: each that has the place.
    """

    release: str
    pr: str
    what: str
    kind: Kind | Literal[""] = ""
    symbol: str = ""
    at: str = ""
    shows: str = ""
    until: str = ""
    line: str = ""


class Decision(NamedTuple):
    """What was decided about one call site, and why.

    ``fits``: works as it is. ``adapted``: the adapter makes it work. ``unused``: this speculators
    does not have the call site. ``uncovered``: it breaks and nothing here mends it; ``found``,
    ``needed`` and ``next_step`` say what that means.
    """

    state: State
    reason: str
    found: str = ""
    needed: str = ""
    next_step: str = ""


class Adapter(NamedTuple):
    """Makes one call site of speculators work on the installed vLLM.

    Attributes:
        name: unique, lower-case words joined by dashes.
        symbol: what the call site relies on, ``"module:Qualified.name"``.
        call_site: where speculators does so, ``"module:Qualified.name"``.
        speculators: the releases that have the call site, a PEP 440 specifier.
        broke: what changed, release by release.
        removal: when this adapter can go.
        needed: decides from the sources alone.
        patches: what is patched when the decision is ``adapted``.
        premises: what both take for granted in vLLM.
    """

    name: str
    symbol: str
    call_site: str
    speculators: str
    broke: tuple[Break, ...]
    removal: str
    needed: Callable[[Context], Decision]
    patches: Callable[[Context], Sequence[Patch]]
    premises: tuple[Premise, ...] = ()

    def decide(self, context: Context) -> Decision:
        """What ``needed`` says, if its premises hold on this vLLM."""
        decision = self.needed(context)
        if decision.state in ("unused", "uncovered"):
            return decision
        broken = {premise: premise.problems(context) for premise in self.premises}
        found = [problem for problems in broken.values() for problem in problems]
        if not found:
            return decision
        return uncovered(
            f"vLLM has changed what {self.name} works on",
            found="; ".join(found),
            needed="; ".join(str(premise) for premise, problems in broken.items() if problems),
        )


NEXT_STEP = "install a vLLM release listed as working, or report this one to vllm_compat"


def uncovered(what: str, *, found: str, needed: str) -> Decision:
    """A break that no adapter mends, with the advice that always holds."""
    return Decision(
        "uncovered",
        what,
        found=found,
        needed=needed,
        next_step=NEXT_STEP,
    )
