"""A KV cache smaller than the call, and steps smaller than a prompt."""

from __future__ import annotations

import inspect

import pytest
from speculators.data_generation import vllm_hidden_states_generator as speculators

from vllm_compat import PromptError

from .engines import Engine, Engines, prompts

# One engine for the whole module.
pytestmark = pytest.mark.xdist_group("small-cache")


@pytest.fixture(scope="module")
def engine(engines: Engines) -> Engine:
    arguments = {}
    if (
        "max_num_batched_tokens"
        in inspect.signature(speculators.VllmHiddenStatesGenerator).parameters
    ):
        arguments["max_num_batched_tokens"] = 128
    # 2 MiB of the 1 GiB allowed: 512 tokens of 8 layers x 2 x 64 float32 numbers.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(speculators, "CACHE_MEMORY_FRACTION", 0.01)
        return engines.start("llama", gpu_memory_utilization=0.2, **arguments)


def capacity(engine: Engine) -> int:
    kv_cache = engine.generator.scheduler.kv_cache_config
    return (kv_cache.num_blocks - 1) * kv_cache.kv_cache_groups[0].kv_cache_spec.block_size


def test_calls_larger_than_the_cache(engine: Engine) -> None:
    calls = prompts(*[300] * 12, 40, 1)
    assert capacity(engine) < sum(map(len, calls)) / 3
    engine.check(calls)
    engine.check(calls[:4])


def test_a_prompt_that_never_fits_is_refused(engine: Engine) -> None:
    (prompt,) = prompts(511)
    assert capacity(engine) < 511
    with pytest.raises(PromptError, match="prompt 0 does not fit the KV cache"):
        engine.generator.generate([prompt])
    engine.check(prompts(30))
