"""What a callable can be called with, in a form that is equal however it was read."""

from __future__ import annotations

from vllm_compat.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any, Literal

    Kind = Literal[
        "positional_only", "positional_or_keyword", "var_positional", "keyword_only", "var_keyword"
    ]

_POSITIONAL = ("positional_only", "positional_or_keyword")
_BY_KEYWORD = ("positional_or_keyword", "keyword_only")


class Parameter(NamedTuple):
    """One parameter. The default's text and ``init_only`` inform, but are not compared."""

    name: str
    kind: Kind
    required: bool
    default: str | None = None
    init_only: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parameter) and self[:3] == other[:3]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:3])

    def to_dict(self) -> dict[str, Any]:
        """The parameter as JSON-able data."""
        return self._asdict()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Parameter:
        """The parameter which ``to_dict`` gave."""
        return cls(**data)


class Signature(NamedTuple):
    """The parameters of a callable as its caller sees them: without ``self`` or ``cls``."""

    parameters: tuple[Parameter, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters in order; ``*args`` and ``**kwargs`` take no name."""
        return tuple(p.name for p in self.parameters if not p.kind.startswith("var_"))

    def accepts(self, name: str) -> bool:
        """Whether ``name=...`` may be passed, be it through ``**kwargs``."""
        return any(
            p.kind == "var_keyword" or (p.kind in _BY_KEYWORD and p.name == name)
            for p in self.parameters
        )

    def requires(self, name: str) -> bool:
        """Whether there is a parameter ``name`` and it has no default."""
        return any(p.required and p.name == name for p in self.parameters)

    def problems(self, positional: int, keywords: Collection[str]) -> tuple[str, ...]:
        """Every reason why this call would not bind; empty when it binds.

        ``positional`` is the number of positional arguments, ``keywords`` the names passed.
        """
        slots = [p for p in self.parameters if p.kind in _POSITIONAL]
        by_keyword = {p.name for p in self.parameters if p.kind in _BY_KEYWORD}
        kinds = {p.kind for p in self.parameters}
        filled = {p.name for p in slots[:positional]}
        # With **kwargs a positional-only name may come a second time, as a plain keyword.
        by_name = set(keywords) & by_keyword

        problems = []
        if positional > len(slots) and "var_positional" not in kinds:
            problems.append(f"too many positional: {positional} given, {len(slots)} taken")
        problems += [f"{name} given twice" for name in sorted(filled & by_name)]
        if "var_keyword" not in kinds:
            problems += [f"unexpected keyword {n}" for n in sorted(set(keywords) - by_keyword)]
        problems += [
            f"missing required {p.name}"
            for p in self.parameters
            if p.required and p.name not in filled | by_name
        ]
        return tuple(problems)

    def to_dict(self) -> dict[str, Any]:
        """The signature as JSON-able data."""
        return {"parameters": [p.to_dict() for p in self.parameters]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Signature:
        """The signature which ``to_dict`` gave."""
        return cls(tuple(Parameter.from_dict(p) for p in data["parameters"]))

    def __str__(self) -> str:
        shown: list[str] = []
        previous = ""
        for p in self.parameters:
            if previous == "positional_only" != p.kind:
                shown.append("/")
            if p.kind == "keyword_only" and previous not in ("keyword_only", "var_positional"):
                shown.append("*")
            stars = {"var_positional": "*", "var_keyword": "**"}.get(p.kind, "")
            optional = not p.required and not stars
            shown.append(f"{stars}{p.name}{'=...' if optional else ''}")
            previous = p.kind
        if previous == "positional_only":
            shown.append("/")
        return f"({', '.join(shown)})"
