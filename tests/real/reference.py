"""The right hidden states, from transformers alone."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from .zoo import TEXT_MODEL

# Right is 1e-6 to 4e-5 in float32, wrong is 0.3 to 1.5.
BOUND = 1e-4

# Where the families keep their decoder layers, below the causal language model.
_STACKS = (
    "model.layers",
    "model.decoder.layers",
    "gpt_neox.layers",
    "transformer.h",
    "model.language_model.layers",
)


def reference_states(folder: Path, prompts: list[list[int]]) -> list[list[torch.Tensor]]:
    """For each prompt, for each decoder layer: its output, residual added, [tokens, hidden].

    Float32, eager attention, one prompt at a time. The last layer's output is the one before
    the final norm.
    """
    return [list(_states(folder, tuple(prompt))) for prompt in prompts]


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference over the norm of what was expected, worst token of all.

    Per token, so that a wrong row among thousands of right ones is not averaged away.
    """
    if got.shape != expected.shape:
        raise ValueError(f"got shape {tuple(got.shape)}, expected {tuple(expected.shape)}")
    difference = (got.double() - expected.double()).norm(dim=-1)
    error = difference / expected.double().norm(dim=-1)
    # A NaN is neither above a bound nor below it; infinity is above every one.
    return float("inf") if bool(error.isnan().any()) else float(error.max())


@lru_cache(maxsize=2)
def load(folder: Path) -> PreTrainedModel:
    """The folder's (text) model in transformers, ready to run."""
    text = folder / TEXT_MODEL
    model = AutoModelForCausalLM.from_pretrained(
        text if text.is_dir() else folder,
        dtype=torch.float32,
        attn_implementation="eager",
    )
    return model.eval()


def decoder_layers(model: torch.nn.Module) -> torch.nn.ModuleList:
    """The model's stack of decoder layers, wherever the family keeps it."""
    for path in _STACKS:
        try:
            found = model.get_submodule(path)
        except AttributeError:
            continue
        if isinstance(found, torch.nn.ModuleList):
            return found
    raise LookupError(f"{type(model).__name__} has its layers at none of {', '.join(_STACKS)}")


@lru_cache(maxsize=256)
def _states(folder: Path, prompt: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    model = load(folder)
    states: list[torch.Tensor] = []

    def keep(_module: object, _args: object, output: object) -> None:
        # Some releases return the state in a tuple, later ones the state itself.
        state = output[0] if isinstance(output, tuple) else output
        assert isinstance(state, torch.Tensor)
        states.append(state.reshape(len(prompt), -1).clone())

    hooks = [layer.register_forward_hook(keep) for layer in decoder_layers(model)]
    try:
        with torch.inference_mode():
            model(torch.tensor([prompt]), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(states)
