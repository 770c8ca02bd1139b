"""``VllmHiddenStatesGenerator.generate``: what goes in, what comes out, and what a failure leaves.

The call itself stays speculators'. Around it: prompts in any of the usual containers become lists,
those that cannot run are refused by number before anything is scheduled, results are put in the
order of the prompts (0.4 sorts request ids as text: 0, 1, 10, 11, 2), every result is checked
against its prompt, and a call that fails takes its requests out of the scheduler with it.

The generator's constructor ends with one such call on a prompt of a few tokens. It settles, before
any real work, how the model carries its residual (``vllm_compat.capture.residual``), and shows a
model that cannot be captured rightly at set-up.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from vllm_compat.adapters.adapter import Adapter, Break, Decision
from vllm_compat.adapters.premise import Premise
from vllm_compat.context import GENERATOR, Context
from vllm_compat.errors import CaptureError, PromptError, UnsupportedModelError
from vllm_compat.patching import Patch, Wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CLASS = "VllmHiddenStatesGenerator"
PROBE_TOKENS = 8


class TruncatedPromptWarning(UserWarning):
    """A prompt was longer than the model's context and its end was cut off."""


def needed(context: Context) -> Decision:
    return Decision("adapted", "checks prompts and results, keeps their order, survives failures")


def generate(wrapped: Any, generator: Any, args: Any, kwargs: Any) -> list[dict[str, Any]]:
    (token_ids,) = args or (kwargs["token_ids"],)
    prompts = list(_fitting(as_lists(token_ids), generator))
    with clean_after_failure(generator):
        results = in_input_order(wrapped(prompts), prompts)
        for number, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
            check(number, prompt, result, generator.layer_ids)
    return results


# -- what goes in -------------------------------------------------------------------------------


def as_lists(token_ids: Any) -> list[list[int]]:
    """Prompts as lists of ints, from lists, tuples, tensors or arrays (of any mixture of them).

    Raises:
        PromptError: not a batch of sequences of integers.
    """
    rows = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise PromptError(
            "token_ids is not a batch of prompts",
            found=type(token_ids).__name__,
            needed="a sequence of sequences of token ids",
            next_step="pass [[1, 2, 3], [4, 5]]",
        )
    prompts = []
    for number, row in enumerate(rows):
        ids = row.tolist() if hasattr(row, "tolist") else row
        try:
            if isinstance(ids, (str, bytes)):
                raise TypeError
            prompts.append([_token_id(value) for value in ids])
        except TypeError:
            raise PromptError(
                f"prompt {number} is not a sequence of token ids",
                found=repr(row)[:80],
                needed="integers",
                next_step="pass one sequence for each prompt: [[1, 2, 3]], not [1, 2, 3]",
            ) from None
    if not prompts:
        raise PromptError("token_ids cannot be empty", next_step="pass at least one prompt")
    return prompts


