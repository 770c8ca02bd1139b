"""Whether a method of a subclass can be called as the one that it overrides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vllm_compat.probe import Parameter, Signature

if TYPE_CHECKING:
    from vllm_compat.checking.incompatibility import Kind


def refused(own: Signature, base: Signature) -> Iterator[tuple[Kind, str]]:
    """What may be passed to ``base`` and an override like ``own`` does not take."""
    kinds = {parameter.kind for parameter in own.parameters}
    slots = _slots(own)
    for place, parameter in enumerate(_slots(base)):
        by_place = place < len(slots) or "var_positional" in kinds
        if not by_place and not own.accepts(parameter.name):
            yield "parameter added", f"it does not take {parameter.name}"
    for parameter in base.parameters:
        if parameter.kind == "keyword_only" and not own.accepts(parameter.name):
            yield "parameter added", f"it does not take {parameter.name}"
    if any(parameter.kind.startswith("var_") for parameter in base.parameters):
        return  # what is required may be among the rest
    for place, parameter in enumerate(slots):
        if parameter.required and place >= len(_slots(base)) and not base.accepts(parameter.name):
            yield "parameter removed", f"it requires {parameter.name}, which is not passed"
    for parameter in own.parameters:
        only = parameter.kind == "keyword_only" and parameter.required
        if only and not base.accepts(parameter.name):
            yield "parameter removed", f"it requires {parameter.name}, which is not passed"


def _slots(signature: Signature) -> Sequence[Parameter]:
    return [
        parameter
        for parameter in signature.parameters
        if parameter.kind in ("positional_only", "positional_or_keyword")
    ]
