"""What the installed vLLM cannot run on a CPU, and why: read from its source."""

from __future__ import annotations

from pathlib import Path

import transformers

from vllm_compat.discovery import find_vllm


def left_out() -> dict[str, str]:
    """Families that this release cannot run, each with the reason."""
    models = _source("model_executor/models/registry.py")
    experts = _source("model_executor/layers/fused_moe/cpu_fused_moe.py")
    reasons = {}
    if "KimiK25ForConditionalGeneration" not in models:
        reasons["kimi_k25"] = "the model came with vLLM 0.15.0"
    if "def __missing__" in experts:
        # An activation made in the first step asks for a configuration that is set while loading.
        reason = "CPU experts fail in their first step: 'Current vLLM config is not set'"
        reasons |= dict.fromkeys(("qwen3_moe", "deepseek_v3", "kimi_k25"), reason)
    if hasattr(transformers.AutoImageProcessor, "_backends"):  # a stand-in that only complains
        reasons["kimi_k25"] = (
            f"transformers {transformers.__version__} makes no image processor without torchvision,"
            " which no CPU lane has"
        )
    return reasons


def attends_in_latent_space() -> bool:
    """Whether there is multi-head latent attention on a CPU.

    Without it, DeepSeek's family runs with keys and values written out: the same states. 0.27 and
    0.28 have it, but import a name on the way to it that only CUDA builds have.
    """
    vllm = find_vllm()
    assert vllm is not None
    assert vllm.release is not None
    if vllm.release.release[:2] in {(0, 27), (0, 28)}:
        return False
    return "MLA is not supported on CPU" not in _source("platforms/cpu.py")


def _source(path: str) -> str:
    vllm = find_vllm()
    assert vllm is not None
    file = Path(vllm.root) / path
    return file.read_text() if file.exists() else ""
