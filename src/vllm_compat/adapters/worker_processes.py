"""Worker processes: asked, before anything is captured, whether they run with the same adapters.

Patches do not cross a spawn. vLLM's ``vllm.general_plugins`` entry point puts them on in every
worker, unless ``VLLM_PLUGINS`` leaves this package out or the package is not installed where the
worker looks; a worker without them would run speculators' own capture.
"""

from collections.abc import Sequence
from typing import Any

from vllm_compat.adapters.adapter import Adapter, Break, Decision
from vllm_compat.context import GENERATOR, Context
from vllm_compat.errors import WorkerNotAdaptedError
from vllm_compat.patching import Patch, Wrap

SYMBOL = "vllm.plugins:load_general_plugins"


def needed(context: Context) -> Decision:
    return Decision("adapted", "checks that every worker runs with the same adapters")


def adapters_here(worker: Any) -> tuple[str, ...]:
    """The adapters on in the process that this is called in. Sent to the workers by name."""
    from vllm_compat.session import active_adapters

    return active_adapters()


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
    path = "VllmHiddenStatesGenerator._setup_capture"
    return [Wrap(GENERATOR, path, ask_workers, "worker-processes")]


ADAPTER = Adapter(
    name="worker-processes",
    symbol=SYMBOL,
    call_site=f"{GENERATOR}:VllmHiddenStatesGenerator._setup_capture",
    speculators=">=0.3,<0.5",
    broke=(Break("0.11.0", "", "workers are spawned and share no patches with their parent"),),
    removal="never: it guards this package's own reach",
    needed=needed,
    patches=patches,
)
