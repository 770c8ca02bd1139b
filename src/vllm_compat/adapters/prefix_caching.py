"""``vllm.config.CacheConfig(enable_prefix_caching=...)``: off, since a cached prefix has no states.

A prefix found in the cache is not computed again, so its hidden states are missing. speculators
0.3.0 leaves the default, which is on; from vLLM 0.13 on its requests, which carry no block hash,
die on an assertion instead.
"""

from vllm_compat.adapters.adapter import Break
from vllm_compat.adapters.arguments import argument_adapter, constant
from vllm_compat.adapters.premise import Premise

ADAPTER = argument_adapter(
    name="prefix-caching",
    symbol="vllm.config:CacheConfig",
    premises=(Premise("vllm.config:CacheConfig", takes=("enable_prefix_caching",)),),
    speculators=">=0.3,<0.5",
    broke=(
        Break(
            "speculators 0.3.0",
            "",
            "leaves prefix caching on: repeated prefixes have no states",
            kind="fault",
            at="CacheConfig",
        ),
    ),
    removal="speculators 0.3 is no longer supported (0.4.0 switches it off itself)",
    supply={"enable_prefix_caching": constant(False)},
    reason="a cached prefix is not computed, so it has no states",
)
