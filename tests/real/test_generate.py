"""One engine, every way of calling it: always transformers' states, in the order of the prompts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vllm_compat import PromptError
from vllm_compat.adapters.generate import TruncatedPromptWarning

from .engines import Engine, Engines, prompts

# First, last, out of order, and one of them twice.
LAYERS = [5, 0, 7, 3, 5]

# One engine for the whole module.
pytestmark = pytest.mark.xdist_group("generate")


@pytest.fixture(scope="module")
def engine(engines: Engines) -> Engine:
    return engines.start("llama", LAYERS)


def test_mixed_lengths(engine: Engine) -> None:
    engine.check(prompts(3, 130, 1, 17, 64, 16, 15))


def test_one_token(engine: Engine) -> None:
    engine.check([[11]])


@pytest.mark.parametrize("count", [2, 11, 20, 33, 70])
def test_any_number_of_prompts(engine: Engine, count: int) -> None:
    engine.check(prompts(*(1 + 7 * n % 40 for n in range(count)), seed=count))


def test_more_tokens_than_a_step(engine: Engine) -> None:
    engine.check(prompts(*[300] * 40))


def test_prompts_longer_than_a_step(engine: Engine) -> None:
    scheduler = engine.generator.scheduler
    whole = scheduler.max_num_scheduled_tokens
    scheduler.max_num_scheduled_tokens = 48
    try:
        engine.check(prompts(200, 5, 97, 48, 130))
    finally:
        scheduler.max_num_scheduled_tokens = whole


def test_thirty_calls_in_a_row(engine: Engine) -> None:
    for call in range(30):
        engine.check(prompts(5 + call, 40, seed=call))


def test_prefixes_shared_in_a_call(engine: Engine) -> None:
    (prefix,) = prompts(64)
    tails = prompts(3, 20, 1, 33, seed=1)
    engine.check([prefix, *(prefix + tail for tail in tails), prefix[:40]])


def test_prefixes_shared_across_calls(engine: Engine) -> None:
    (prefix,) = prompts(96, seed=2)
    engine.check([prefix])
    engine.check([[*prefix, 99], prefix[:32]])
    engine.check([prefix])


def test_identical_prompts(engine: Engine) -> None:
    (prompt,) = prompts(50, seed=3)
    engine.check([prompt] * 5 + prompts(7) + [prompt])


@pytest.mark.parametrize(
    "container",
    [
        lambda rows: rows,
        lambda rows: tuple(tuple(row) for row in rows),
        torch.tensor,
        np.array,
        lambda rows: [torch.tensor(row) for row in rows],
        lambda rows: [np.array(row, dtype=np.int32) for row in rows],
        lambda rows: (row for row in rows),
    ],
    ids=["lists", "tuples", "tensor", "array", "tensors", "arrays", "generator"],
)
def test_containers(engine: Engine, container) -> None:
    rows = prompts(24, 24, 24)
    engine.check(container(rows), rows)


def test_overlong_prompts_are_cut_with_a_warning(engine: Engine) -> None:
    long, short = prompts(600, 20)
    with pytest.warns(TruncatedPromptWarning, match="prompt 0 has 600 tokens; only the first 511"):
        engine.check([long, short], [long[:511], short])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "prompt 1 is empty"),
        ([5, 1000], "prompt 1 has a token outside the vocabulary"),
        ([5, -1], "prompt 1 has a token outside the vocabulary"),
        ([5, 1.5], "prompt 1 is not a sequence of token ids"),
        ("text", "prompt 1 is not a sequence of token ids"),
    ],
)
def test_a_bad_prompt_is_named_and_the_generator_stays_usable(
    engine: Engine, bad: object, message: str
) -> None:
    good = prompts(20, 30)
    with pytest.raises(PromptError, match=message):
        engine.generator.generate([good[0], bad, good[1]])
    engine.check(good)


def test_no_prompts(engine: Engine) -> None:
    with pytest.raises(PromptError, match="cannot be empty"):
        engine.generator.generate([])


def test_a_call_that_fails_in_the_middle_leaves_nothing_behind(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = prompts(*[300] * 40, seed=5)
    execute = engine.generator.executor.execute_model
    steps = []

    def fail_in_the_second_step(plan):
        steps.append(plan)
        if len(steps) == 2:
            raise RuntimeError("lost")
        return execute(plan)

    with monkeypatch.context() as patched:
        patched.setattr(engine.generator.executor, "execute_model", fail_in_the_second_step)
        with pytest.raises(RuntimeError, match="lost"):
            engine.generator.generate(calls)
    assert not engine.generator.scheduler.requests
    engine.check(prompts(300, 12, seed=6))
    engine.check(calls[:3])


def test_workers_forget_finished_requests(engine: Engine) -> None:
    def requests_held(worker):  # nested: a worker cannot import this module
        runner = worker.model_runner  # V1 keeps a dict, V2 slots
        held = runner.requests if hasattr(runner, "requests") else runner.req_states.req_id_to_index
        return len(held)

    engine.check(prompts(*[9] * 40, seed=7))
    assert engine.generator.executor.collective_rpc(requests_held) == [0]
