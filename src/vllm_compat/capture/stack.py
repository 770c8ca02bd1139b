"""The decoder stack of a model, whatever wraps it and whatever its attributes are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vllm_compat.errors import UnsupportedModelError

if TYPE_CHECKING:
    from torch import nn


class DecoderStack(NamedTuple):
    """The decoder layers of a language model, in order, and the module that runs them."""

    layers: nn.ModuleList
    owner: nn.Module
    path: str


def language_model(model: nn.Module) -> nn.Module:
    """The language model inside ``model``: itself, unless ``model`` is a multimodal wrapper.

    vLLM's wrappers answer ``get_language_model()``; what they answer with differs (Kimi-K2.5 gave
    the bare ``DeepseekV2Model`` in 0.15 and a ``DeepseekV2ForCausalLM`` from 0.16 on), which is why
    nothing below relies on the attributes of the answer.
    """
    getter = getattr(model, "get_language_model", None)
    if callable(getter):
        inner: nn.Module = getter()
        return inner
    inner = getattr(model, "language_model", None)
    return model if inner is None else inner


def find_stack(model: nn.Module, num_layers: int) -> DecoderStack:
    """Find the one outermost ``nn.ModuleList`` of ``num_layers`` modules in the language model.

    Looked for by shape rather than by name: it is ``model.layers`` in most families,
    ``model.decoder.layers`` in OPT, ``gpt_neox.layers`` in GPT-NeoX, ``transformer.h`` in Falcon.
    Lists inside a layer (a mixture of as many experts as the model has layers) do not count.

    Raises:
        UnsupportedModelError: no such list, or more than one.
    """
    from torch import nn

    root = language_model(model)
    found: list[tuple[str, nn.ModuleList]] = []
    for path, module in root.named_modules():
        if not isinstance(module, nn.ModuleList) or len(module) != num_layers:
            continue
        if not any(path.startswith(outer + ".") for outer, _ in found):
            found.append((path, module))
    if len(found) != 1:
        paths = ", ".join(path for path, _ in found) or "none"
        raise UnsupportedModelError(
            f"cannot tell which modules of {type(model).__name__} are its decoder layers",
            found=f"lists of {num_layers} modules in {type(root).__name__}: {paths}",
            needed="exactly one list as long as the config's number of hidden layers",
            next_step="report the model's class: vllm_compat.capture.stack needs to learn it",
        )
    path, layers = found[0]
    return DecoderStack(layers, root.get_submodule(path.rpartition(".")[0]), path)
