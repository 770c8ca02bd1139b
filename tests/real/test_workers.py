"""The other processes: two tensor-parallel workers, and workers the adapters do not reach."""

from __future__ import annotations

import pytest

from vllm_compat import WorkerNotAdaptedError

from .engines import Engines, prompts


def test_two_tensor_parallel_workers(engines: Engines) -> None:
    engine = engines.start("llama", tensor_parallel_size=2)
    engine.check([*prompts(3, 120, 1, 17), *prompts(*[300] * 30, seed=1)])


def test_workers_without_the_adapters_are_found_at_set_up(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "another_plugin")
    with pytest.raises(WorkerNotAdaptedError, match="worker 0 runs without the adapters") as error:
        engines.start("llama")
    assert error.value.found == "none"
