"""One small module for each call site of speculators; ``REGISTRY`` holds them in order.

Several adapters may wrap the same name; the later one is then the outer one. ``engine-steps`` comes
before ``generate``, whose set-up call already needs whole steps.
"""

from vllm_compat.adapters import (
    block_size,
    device_memory,
    engine_steps,
    generate,
    hash_function,
    hybrid_kv_cache,
    kv_cache_config,
    kv_cache_functions,
    kv_cache_layout,
    prefix_caching,
    request,
    rpc_reply,
    scheduler,
    scheduler_config,
    tokenizer,
    transformers_torch,
    transport,
    worker_capture,
    worker_processes,
)
from vllm_compat.adapters.adapter import Adapter, Break, Decision
from vllm_compat.adapters.registry import Registry

__all__ = ["REGISTRY", "Adapter", "Break", "Decision", "Registry"]

REGISTRY = Registry(
    [
        module.ADAPTER
        for module in (
            transformers_torch,
            kv_cache_functions,
            hybrid_kv_cache,
            hash_function,
            tokenizer,
            scheduler_config,
            prefix_caching,
            block_size,
            kv_cache_layout,
            rpc_reply,
            worker_processes,
            device_memory,
            kv_cache_config,
            scheduler,
            request,
            engine_steps,
            worker_capture,
            transport,
            generate,
        )
    ]
)
