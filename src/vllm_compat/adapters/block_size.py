"""``vllm.config.CacheConfig(block_size=...)``: left to the platform where it chooses one.

speculators asks for blocks of 16 tokens. From 0.18 on vLLM picks the size its attention backend
wants, unless told; told 16, backends that take only others are lost (the CPU's take multiples of 32
from 0.29 on, FlashMLA 64).
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_compat.adapters.adapter import Adapter, Break, Decision
from vllm_compat.adapters.premise import Premise
from vllm_compat.context import GENERATOR, Context
from vllm_compat.patching import Patch, Wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SYMBOL = "vllm.platforms.interface:Platform.update_block_size_for_backend"
PICKS = Premise(SYMBOL, since="0.18.0")


def needed(context: Context) -> Decision:
    if not any("block_size" in call.keywords for call in context.consumer.calls("CacheConfig")):
        return Decision("unused", "this speculators asks for no block size")
    if not PICKS.holds(context):
        return Decision("fits", "this vLLM takes the block size it is given")
    return Decision("adapted", "drops block_size: this vLLM picks the one its backend wants")


def without_block_size(wrapped: Any, instance: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    return wrapped(*args, **{name: v for name, v in kwargs.items() if name != "block_size"})


def patches(context: Context) -> Sequence[Patch]:
    return [Wrap(GENERATOR, "CacheConfig", without_block_size, "block-size")]


ADAPTER = Adapter(
    name="block-size",
    symbol=SYMBOL,
    call_site=f"{GENERATOR}:CacheConfig",
    speculators=">=0.3,<0.5",
    broke=(
        Break(
            "0.18.0",
            "",
            "a given block size binds the choice of attention backend",
            kind="behaviour changed",
            symbol="vllm.config:CacheConfig",
            at="CacheConfig(block_size)",
            shows=SYMBOL,
        ),
        Break(
            "0.29.0",
            "",
            "the CPU's attention takes blocks of multiples of 32 only",
            kind="behaviour changed",
            symbol="vllm.config:CacheConfig",
            at="CacheConfig(block_size)",
        ),
    ),
    removal="speculators no longer passes block_size",
    needed=needed,
    patches=patches,
    premises=(PICKS,),
)
