"""Every way a decoder layer carries its residual: all layers, against transformers."""

from __future__ import annotations

import pytest

from vllm_compat.discovery import find_speculators, find_vllm

from .engines import Engines, prompts, runs_v2
from .support import attends_in_latent_space, left_out

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
# More ways to carry a residual and to name a stack. Neither the speculators line nor the runner has
# a part in that, and few releases do: one lane of the oldest and of the newest run by every change.
MORE = ["exaone4", "gpt_neox", "opt"]
if (
    not find_speculators().version.startswith("0.4")
    or runs_v2()
    or find_vllm().release.base_version not in ("0.16.0", "0.32.0")
):
    MORE = []


@pytest.mark.parametrize("family", sorted({*FAMILIES, *MORE} - set(left_out())))
def test_every_layer(engines: Engines, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not attends_in_latent_space():
        monkeypatch.setenv("VLLM_MLA_DISABLE", "1")
    engine = engines.start(family)
    (prefix,) = prompts(70)
    engine.check([*prompts(3, 120, 1, 17, seed=1), prefix, [*prefix[:50], 99]])
    engine.check(prompts(*[40] * 12, seed=2))
