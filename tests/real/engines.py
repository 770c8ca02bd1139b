"""speculators' generator on tiny models, and its results held against transformers."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from speculators.data_generation import vllm_hidden_states_generator as speculators
from transformers import AutoConfig

from .reference import BOUND, reference_states, relative_error
from .zoo import VOCABULARY, build

# Of every result compared in the test that is running.
errors: list[float] = []

_model_config = speculators.ModelConfig


def _in_float32(**arguments: Any) -> Any:
    """speculators says "auto", which makes bfloat16 of a float32 model: nothing is exact then."""
    return _model_config(**{**arguments, "dtype": "float32"})


speculators.ModelConfig = _in_float32


def _norm_reads_strides() -> bool:
    """Whether this vLLM's RMS norm for CPU is right on rows that do not follow each other.

    Up to 0.14 its kernel takes them for contiguous, so every model that norms its queries is wrong
    on a CPU, whoever asks for the states.
    """
    import vllm._custom_ops as ops

    rows = torch.arange(1.0, 33.0).view(2, 16)[:, :8]
    out = torch.empty(2, 8)
    ops.rms_norm(out, rows, torch.ones(8), 1e-6)
    return relative_error(out, rows / rows.pow(2).mean(dim=1, keepdim=True).sqrt()) < BOUND


if not _norm_reads_strides():
    _vllm_config = speculators.VllmConfig

    def _with_torch_norms(**arguments: Any) -> Any:
        from vllm.config import CompilationConfig

        return _vllm_config(**arguments, compilation_config=CompilationConfig(custom_ops=["none"]))

    speculators.VllmConfig = _with_torch_norms


class Engine(NamedTuple):
    """A running generator and the model it runs."""

    generator: Any
    folder: Path
    layer_ids: list[int]

    def check(self, prompts: Any, expected: Sequence[Sequence[int]] | None = None) -> float:
        """Generate, and compare every state of every result with transformers.

        ``expected`` are the prompts as lists, where ``prompts`` are something else. Returns the
        worst relative error of any token.
        """
        results = self.generator.generate(prompts)
        return self.compare(results, prompts if expected is None else expected)

    def compare(self, results: list[dict[str, Any]], prompts: Sequence[Sequence[int]]) -> float:
        """The worst relative error of any token; fails above the bound, or on any other order."""
        assert [result["input_ids"].tolist() for result in results] == [list(p) for p in prompts]
        worst = 0.0
        references = reference_states(self.folder, [list(prompt) for prompt in prompts])
        for number, (result, reference) in enumerate(zip(results, references, strict=True)):
            assert result["loss_mask"] is None
            assert len(result["hidden_states"]) == len(self.layer_ids)
            for layer_id, states in zip(self.layer_ids, result["hidden_states"], strict=True):
                assert states.dtype == torch.float32
                error = relative_error(states, reference[layer_id])
                errors.append(error)
                assert error < BOUND, f"prompt {number}, layer {layer_id}: error {error:.2g}"
                worst = max(worst, error)
        return worst


class Engines:
    """Makes generators, no more than one alive."""

    def __init__(self, models: Path) -> None:
        self._models = models
        self._current: Any = None

    def folder(self, family: str) -> Path:
        """The family's model, made when first asked for."""
        folder = self._models / family
        return folder if folder.exists() else build(family, folder)

    def start(self, family: str, layer_ids: list[int] | None = None, **arguments: Any) -> Engine:
        """A generator on the family's model; all its layers unless told otherwise."""
        self.stop()
        folder = self.folder(family)
        if layer_ids is None:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
            config = getattr(config, "text_config", config)
            layer_ids = list(range(config.num_hidden_layers))
        self._current = speculators.VllmHiddenStatesGenerator(
            str(folder), layer_ids, **{"max_model_len": 512, **arguments}
        )
        return Engine(self._current, folder, layer_ids)

    def stop(self) -> None:
        """Shut the current one down and let go of it."""
        if self._current is not None:
            self._current.executor.shutdown()
            self._current = None
            gc.collect()


def runs_v2() -> bool:
    """Whether this run asked for model runner V2."""
    return os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of these lengths, ids clear of the special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(10, VOCABULARY, (length,), generator=generator).tolist() for length in lengths
    ]
