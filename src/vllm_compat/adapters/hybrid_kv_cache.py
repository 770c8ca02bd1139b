"""``unify_hybrid_kv_cache_specs``: models with windowed and full attention (Gemma 3, EXAONE 4).

The function rewrites the specs of sliding-window layers as full-attention specs. From 0.24.0 on the
specs carry ``indexes_kv_by_block_stride``, which it does not copy: its own check then finds the
layers to differ and refuses the model. 0.27.0 no longer rewrites them.
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
    return Decision("adapted", f"specs keep their {FIELD} where they are rewritten")


def keep_field(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    (specs,) = args or (kwargs["kv_cache_spec"],)
    before = dict(specs)
    try:
        return wrapped(specs)
    except ValueError:
        from dataclasses import replace

        # It has rewritten them in place before it found them to differ.
        for name, spec in specs.items():
            value = getattr(before[name], FIELD, None)
            if value is not None and value != getattr(spec, FIELD, None):
                specs[name] = replace(spec, **{FIELD: value})
        return wrapped(specs)


def patches(context: Context) -> Sequence[Patch]:
    return [Wrap(GENERATOR, NAME, keep_field, "hybrid-kv-cache")]


ADAPTER = Adapter(
    name="hybrid-kv-cache",
    symbol=SPEC,
    call_site=f"{GENERATOR}:{NAME}",
    speculators=">=0.3,<0.5",
    broke=(
        Break(
            "0.24.0",
            "",
            "indexes_kv_by_block_stride is lost: models with sliding windows are refused",
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
