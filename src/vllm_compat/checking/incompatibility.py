"""What breaks, at which line: the one value that the commands and their formats speak of."""

from __future__ import annotations

from vllm_compat.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    Kind = Literal[
        # what vLLM changed
        "parameter added",
        "parameter removed",
        "parameter renamed",
        "parameter became required",
        "moved",
        "gone",
        "return changed",
        "behaviour changed",
        # what is not vLLM's doing
        "fault",
        "environment",
    ]

# Kinds that are no change of vLLM: a fault of the consumer itself, or of what else is installed.
NO_DRIFT = ("fault", "environment")


def pull_requests(numbers: str) -> str:
    """``"#1, #2"`` for ``"1, 2"``, as an adapter's ``Break`` has them."""
    return ", ".join(f"#{number}" for number in numbers.split(", ") if number)


class Incompatibility(NamedTuple):
    """One thing at one place that does not work as it is.

    Attributes:
        file: the consumer's source file, as the reader can open it; empty where only a record of
            it is at hand.
        line: in it, from 1; 0 where it has no single line.
        module: the consumer's module, dotted.
        symbol: what it relies on, ``"module:Qualified.name"``.
        kind: what sort of change or fault.
        what: one line: what is wrong, with what was found and what is needed.
        covered_by: the adapter that makes it work; empty: not covered.
        release: the vLLM release that brought the change; empty where not known.
        pr: the pull request that did, ``"#12345"``; empty where not known.
        next_step: what the reader can do about it; empty where it is covered.
    """

    file: str
    line: int
    module: str
    symbol: str
    kind: Kind
    what: str
    covered_by: str = ""
    release: str = ""
    pr: str = ""
    next_step: str = ""

    @property
    def is_drift(self) -> bool:
        """Whether vLLM changed, rather than the consumer or the environment being at fault."""
        return self.kind not in NO_DRIFT

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**self._asdict(), "covered": bool(self.covered_by)}
