"""``vllm.v1.core.sched.scheduler.Scheduler``: block size, and what must be registered first.

The block size is read from the KV cache the scheduler is to manage, as vLLM's engine does, and told
to the cache config; speculators 0.3.0 passes none and 0.4 a constant, which is wrong wherever the
platform chose another one. From 0.23 on a scheduler also needs the kinds of KV cache registered,
which vLLM does on the way into its engine, a way that speculators does not take.
"""

from __future__ import annotations

from collections.abc import Mapping

from vllm_compat.adapters.adapter import Break
from vllm_compat.adapters.arguments import argument_adapter
from vllm_compat.adapters.premise import Premise
from vllm_compat.errors import VllmCompatError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SYMBOL = "vllm.v1.core.sched.scheduler:Scheduler"
REGISTER = "vllm.v1.core.single_type_kv_cache_manager:register_all_kvcache_specs"
INTERFACE = "vllm.v1.kv_cache_interface"


def block_size(call: Mapping[str, Any]) -> int:
    from vllm.v1.core import single_type_kv_cache_manager as managers

    # A premise below: where it is missing, this vLLM is older than it.
    register = getattr(managers, "register_all_kvcache_specs", None)
    if register is not None:
        register(call["vllm_config"])
    kv_cache = call["kv_cache_config"]
    size: int = min(group.kv_cache_spec.block_size for group in kv_cache.kv_cache_groups)
    if kv_cache.num_blocks < 2:  # one is vLLM's null block
        raise VllmCompatError(
            "no room for a KV cache",
            found=f"{kv_cache.num_blocks} blocks of {size} tokens in a fifth of"
            " gpu_memory_utilization times the free memory",
            needed="at least 2",
            next_step="free device memory, or raise gpu_memory_utilization",
        )
    call["vllm_config"].cache_config.block_size = size
    return size


ADAPTER = argument_adapter(
    name="scheduler",
    symbol=SYMBOL,
    premises=(
        Premise(SYMBOL, since="0.11.1", takes=("block_size",)),
        Premise(REGISTER, since="0.23.0", positional=1),
        Premise(f"{INTERFACE}:KVCacheConfig", takes=("num_blocks", "kv_cache_groups")),
        Premise(f"{INTERFACE}:KVCacheGroupSpec", takes=("kv_cache_spec",)),
        Premise(f"{INTERFACE}:FullAttentionSpec", takes=("block_size",)),
    ),
    speculators=">=0.3,<0.5",
    broke=(
        Break("0.11.1", "26296", "block_size required, fourth positional"),
        Break("0.20.0", "40860", "hash_block_size inserted before mm_registry"),
        Break(
            "0.23.0",
            "",
            "register_all_kvcache_specs must have run before",
            kind="behaviour changed",
            at="Scheduler",
            shows=REGISTER,
        ),
    ),
    removal="speculators drives vLLM through its public API (0.5.0 does)",
    drop=("block_size",),
    force={"block_size": block_size},
    reason="the KV cache's own",
)
