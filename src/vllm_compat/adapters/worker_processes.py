"""Worker processes: no start that the adapters would not reach, and no capture in one they did not.

Patches do not cross a spawn. vLLM's ``vllm.general_plugins`` entry point puts them on in every
worker, unless ``VLLM_PLUGINS`` leaves this package out or the package is not installed where the
worker looks. Both are seen before the workers are started; and before anything is captured, they
are asked which adapters they run with.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from vllm_compat.adapters.adapter import Adapter, Break, Decision
from vllm_compat.context import GENERATOR, Context
from vllm_compat.errors import WorkerNotAdaptedError
from vllm_compat.patching import Patch, Wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SYMBOL = "vllm.plugins:load_general_plugins"
CLASS = "VllmHiddenStatesGenerator"
GROUP, PLUGIN = "vllm.general_plugins", "vllm_compat"


def needed(context: Context) -> Decision:
    return Decision("adapted", "checks that every worker runs with the same adapters")


def adapters_here(worker: Any) -> tuple[str, ...]:
    """The adapters on in the process that this is called in. Sent to the workers by name."""
    from vllm_compat.session import active_adapters

    return active_adapters()


def start_within_reach(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Wraps the executor's constructor, which starts the workers and loads the model."""
    from importlib.metadata import entry_points

    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and PLUGIN not in allowed.split(","):
        raise WorkerNotAdaptedError(
            "the workers would start without the adapters",
            found=f"VLLM_PLUGINS={allowed}",
            needed=f"{PLUGIN} among them",
            next_step=f"VLLM_PLUGINS={allowed},{PLUGIN}, or leave it unset",
        )
    if not any(entry.name == PLUGIN for entry in entry_points(group=GROUP)):
        raise WorkerNotAdaptedError(
            "the workers would start without the adapters",
            found="vllm-compat is importable here but not installed",
            needed=f"its entry point in {GROUP}, through which vLLM finds it",
            next_step="pip install vllm-compat (or pip install -e . in its checkout)",
        )
    return wrapped(*args, **kwargs)


def ask_workers(wrapped: Any, generator: Any, args: Any, kwargs: Any) -> Any:
    here = adapters_here(None)
    for rank, there in enumerate(generator.executor.collective_rpc(adapters_here)):
        if tuple(there) != here:
            generator.executor.shutdown()
            raise WorkerNotAdaptedError(
                f"worker {rank} runs without the adapters of its parent",
                found=", ".join(there) or "none",
                needed=", ".join(here),
                next_step="VLLM_PLUGINS, where set, must name vllm_compat; and vllm-compat must be"
                " installed in the environment the workers run in",
            )
    return wrapped(*args, **kwargs)


def patches(context: Context) -> Sequence[Patch]:
    return [
        Wrap(GENERATOR, "MultiprocExecutor", start_within_reach, "worker-processes"),
        Wrap(GENERATOR, f"{CLASS}._setup_capture", ask_workers, "worker-processes"),
    ]


ADAPTER = Adapter(
    name="worker-processes",
    symbol=SYMBOL,
    call_site=f"{GENERATOR}:{CLASS}._setup_capture",
    speculators=">=0.3,<0.5",
    broke=(Break("0.11.0", "", "workers are spawned and share no patches with their parent"),),
    removal="never: it guards this package's own reach",
    needed=needed,
    patches=patches,
)
