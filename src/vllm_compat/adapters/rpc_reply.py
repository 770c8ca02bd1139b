"""``MultiprocExecutor.collective_rpc(unique_reply_rank=...)``: one value, bare or in a list.

0.11.0 replied ``[value]``, 0.11.1 and later the value itself; speculators 0.3.0 takes the first
element of what it gets, 0.4 takes what it gets. Only the reply that speculators reads that way is
touched.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_compat.adapters.adapter import Adapter, Break, Decision, uncovered
from vllm_compat.adapters.premise import Premise
from vllm_compat.context import GENERATOR, Context
from vllm_compat.patching import Patch, Wrap, wrap_method

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SYMBOL = "vllm.v1.executor.multiproc_executor:MultiprocExecutor.collective_rpc"
METHOD = "_get_captured_states"
# The change that made the reply bare gave the method this parameter, which itself is not used.
BARE = Premise(SYMBOL, since="0.11.1", takes=("kv_output_aggregator",))


def needed(context: Context) -> Decision:
    signature = context.probe(SYMBOL).signature
    problems = (
        (f"{SYMBOL} is gone",)
        if signature is None
        else signature.problems(1, ("args", "unique_reply_rank"))
    )
    if problems:
        return uncovered(
            "workers are asked in another way", found="; ".join(problems), needed="(method, args=)"
        )
    bare, wants_list = BARE.holds(context), context.consumer.takes_first_of_reply
    if bare is not wants_list:
        return Decision("fits", "replies the way this speculators reads it")
    return Decision("adapted", "puts the reply in a list" if bare else "takes it out of its list")


def in_list(reply: Any) -> Any:
    return [reply]


def out_of_list(reply: Any) -> Any:
    return reply[0]


class ChangeReply:
    """Wraps the executor's constructor so that the one reply is changed."""

    def __init__(self, change: Any) -> None:
        self.change = change

    def __call__(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        executor = wrapped(*args, **kwargs)
        wrap_method(executor, "collective_rpc", self.changed)
        return executor

    def changed(self, wrapped: Any, executor: Any, args: Any, kwargs: Any) -> Any:
        reply = wrapped(*args, **kwargs)
        return self.change(reply) if args[:1] == (METHOD,) else reply


def patches(context: Context) -> Sequence[Patch]:
    change = in_list if BARE.holds(context) else out_of_list
    return [Wrap(GENERATOR, "MultiprocExecutor", ChangeReply(change), "rpc-reply")]


ADAPTER = Adapter(
    name="rpc-reply",
    symbol=SYMBOL,
    call_site=f"{GENERATOR}:VllmHiddenStatesGenerator.generate",
    speculators=">=0.3,<0.5",
    broke=(
        Break(
            "0.11.1",
            "27142",
            "replies the bare value instead of a list of one",
            kind="return changed",
            at="self.executor.collective_rpc(unique_reply_rank)",
            shows=f"{SYMBOL}(kv_output_aggregator)",
        ),
        Break("0.11.1", "28327", "kv_output_aggregator added"),
        Break("0.28.0", "49585", "ec_output_aggregator added"),
    ),
    removal="speculators 0.3 and vLLM 0.11.0 are no longer supported",
    needed=needed,
    patches=patches,
    premises=(BARE,),
)