def _token_id(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _fitting(prompts: list[list[int]], generator: Any) -> Iterator[list[int]]:
    """The prompts as they will be run: checked, and cut where speculators cuts them."""
    model_config = generator.vllm_config.model_config
    vocabulary = model_config.get_vocab_size()
    longest = model_config.max_model_len - 1  # one token is generated
    kv_cache = generator.scheduler.kv_cache_config
    block = min(group.kv_cache_spec.block_size for group in kv_cache.kv_cache_groups)
    capacity = (kv_cache.num_blocks - 1) * block  # block 0 is vLLM's null block

    for number, prompt in enumerate(prompts):
        if not prompt:
            raise PromptError(
                f"prompt {number} is empty",
                needed="at least one token",
                next_step="leave it out",
            )
        for position, token_id in enumerate(prompt):
            if not 0 <= token_id < vocabulary:
                raise PromptError(
                    f"prompt {number} has a token outside the vocabulary",
                    found=f"id {token_id} at position {position}",
                    needed=f"0 to {vocabulary - 1}",
                    next_step="tokenize with the model's own tokenizer",
                )
        if len(prompt) > longest:
            warnings.warn(
                f"prompt {number} has {len(prompt)} tokens; only the first {longest} are run"
                f" (max_model_len {longest + 1}, of which one token is generated)",
                TruncatedPromptWarning,
                stacklevel=2,
            )
        run = prompt[:longest]
        if len(run) > capacity:
            raise PromptError(
                f"prompt {number} does not fit the KV cache",
                found=f"{len(run)} tokens",
                needed=f"at most {capacity} ({kv_cache.num_blocks - 1} blocks of {block})",
                next_step="raise gpu_memory_utilization, or cut the prompt",
            )
        yield run


# -- what comes out -----------------------------------------------------------------------------


def in_input_order(results: list[dict[str, Any]], prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Results in the order of their prompts, told apart by their ids.

    Of identical prompts any may have any of the results: they are the same.

    Raises:
        CaptureError: a prompt without a result, or a result without a prompt.
    """
    by_ids: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    for result in reversed(results):
        by_ids.setdefault(tuple(result["input_ids"].tolist()), []).append(result)
    ordered = []
    for number, prompt in enumerate(prompts):
        same = by_ids.get(tuple(prompt))
        if not same:
            raise CaptureError(
                f"prompt {number} has no result",
                found=f"{len(results)} results for {len(prompts)} prompts",
                needed="one for each",
                next_step="report this vLLM and speculators",
            )
        ordered.append(same.pop())
    return ordered


def check(number: int, prompt: list[int], result: dict[str, Any], layer_ids: Sequence[int]) -> None:
    """Check one result against its prompt; take off what came with its states for that.

    Raises:
        CaptureError: names the prompt and the layer.
    """
    *layers, all_finite, input_ids = result["hidden_states"]
    if len(layers) != len(layer_ids):
        raise CaptureError(
            f"prompt {number} has states of {len(layers)} layers",
            needed=f"layers {list(layer_ids)}",
            next_step="report this vLLM and speculators",
        )
    if input_ids.tolist() != prompt:
        raise CaptureError(
            f"prompt {number} has the states of other tokens",
            found=f"{input_ids.tolist()[:8]}... ({len(input_ids)} tokens)",
            needed=f"{prompt[:8]}... ({len(prompt)} tokens)",
            next_step="report this vLLM and model: rows are attributed to the wrong prompt",
        )
    for layer_id, states, finite in zip(layer_ids, layers, all_finite.unbind(1), strict=True):
        if states.shape[0] != len(prompt):
            raise CaptureError(
                f"prompt {number}, layer {layer_id}: wrong number of states",
                found=f"{states.shape[0]} rows",
                needed=f"{len(prompt)}, one a token",
                next_step="report this vLLM and model",
            )
        if not bool(finite.all()):
            row = int((~finite).nonzero()[0])
            raise CaptureError(
                f"prompt {number}, layer {layer_id}: states that are not finite",
                found=f"NaN or infinity at token {row} of {len(prompt)}",
                needed="finite states",
                next_step="leave the prompt out, or load the model in a wider dtype",
            )
    result["hidden_states"] = layers


# -- what a failure leaves ----------------------------------------------------------------------


@contextmanager
def clean_after_failure(generator: Any) -> Iterator[None]:
    """Take the requests of a failed call out of the scheduler: the next one starts clean."""
    try:
        yield
    except BaseException:
        from vllm.v1.request import RequestStatus

        scheduler = generator.scheduler
        # The class's own: the instance's is the engine-steps adapter's, which aborts nothing.
        type(scheduler).finish_requests(
            scheduler, list(scheduler.requests), RequestStatus.FINISHED_ABORTED
        )
        raise


# -- set-up -------------------------------------------------------------------------------------


def initialise(wrapped: Any, generator: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    model_config = generator.vllm_config.model_config
    length = min(PROBE_TOKENS, model_config.max_model_len - 1)
    vocabulary = model_config.get_vocab_size()
    try:
        generator.generate([[(7 * step + 1) % vocabulary for step in range(length)]])
    except Exception as error:
        generator.executor.shutdown()
        raise UnsupportedModelError(
            f"hidden states of {generator.model_path} cannot be captured with certainty",
            found=str(error),
            needed=f"the states of a prompt of {length} tokens, checked",
            next_step="see the reason above; nothing was written",
        ) from error


def patches(context: Context) -> Sequence[Patch]:
    return [
        Wrap(GENERATOR, f"{CLASS}.generate", generate, "generate"),
        Wrap(GENERATOR, f"{CLASS}.__init__", initialise, "generate"),
    ]


ADAPTER = Adapter(
    name="generate",
    symbol="vllm.v1.core.sched.scheduler:Scheduler.finish_requests",
    call_site=f"{GENERATOR}:{CLASS}.generate",
    speculators=">=0.3,<0.5",
    broke=(
        Break(
            "speculators 0.3.0",
            "",
            "a failed call leaves its requests in the scheduler: every later call fails",
            kind="fault",
            at="self.scheduler.add_request",
        ),
        Break(
            "speculators 0.4.0",
            "",
            "results in the order of request ids as text: 0, 1, 10, 11, 2",
            kind="fault",
            at="sorted",
        ),
    ),
    removal="speculators drives vLLM through its public API (0.5.0 does)",
    needed=needed,
    patches=patches,
    premises=(Premise("vllm.v1.request:RequestStatus.FINISHED_ABORTED"),),
)
