"""One speculators beside one vLLM, judged: what every question of ``check`` starts from."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from vllm_compat.adapters import REGISTRY, Adapter
from vllm_compat.adapters.adapter import NEXT_STEP
from vllm_compat.checking.incompatibility import Incompatibility, pull_requests
from vllm_compat.context import Consumer, Context, Place, Settings
from vllm_compat.contracts.recorded import load_speculators, load_vllm, recorded_context
from vllm_compat.judge import installed_speculators, installed_vllm, judge
from vllm_compat.patching import Add, AddModule
from vllm_compat.probe import SourceTree
from vllm_compat.versions import numbers, says_nothing

if TYPE_CHECKING:
    from vllm_compat.checking.incompatibility import Kind

# The first and the last vLLM that each line of speculators is released for, as its metadata says.
RELEASED_FOR = {"0.3": ("0.11.0", "0.11.0"), "0.4": ("0.12.0", "0.16.0")}


def named_pair(vllm: str | None = None, speculators: str | None = None) -> Context:
    """The named releases, out of their records; the installed one for each that is not named.

    Raises:
        NotRecordedError: a named release is not recorded.
        NotInstalledError: one that is not named is not installed.
    """
    consumer = load_speculators(speculators) if speculators else Consumer(installed_speculators())
    if vllm:
        return recorded_context(load_vllm(vllm), consumer)
    installed = installed_vllm()
    return Context(SourceTree(installed.root, "vllm"), installed, consumer, Settings())


class Pair:
    """A context with its verdicts.

    Attributes:
        report: the judge's.
        decisions: by the name of the adapter.
        version: vLLM's, empty where it says nothing.
        line: the line of speculators releases.
        start: the first vLLM which that line was released for, where it works as it is.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.consumer = context.consumer
        self.report, self._taken = judge(context)
        self.decisions = {site.name: site.decision for site in self.report.call_sites}
        version = context.vllm_installed.version or ""
        self.version = "" if says_nothing(version) else version
        self.line = _line(context.consumer.installed.version or "")
        self.start, self._end = RELEASED_FOR[self.line]

    @property
    def is_official(self) -> bool:
        """Whether this speculators was released for this vLLM."""
        return numbers(self.start) <= numbers(self.version) <= numbers(self._end)

    @property
    def is_recorded(self) -> bool:
        """Whether the vLLM is a record, so that nothing of this environment belongs to it."""
        return not self.context.vllm_installed.root

    def is_later(self, release: str) -> bool:
        """Whether this release came after the vLLM that the consumer was written for."""
        return numbers(release) > numbers(self.start)

    @cached_property
    def provided(self) -> dict[str, str]:
        """The symbols and modules that adapters put back in place, with the adapter."""
        return {
            f"{patch.module}{':' if isinstance(patch, Add) else '.'}{patch.path}": adapter.name
            for adapter in self._taken
            for patch in adapter.patches(self.context)
            if isinstance(patch, Add | AddModule)
        }

    def one(
        self,
        place: Place,
        symbol: str,
        kind: Kind,
        what: str,
        *,
        adapter: str,
        release: str,
        pr: str = "",
    ) -> Incompatibility:
        """A finding, covered by ``adapter`` if that has been taken."""
        decision = self.decisions.get(adapter)
        covered = decision is not None and decision.state == "adapted"
        return Incompatibility(
            self.consumer.file(place.module),
            place.line,
            place.module,
            symbol,
            kind,
            what,
            adapter if covered else "",
            release,
            pull_requests(pr),
            "" if covered else (decision.next_step if decision else "") or NEXT_STEP,
        )


def answering(symbol: str) -> Adapter | None:
    """The adapter for calls of ``symbol``."""
    return next((adapter for adapter in REGISTRY if adapter.symbol == symbol), None)


def _line(speculators: str) -> str:
    """The line of releases; one that does not say its version counts as the newest."""
    known = [line for line in RELEASED_FOR if numbers(line) <= numbers(speculators)]
    return known[-1] if known else list(RELEASED_FOR)[-1]
