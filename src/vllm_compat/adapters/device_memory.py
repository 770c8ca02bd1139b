"""Free device memory, which sizes the KV cache: of the device that vLLM runs on, whichever it is.

speculators 0.3.0 asks CUDA and raises without it; 0.4 asks the accelerator and takes "none" for
zero bytes. On a CPU it is the host's free memory, and no more than ``VLLM_CPU_KVCACHE_SPACE`` where
that is set, the bound that vLLM itself keeps to.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from vllm_compat.adapters.adapter import Adapter, Break, Decision
from vllm_compat.adapters.premise import Premise
from vllm_compat.context import GENERATOR, Context
from vllm_compat.patching import Patch, Replace, Wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SYMBOL = "vllm.platforms:current_platform"


def needed(context: Context) -> Decision:
    return Decision("adapted", "asks the device that vLLM runs on")


def mem_get_info() -> tuple[int, int]:
    """Free and total bytes of the current accelerator, or of the host where vLLM runs on CPU."""
    import torch
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        device = torch.get_device_module(torch.accelerator.current_accelerator())
        if hasattr(device, "mem_get_info"):
            free, total = device.mem_get_info()
            return int(free), int(total)
    import psutil

    memory = psutil.virtual_memory()
    limit = int(os.environ.get("VLLM_CPU_KVCACHE_SPACE") or 0) * 2**30
    return min(memory.available, limit or memory.available), memory.total


def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> tuple[int, int]:
    return mem_get_info()


def torch_with_memory(torch: Any) -> Any:
    """speculators' name ``torch``, whose ``cuda.mem_get_info`` is ours; all else is torch's."""
    import wrapt

    class Cuda(wrapt.ObjectProxy):  # type: ignore[type-arg]
        def mem_get_info(self) -> tuple[int, int]:
            return mem_get_info()

    class Torch(wrapt.ObjectProxy):  # type: ignore[type-arg]
        @property
        def cuda(self) -> Any:
            return Cuda(self.__wrapped__.cuda)

    return Torch(torch)


def patches(context: Context) -> Sequence[Patch]:
    if context.consumer.calls("torch.cuda.mem_get_info"):
        return [Replace(GENERATOR, "torch", torch_with_memory, "device-memory")]
    return [Wrap(GENERATOR, "mem_get_info", wrapper, "device-memory")]


ADAPTER = Adapter(
    name="device-memory",
    symbol=SYMBOL,
    call_site=f"{GENERATOR}:VllmHiddenStatesGenerator.__init__",
    speculators=">=0.3,<0.5",
    broke=(
        Break(
            "speculators 0.3.0",
            "",
            "asks CUDA for free memory, whatever the device",
            kind="environment",
            at="torch.cuda.mem_get_info",
        ),
        Break(
            "speculators 0.4.0",
            "",
            "free memory is taken for 0 bytes without an accelerator",
            kind="environment",
            at="mem_get_info",
        ),
    ),
    removal="speculators drives vLLM through its public API (0.5.0 does)",
    needed=needed,
    patches=patches,
    premises=(Premise(SYMBOL),),
)
