"""The KV cache layout: resolved and told to the workers, as vLLM's engine does before it plans.

From 0.29 on planning the KV cache and building it both need the layout on the config; vLLM resolves
it between asking the workers for their specifications and planning, so that is where we do.
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

SYMBOL = "vllm.v1.executor.abstract:Executor.set_kv_cache_layout"
RESOLVE = "vllm.v1.attention.backends.utils:resolve_kv_cache_layout"
INTERLEAVE = "cp_kv_cache_interleave_size"
OFFER = "vllm.v1.worker.worker_base:WorkerBase.get_supported_kv_cache_layouts"


def needed(context: Context) -> Decision:
    publish, resolve = context.probe(SYMBOL), context.probe(RESOLVE)
    if publish.status == "absent":
        return Decision("fits", "this vLLM has no layout to resolve")
    problems: tuple[str, ...]
    if publish.signature is None:
        problems = (f"{SYMBOL} is no function",)
    else:
        problems = publish.signature.problems(1 + publish.signature.accepts(INTERLEAVE), ())
    if resolve.signature is None:
        problems = (*problems, f"{RESOLVE} is {resolve.status}")
    else:
        problems = (*problems, *resolve.signature.problems(3, ()))
    if problems:
        return uncovered(
            "the KV cache layout is resolved in another way",
            found=f"set_kv_cache_layout{publish.signature}",
            needed="; ".join(problems),
        )
    return Decision("adapted", "resolves the layout and tells the workers")


class ResolveLayout:
    """Wraps the executor's constructor so that its answer to ``get_kv_cache_spec`` is followed up.

    ``interleave`` says whether this vLLM also wants the interleave size published.
    """

    def __init__(self, interleave: bool) -> None:
        self.interleave = interleave

    def __call__(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        executor = wrapped(*args, **kwargs)
        wrap_method(executor, "collective_rpc", self.after_specs)
        return executor

    def after_specs(self, wrapped: Any, executor: Any, args: Any, kwargs: Any) -> Any:
        reply = wrapped(*args, **kwargs)
        if (args[0] if args else kwargs.get("method")) != "get_kv_cache_spec":
            return reply
        from vllm.v1.attention.backends.utils import resolve_kv_cache_layout

        config = executor.vllm_config
        layout = resolve_kv_cache_layout(
            config,
            wrapped("get_supported_kv_cache_layouts"),
            [spec for specs in reply for spec in specs.values()],
        )
        extra = (getattr(config.parallel_config, INTERLEAVE),) if self.interleave else ()
        executor.set_kv_cache_layout(layout.name, *extra)
        return reply


def patches(context: Context) -> Sequence[Patch]:
    signature = context.probe(SYMBOL).signature
    assert signature is not None
    wrapper = ResolveLayout(signature.accepts(INTERLEAVE))
    return [Wrap(GENERATOR, "MultiprocExecutor", wrapper, "kv-cache-layout")]


ADAPTER = Adapter(
    name="kv-cache-layout",
    symbol=SYMBOL,
    call_site=f"{GENERATOR}:MultiprocExecutor",
    speculators=">=0.3,<0.5",
    broke=(
        Break(
            "0.29.0",
            "",
            "workers must be told the layout before initialize_from_config",
            kind="behaviour changed",
            at="self.executor.initialize_from_config",
            shows=SYMBOL,
        ),
        Break("0.33.0", "", "set_kv_cache_layout also takes the interleave size"),
    ),
    removal="speculators drives vLLM through its public API (0.5.0 does)",
    needed=needed,
    patches=patches,
    premises=(
        Premise(SYMBOL, since="0.29.0"),
        Premise(SYMBOL, since="0.33.0", takes=(INTERLEAVE,)),
        Premise("vllm.config:ParallelConfig", since="0.33.0", takes=(INTERLEAVE,)),
        Premise(OFFER, since="0.29.0", positional=0),
    ),
)
