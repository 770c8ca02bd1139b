"""The other processes: two tensor-parallel workers, and workers the adapters do not reach."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from vllm_compat import WorkerNotAdaptedError
from vllm_compat.adapters.worker_processes import ask_workers

from .engines import Engines, prompts, runs_v2

# Two workers at a time: not beside themselves.
pytestmark = pytest.mark.xdist_group("workers")


def test_two_tensor_parallel_workers(engines: Engines) -> None:
    engine = engines.start("llama", tensor_parallel_size=2)
    engine.check([*prompts(3, 120, 1, 17), *prompts(*[300] * 30, seed=1)])


def test_workers_that_no_plugin_would_reach_are_not_started(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "another_plugin")
    monkeypatch.setattr(MultiprocExecutor, "_init_executor", lambda _: pytest.fail("started"))
    with pytest.raises(WorkerNotAdaptedError) as error:
        engines.start("llama")
    assert error.value.found == "VLLM_PLUGINS=another_plugin"


def test_a_worker_that_comes_to_other_adapters_does_not_start(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_COMPAT_APPLIED", "0:scheduler,of-another-release")
    with pytest.raises(Exception, match="initialization failed"):
        engines.start("llama")


def test_workers_that_answer_with_other_adapters_are_refused() -> None:
    shut_down = []
    executor = SimpleNamespace(
        collective_rpc=lambda ask: [ask(None), ("scheduler",)],
        shutdown=lambda: shut_down.append(True),
    )
    with pytest.raises(WorkerNotAdaptedError, match="worker 1 runs without") as error:
        ask_workers(pytest.fail, SimpleNamespace(executor=executor), (), {})
    assert error.value.found == "scheduler"
    assert shut_down == [True]


def test_the_model_runner_asked_for_is_the_one_that_runs(engines: Engines) -> None:
    def is_v2(worker):  # nested: a worker cannot import this module
        return hasattr(worker.model_runner, "prepare_inputs")

    engine = engines.start("qwen3", [1])
    assert engine.generator.executor.collective_rpc(is_v2) == [runs_v2()]
    engine.check(prompts(9, 1, 30, 2))
