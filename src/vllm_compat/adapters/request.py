"""``vllm.v1.request.Request``: ``eos_token_id`` moved into the sampling parameters.

Nothing is lost with it: the requests generate one token and stop by length.
"""

from vllm_compat.adapters.adapter import Break
from vllm_compat.adapters.arguments import argument_adapter

ADAPTER = argument_adapter(
    name="request",
    symbol="vllm.v1.request:Request",
    speculators=">=0.3,<0.5",
    broke=(
        Break("0.17.0", "34435", "eos_token_id removed, the positions after it shift"),
        Break("0.21.0", "", "prompt_is_token_ids inserted"),
        Break("0.28.0", "", "session_id inserted"),
        Break("0.31.0", "", "kv_hints added"),
    ),
    removal="speculators no longer passes eos_token_id",
    drop=("eos_token_id",),
)
