"""``unify_hybrid_kv_cache_specs``: models with windowed and full attention (Gemma 3, EXAONE 4).

The function rewrites the specs of sliding-window layers as full-attention specs, and refuses the
model where the layers differ then. From 0.24.0 on specs carry ``indexes_kv_by_block_stride``, which
it does not copy; from 0.25.0 on window layers choose a block size of their own, which vLLM's own
planning levels out and this function does not. 0.27.0 no longer rewrites them.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_compat.adapters.adapter import Adapter, Break, Decision
from vllm_compat.context import GENERATOR, Context
from vllm_compat.patching import Patch, Wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "unify_hybrid_kv_cache_specs"
SPEC = "vllm.v1.kv_cache_interface:FullAttentionSpec"
FIELD = "indexes_kv_by_block_stride"


def needed(context: Context) -> Decision:
    if not context.consumer.calls(NAME):
        return Decision("unused", f"this speculators does not call {NAME}")
    signature = context.probe(SPEC).signature
    if signature is None or not signature.accepts(FIELD):
        return Decision("fits", f"specs have no {FIELD} to lose")
    return Decision("adapted", "specs of sliding-window layers stay like the others'")


def level(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    (specs,) = args or (kwargs["kv_cache_spec"],)
    before = dict(specs)
    try:
        return wrapped(specs)
    except ValueError:
        from dataclasses import replace

        # It has rewritten them in place before it found them to differ.
        full = {
            spec.block_size
            for spec in before.values()
            if getattr(spec, "sliding_window", None) is None
        }
        for name, spec in specs.items():
            kept = {FIELD: getattr(before[name], FIELD)} if hasattr(before[name], FIELD) else {}
            size = {"block_size": next(iter(full))} if len(full) == 1 else {}
            specs[name] = replace(spec, **kept, **size)
        return wrapped(specs)


def patches(context: Context) -> Sequence[Patch]:
    return [Wrap(GENERATOR, NAME, level, "hybrid-kv-cache")]


ADAPTER = Adapter(
    name="hybrid-kv-cache",
    symbol=SPEC,
    call_site=f"{GENERATOR}:{NAME}",
    speculators=">=0.3,<0.5",
    broke=(
        Break(
            "0.24.0",
            "",
            "specs of sliding-window layers come to differ: their models are refused",
            kind="behaviour changed",
            symbol="vllm.v1.core.kv_cache_utils:unify_hybrid_kv_cache_specs",
            at=NAME,
            shows=f"{SPEC}({FIELD})",
            until="0.27.0",
        ),
    ),
    removal="vLLM 0.24 to 0.26 are no longer supported",
    needed=needed,
    patches=patches,
)
