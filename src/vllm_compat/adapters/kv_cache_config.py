"""``get_kv_cache_config_from_groups``: ``kv_cache_specs`` came and went.

speculators 0.3.0 passes it, 0.4 does not. What a vLLM that wants it expects is the specification of
every layer, which the groups hold as well.
"""

from vllm_compat.adapters.adapter import Break
from vllm_compat.adapters.arguments import argument_adapter

ADAPTER = argument_adapter(
    name="kv-cache-config",
    symbol="vllm.v1.core.kv_cache_utils:get_kv_cache_config_from_groups",
    candidates=("vllm.v1.core.kv_cache_planning:get_kv_cache_config_from_groups",),
    speculators=">=0.3,<0.5",
    broke=(Break("0.12.0", "29143", "kv_cache_specs dropped"),),
    removal="speculators 0.3 and vLLM 0.11 are no longer supported",
    drop=("kv_cache_specs",),
    supply={
        "kv_cache_specs": lambda call: {
            layer: group.kv_cache_spec
            for group in call["kv_cache_groups"]
            for layer in group.layer_names
        }
    },
)
