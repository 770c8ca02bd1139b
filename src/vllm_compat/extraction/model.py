"""What can be known of a model before it is loaded: read from its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_compat.errors import UnsupportedModelError
from vllm_compat.extraction.formats import dtype_name


@dataclass(frozen=True)
class ModelShape:
    """A model's language part.

    Attributes:
        config: the whole config, as a dict.
        num_layers: decoder layers.
        hidden_size: of a state.
        vocab_size: token ids are below it.
        dtype: of the weights, as the config says; ``"float32"`` where it does not.
        multimodal: whether the language model is inside a wrapper.
    """

    config: Mapping[str, Any]
    num_layers: int
    hidden_size: int
    vocab_size: int
    dtype: str
    multimodal: bool

    def eagle3_layers(self) -> list[int]:
        """speculators' default: three layers for the draft model, and the last one."""
        n = self.num_layers
        return [2, n // 2, n - 3, n - 1]

    def run_dtype(self, asked: str) -> str:
        """The dtype vLLM runs the model in; "auto" makes bfloat16 of float32."""
        if asked not in ("auto", ""):
            return {"half": "float16", "float": "float32"}.get(asked, asked)
        return "bfloat16" if self.dtype == "float32" else self.dtype


def read_shape(model: str, *, trust_remote_code: bool) -> ModelShape:
    """Read the config of a folder or of a model in the local hub cache.

    Raises:
        UnsupportedModelError: it cannot be read, or does not say what is needed.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(
            f"cannot read the config of {model}",
            found=str(error).splitlines()[0],
            needed="a folder with config.json",
            next_step="trust_remote_code=True runs the code that came with the model, if it is that"
            " which is missing; it runs with your rights",
        ) from error
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    text = getattr(config, "text_config", None) or text
    if isinstance(text, Mapping):
        get: Any = text.get
    else:
        get = lambda name, default=None: getattr(text, name, default)  # noqa: E731
    found = {name: get(name) for name in ("num_hidden_layers", "hidden_size", "vocab_size")}
    missing = [name for name, value in found.items() if not isinstance(value, int)]
    if missing:
        raise UnsupportedModelError(
            f"the config of {model} does not say its {', '.join(missing)}",
            needed="a decoder-only language model, alone or in a wrapper",
            next_step="report the model's class",
        )
    dtype = get("dtype") or get("torch_dtype") or getattr(config, "dtype", None) or "float32"
    return ModelShape(
        config.to_dict(),
        found["num_hidden_layers"],
        found["hidden_size"],
        found["vocab_size"],
        dtype_name(dtype),
        text is not config,
    )
