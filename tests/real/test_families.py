"""Every way a decoder layer carries its residual: all layers, against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_compat.discovery import find_speculators, find_vllm

from .engines import Engines, prompts, runs_v2

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


# Kimi-K2.5 came with 0.15.0.
_REGISTRY = Path(find_vllm().root) / "model_executor" / "models" / "registry.py"
if "KimiK25ForConditionalGeneration" not in _REGISTRY.read_text():
    FAMILIES.remove("kimi_k25")


def attends_in_latent_space() -> bool:
    """Whether this vLLM has multi-head latent attention on a CPU.

    Without it, DeepSeek's family runs with keys and values written out: the same states.
    """
    platform = Path(find_vllm().root) / "platforms" / "cpu.py"
    return "MLA is not supported on CPU" not in platform.read_text()


@pytest.mark.parametrize("family", FAMILIES + MORE)
def test_every_layer(engines: Engines, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not attends_in_latent_space():
        monkeypatch.setenv("VLLM_MLA_DISABLE", "1")
    engine = engines.start(family)
    (prefix,) = prompts(70)
    engine.check([*prompts(3, 120, 1, 17, seed=1), prefix, [*prefix[:50], 99]])
    engine.check(prompts(*[40] * 12, seed=2))
