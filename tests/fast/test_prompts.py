"""What goes into generate and the order of what comes out, without an engine."""

from __future__ import annotations

import pytest

from vllm_compat import CaptureError, PromptError
from vllm_compat.adapters.generate import as_lists, in_input_order


class Array:
    """Anything with ``tolist``, as tensors and arrays have."""

    def __init__(self, values) -> None:
        self.values = values

    def tolist(self):
        return self.values


@pytest.mark.parametrize(
    "given",
    [
        [[1, 2], [3]],
        ((1, 2), (3,)),
        Array([[1, 2], [3]]),
        [Array([1, 2]), Array([3])],
        (row for row in [[1, 2], (3,)]),
    ],
    ids=["lists", "tuples", "array", "arrays", "generator"],
)
def test_containers_become_lists(given) -> None:
    assert as_lists(given) == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "token_ids is not a batch of prompts"),
        ("text", "token_ids is not a batch of prompts"),
        ([], "token_ids cannot be empty"),
        ([1, 2, 3], "prompt 0 is not a sequence of token ids"),
        ([[1], ["2"]], "prompt 1 is not a sequence of token ids"),
        ([[1], [True]], "prompt 1 is not a sequence of token ids"),
        ([[1], [2.0]], "prompt 1 is not a sequence of token ids"),
        ([[1], "23"], "prompt 1 is not a sequence of token ids"),
        ([[1], None], "prompt 1 is not a sequence of token ids"),
    ],
)
def test_anything_else_is_named(given, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        as_lists(given)


def results(*prompts: list[int]) -> list[dict]:
    return [{"input_ids": Array(prompt), "number": n} for n, prompt in enumerate(prompts)]


def test_results_follow_the_prompts() -> None:
    # As speculators 0.4 gives them: request ids sorted as text.
    given = results([0], [1], [10], [11], [2])
    ordered = in_input_order(given, [[0], [1], [2], [10], [11]])
    assert [result["number"] for result in ordered] == [0, 1, 4, 2, 3]


def test_identical_prompts_share_their_results_out() -> None:
    ordered = in_input_order(results([7], [8], [7]), [[7], [7], [8]])
    assert [result["number"] for result in ordered] == [0, 2, 1]


def test_a_prompt_without_a_result_is_named() -> None:
    with pytest.raises(CaptureError, match="prompt 1 has no result"):
        in_input_order(results([7]), [[7], [7]])
