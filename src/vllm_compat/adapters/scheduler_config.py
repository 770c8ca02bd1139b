"""``vllm.config.SchedulerConfig``: what speculators leaves to vLLM's own entry points to fill in.

``async_scheduling`` is the one whose signature tells nothing: None came to mean "on wherever
possible", and worker replies then arrive as objects still to be waited for, while speculators runs
one step after the other.
"""

from vllm_compat.adapters.adapter import Break
from vllm_compat.adapters.arguments import argument_adapter, constant
from vllm_compat.adapters.premise import Premise

SYMBOL = "vllm.config:SchedulerConfig"

ADAPTER = argument_adapter(
    name="scheduler-config",
    symbol=SYMBOL,
    premises=(
        Premise(SYMBOL, takes=("async_scheduling", "enable_chunked_prefill")),
        Premise(SYMBOL, since="0.11.1", takes=("is_encoder_decoder",)),
    ),
    speculators=">=0.3,<0.5",
    broke=(
        Break("0.11.1", "25075, 28733", "is_encoder_decoder accepted"),
        Break("0.12.0", "29859", "is_encoder_decoder required"),
        Break(
            "0.14.0",
            "34292",
            "async_scheduling left out means on where possible",
            kind="behaviour changed",
            at="SchedulerConfig",
        ),
    ),
    removal="speculators drives vLLM through its public API (0.5.0 does)",
    drop=("is_encoder_decoder",),
    supply={
        "is_encoder_decoder": constant(False),
        "async_scheduling": constant(False),
        "enable_chunked_prefill": constant(True),
    },
    reason="speculators runs its steps one after the other",
)
