"""What ``apply`` found and decided, call site by call site."""

from __future__ import annotations

from vllm_compat.adapters.adapter import Decision
from vllm_compat.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class CallSite(NamedTuple):
    """One thing that speculators relies on, and what was decided about it.

    Attributes:
        name: the adapter's name, or the vLLM symbol where none is registered.
        symbol: what is relied on, ``"module:Qualified.name"``.
        where: where speculators relies on it, ``"module"`` or ``"module:line"``.
        decision: what was decided and why.
    """

    name: str
    symbol: str
    where: str
    decision: Decision

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "name": self.name,
            "symbol": self.symbol,
            "where": self.where,
            **self.decision._asdict(),
        }

    def offence(self) -> str:
        """Why this call site does not work, in the form of every error here."""
        decision = self.decision
        return "\n".join(
            [
                f"- {decision.reason} ({self.where})",
                f"    found: {decision.found}",
                f"    needed: {decision.needed}",
                f"    next step: {decision.next_step}",
            ]
        )


class Report(NamedTuple):
    """The outcome of ``apply``.

    Attributes:
        vllm: version text of the installed vLLM, "unknown" where it does not say.
        speculators: likewise.
        newer_than_known: the vLLM is newer than any that the adapters were tested with.
        call_sites: one entry for each thing speculators relies on.
        foreign: patches of others that were found on the same targets.
    """

    vllm: str
    speculators: str
    newer_than_known: bool
    call_sites: tuple[CallSite, ...]
    foreign: tuple[str, ...] = ()

    def _with_state(self, state: str) -> tuple[CallSite, ...]:
        return tuple(site for site in self.call_sites if site.decision.state == state)

    @property
    def adapted(self) -> tuple[CallSite, ...]:
        """The call sites that an adapter makes work."""
        return self._with_state("adapted")

    @property
    def uncovered(self) -> tuple[CallSite, ...]:
        """The call sites that do not work."""
        return self._with_state("uncovered")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "vllm": self.vllm,
            "speculators": self.speculators,
            "newer_than_known": self.newer_than_known,
            "call_sites": [site.to_dict() for site in self.call_sites],
            "foreign": list(self.foreign),
        }

    def summary(self) -> str:
        """One line."""
        counts = {state: len(self._with_state(state)) for state in ("adapted", "fits", "uncovered")}
        newer = ", newer than any tested: its signatures fit" if self.newer_than_known else ""
        return (
            f"speculators {self.speculators} on vLLM {self.vllm}: {counts['adapted']} call sites"
            f" adapted, {counts['fits']} fit, {counts['uncovered']} not covered{newer}"
        )

    def __str__(self) -> str:
        width = max((len(site.name) for site in self.call_sites), default=0)
        lines = [self.summary()]
        lines += [
            f"  {site.decision.state:9} {site.name:{width}}  {site.decision.reason}"
            for site in self.call_sites
            if site.decision.state != "unused"
        ]
        lines += [f"  patched by others too: {text}" for text in self.foreign]
        return "\n".join(lines)
