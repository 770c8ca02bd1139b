"""What an adapter takes for granted in vLLM, and what it means that it is not there.

The signature decides. The release only says what an absence means: on an older one that vLLM did
not have it yet, and the adapter does without; from the release on that has it, that vLLM has been
changed, and the adapter would do nothing, or the wrong thing, without a word.
"""

from __future__ import annotations

from vllm_compat.context import Context
from vllm_compat.named_tuple import NamedTuple
from vllm_compat.versions import OLDEST_KNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class Premise(NamedTuple):
    """Something that every vLLM has from one release on.

    Attributes:
        symbol: ``"module:Qualified.name"``.
        since: the first release that has it so.
        takes: parameters that it has, by keyword.
        positional: with how many arguments by position the adapter calls it; None: with none that
            anybody knows of here.
    """

    symbol: str
    since: str = OLDEST_KNOWN
    takes: tuple[str, ...] = ()
    positional: int | None = None

    def holds(self, context: Context) -> bool:
        """Whether this vLLM has it, and all its parameters."""
        return not any(self._missing(context))

    def problems(self, context: Context) -> tuple[str, ...]:
        """What is otherwise in this vLLM, and is not so because it is older."""
        found = list(self._missing(context)) if context.has_come(self.since) else []
        signature = context.probe(self.symbol).signature
        if self.positional is not None and signature is not None:
            calling = signature.problems(self.positional, ())
            found += [f"{self.symbol}: {problem}" for problem in calling]
        return tuple(found)

    def _missing(self, context: Context) -> Iterator[str]:
        finding = context.probe(self.symbol)
        if finding.status == "absent":
            yield f"{self.symbol} is absent" + (f" ({finding.note})" if finding.note else "")
        elif finding.signature is None:
            if self.takes or self.positional is not None:
                yield f"{self.symbol} is {finding.kind or 'something'} whose arguments are unknown"
        else:
            for name in self.takes:
                if not finding.signature.accepts(name):
                    yield f"{self.symbol} has no {name}"

    def __str__(self) -> str:
        shown = f"{self.symbol}({', '.join(self.takes)})" if self.takes else self.symbol
        called = "" if self.positional is None else f", called with {self.positional} by position"
        return f"{shown}{called}, as in vLLM from {self.since} on"
