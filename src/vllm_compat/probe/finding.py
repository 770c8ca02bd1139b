"""What a probe answers about one symbol."""

from __future__ import annotations

from vllm_compat.named_tuple import NamedTuple

from .signature import Signature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Literal

    Status = Literal["found", "moved", "absent"]
    SymbolKind = Literal["function", "class", "module", "value"]


class Finding(NamedTuple):
    """Where a symbol is, what it is and how it is called.

    ``moved`` means: not under its own name, but under one of the candidates. ``kind`` is None
    when the symbol is absent, or is bound to something which lies outside what was probed.
    ``location`` is ``module:Qual.name`` of the real definition, ``file`` is relative to the
    package's directory. ``note`` says what made the answer uncertain or negative.
    """

    symbol: str
    status: Status
    kind: SymbolKind | None = None
    signature: Signature | None = None
    location: str | None = None
    file: str | None = None
    line: int | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON-able data."""
        signature = self.signature.to_dict() if self.signature is not None else None
        return {**self._asdict(), "signature": signature}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """The finding which ``to_dict`` gave."""
        signature = data["signature"]
        if signature is not None:
            signature = Signature.from_dict(signature)
        return cls(**{**data, "signature": signature})


def first_found(find: Callable[[str], Finding], symbol: str, candidates: Sequence[str]) -> Finding:
    """What ``find`` has under ``symbol``, else under the first of ``candidates`` it has."""
    own = find(symbol)
    if own.status == "found":
        return own
    for candidate in candidates:
        other = find(candidate)
        if other.status == "found":
            return other._replace(symbol=symbol, status="moved")
    return own
