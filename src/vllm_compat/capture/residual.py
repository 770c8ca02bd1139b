"""How a decoder layer carries its residual, asked of the model itself.

A decoder layer of vLLM returns one tensor (Granite, OLMo-2, GPT-NeoX: the residual is inside), a
pair whose sum is the state (Llama and most others), or a pair whose first member is the state
already (Cohere). The classes do not say which. But the model's final norm does: it is given what
the last layer returned, and norm(state) must give what that call gave. Only the reading for which
that holds is used; where none does, the model is refused before any state is written.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm_compat.errors import UnsupportedModelError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.hooks import RemovableHandle

# A norm's output is right to 1e-6 in float32 and to 0.01 in bfloat16. A wrong reading of a random
# model is off by 0.3 to 1.5; of a trained one whose last layer adds little it may be off by less,
# so the best reading must also be clearly the best.
TOLERANCE = 0.03
CLEARLY = 4

Combine = Callable[["torch.Tensor", "torch.Tensor | None", "torch.Tensor | None"], "torch.Tensor"]
"""``(hidden, residual, out) -> state``: a new tensor, or ``out`` where that is given."""


def _sum(
    hidden: torch.Tensor, residual: torch.Tensor | None, out: torch.Tensor | None
) -> torch.Tensor:
    import torch

    assert residual is not None
    return torch.add(hidden, residual, out=out)


def _hidden(
    hidden: torch.Tensor, _residual: torch.Tensor | None, out: torch.Tensor | None
) -> torch.Tensor:
    return hidden.clone() if out is None else out.copy_(hidden)


READINGS: dict[str, Combine] = {"hidden + residual": _sum, "hidden": _hidden}


def split(output: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A decoder layer's output as ``(hidden, residual or None)``, both ``[rows, hidden]``.

    Raises:
        UnsupportedModelError: neither a tensor nor a tuple that starts with one, or a tensor of
            more dimensions (several residual streams a token, as Gemma 3n has).
    """
    parts = output if isinstance(output, (tuple, list)) else (output,)
    hidden = _rows(parts[0]) if parts else None
    if hidden is None:
        found = tuple(parts[0].shape) if hasattr(parts[0], "shape") else type(output).__name__
        raise UnsupportedModelError(
            "a decoder layer of this model does not return one state for each token",
            found=str(found),
            needed="a tensor [tokens, hidden], alone or first in a tuple",
            next_step="this family has no single hidden state that a draft model could read",
        )
    second = _rows(parts[1]) if len(parts) > 1 else None
    return hidden, second if second is not None and second.shape == hidden.shape else None


def _rows(value: Any) -> torch.Tensor | None:
    """``value`` as ``[rows, hidden]`` where it is that, or that in a batch of one.

    Models that vLLM runs with transformers' own modules (OLMo-2 in recent releases) keep the batch.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        return None
    if value.ndim == 3 and value.shape[0] == 1:
        value = value[0]
    return value if value.ndim == 2 else None


def refuse_scaled_float16(layer: nn.Module, dtype: torch.dtype) -> None:
    """Refuse float16 on layers that divide their residual stream to keep it in range.

    DeepSeek's decoder layer does so under float16 only. The final norm hides the factor, so the
    model is right and every state but the embeddings is off by ``routed_scaling_factor``.
    """
    import torch

    if dtype is torch.float16 and "float16" in inspect.getsource(type(layer).forward):
        raise UnsupportedModelError(
            f"{type(layer).__name__} scales its residual stream under float16",
            found="dtype float16",
            needed="bfloat16 or float32: the states would differ from the model's by a factor",
            next_step="load the model as bfloat16",
        )


def relative_error(value: torch.Tensor, expected: torch.Tensor) -> float:
    """``||value - expected|| / ||expected||`` in float32."""
    difference = (value.float() - expected.float()).norm()
    return float(difference / expected.float().norm().clamp_min(1e-30))


class Calibration:
    """Watches one forward and settles on the reading of the layers' output.

    Args:
        layers: the decoder layers.
        owner: the module that runs them; the final norm is one of its children.
        whole: gives all rows of a tensor of which a tensor-parallel rank may hold only some; raises
            nothing and returns None outside a step that is to be watched.
    """

    def __init__(
        self,
        layers: nn.ModuleList,
        owner: nn.Module,
        whole: Callable[[torch.Tensor], torch.Tensor | None],
    ) -> None:
        self._reading: str | None = None
        self._failure: UnsupportedModelError | None = None
        self._whole = whole
        self._layer_class = type(layers[-1]).__name__
        self._last: tuple[torch.Tensor, torch.Tensor | None] | None = None
        self._handles: list[RemovableHandle] = [layers[-1].register_forward_hook(self._after_last)]
        for module in owner.children():
            if module is not layers:
                self._handles.append(module.register_forward_hook(self._after_module))

    # The hooks must not raise: the runner would be left in the middle of a step (see Recorder).

    def _after_last(self, module: nn.Module, args: Any, output: Any) -> None:
        try:
            parts = [None if part is None else self._whole(part) for part in split(output)]
        except UnsupportedModelError as failure:
            self._failure = failure
            return
        hidden, residual = parts
        if hidden is None:
            return
        # Cloned: fused norms overwrite both tensors in place.
        self._last = (hidden.clone(), None if residual is None else residual.clone())
        if residual is None:
            self._reading = "hidden"

    def _after_module(self, module: nn.Module, args: Any, output: Any) -> None:
        """The first module to run after the last layer takes what it left: the final norm."""
        if self._last is None:
            return
        (hidden, residual), self._last = self._last, None
        name = type(module).__name__
        try:
            result, _ = split(output)
            errors = {}
            for reading in ["hidden"] if residual is None else list(READINGS):
                normed, _ = split(module.forward(READINGS[reading](hidden, residual, None)))
                errors[reading] = relative_error(normed, result[: normed.shape[0]])
        except Exception as error:
            self._failure = self._cannot_tell(f"{name} cannot be asked: {error!r}")
            return
        best, *others = sorted(errors, key=errors.__getitem__)
        clear = all(errors[other] > CLEARLY * errors[best] for other in others)
        if errors[best] < TOLERANCE and clear:
            self._reading = best
        else:
            measured = ", ".join(f"{reading}: {error:.2g}" for reading, error in errors.items())
            self._failure = self._cannot_tell(f"error of {name} on each reading: {measured}")

    def _cannot_tell(self, found: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"cannot tell how {self._layer_class} carries its residual",
            found=found,
            needed=f"one reading with an error below {TOLERANCE}, the others {CLEARLY} times off",
            next_step="report the model's class: its states would be a guess",
        )

    def finish(self) -> str:
        """The reading, a key of ``READINGS``; hooks removed.

        Raises:
            UnsupportedModelError: the forward settled nothing.
        """
        for handle in self._handles:
            handle.remove()
        if self._failure is not None:
            raise self._failure
        if self._reading is None:
            raise self._cannot_tell("a pair from the last layer and no module after it to ask")
        return self._reading
