"""Every way a decoder layer carries its residual: all layers, against transformers."""

from __future__ import annotations

import pytest

from .engines import Engines, prompts

FAMILIES = [
    "llama",
    "qwen3",
    "gemma3",
    "cohere",
    "granite",
    "olmo2",
    "qwen3_moe",
    "deepseek_v3",
    "kimi_k25",
]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer(engines: Engines, family: str) -> None:
    engine = engines.start(family)
    (prefix,) = prompts(70)
    engine.check([*prompts(3, 120, 1, 17, seed=1), prefix, [*prefix[:50], 99]])
    engine.check(prompts(*[40] * 12, seed=2))
