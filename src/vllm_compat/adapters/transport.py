"""How states come back: in memory that worker and parent share, not through vLLM's queue.

``MultiprocExecutor.collective_rpc`` pickles the reply of a worker into its message queue, 0.3 GB/s
of hidden states where a prefill makes ten times that. The worker's reply becomes a description of
where the states lie, and the parent's side of the call makes tensors of it again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from vllm_compat.adapters.adapter import Adapter, Break, Decision
from vllm_compat.context import GENERATOR, WORKER, Context
from vllm_compat.patching import Patch, Wrap, wrap_method

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

METHOD = "_get_captured_states"
# "queue" keeps vLLM's own way. The prefix is one that vLLM hands on to its workers.
VARIABLE = "VLLM_COMPAT_TRANSPORT"


def needed(context: Context) -> Decision:
    return Decision("adapted", "hidden states come through shared memory")


def describe(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    """In the worker: its reply, with a description in the place of every large tensor."""
    reply = wrapped(*args, **kwargs)
    if os.environ.get(VARIABLE) == "queue":
        return reply
    return replaced(reply, worker._recorder.arena.share)


def with_reader(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Wraps the executor's constructor, so that its replies are read where they lie."""
    from vllm_compat.capture.arena import Reader, SharedTensor

    reader = Reader()

    def opened(ask: Any, executor: Any, args: Any, kwargs: Any) -> Any:
        reply = ask(*args, **kwargs)
        if args[:1] != (METHOD,):
            return reply
        chunks: set[tuple[int, int]] = set()

        def open_shared(value: Any) -> Any:
            if not isinstance(value, SharedTensor):
                return value
            chunks.add((value.pid, value.serial))
            return reader.open(value)

        tensors = replaced(reply, open_shared)
        reader.forget(chunks)
        return tensors

    executor = wrapped(*args, **kwargs)
    wrap_method(executor, "collective_rpc", opened)
    return executor


def replaced(reply: Any, replace: Any) -> Any:
    """The same dicts and lists, with ``replace(value)`` for every value in them."""
    if isinstance(reply, dict):
        return {key: replaced(value, replace) for key, value in reply.items()}
    if isinstance(reply, list):
        return [replaced(value, replace) for value in reply]
    return None if reply is None else replace(reply)


def patches(context: Context) -> Sequence[Patch]:
    return [
        Wrap(WORKER, f"HiddenStatesWorkerExtension.{METHOD}", describe, "transport"),
        Wrap(GENERATOR, "MultiprocExecutor", with_reader, "transport"),
    ]


ADAPTER = Adapter(
    name="transport",
    symbol="vllm.v1.executor.multiproc_executor:MultiprocExecutor.collective_rpc",
    call_site=f"{GENERATOR}:VllmHiddenStatesGenerator.generate",
    speculators=">=0.3,<0.5",
    broke=(Break("speculators 0.3.0", "", "states are pickled: a tenth of the speed of prefill"),),
    removal="speculators drives vLLM through its public API (0.5.0 does)",
    needed=needed,
    patches=patches,
)
