"""Where a step's states wait between the device and the threads that write them.

The model's own stream writes each layer's states into a block on the device, one copy takes the
block to pinned memory on a second stream, and threads write from there. So a step costs the model
one addition a layer, and the copy and the writing go on beside the next steps. All memory is taken
once; when every slot is still being written, the next step waits.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm_compat.errors import CaptureError

if TYPE_CHECKING:
    import torch

    from vllm_compat.capture.batch import Batch
    from vllm_compat.capture.residual import Combine

DEVICE_BLOCKS = 2


class Slot:
    """One step on the host.

    Attributes:
        states: ``[tokens, layers, hidden]`` in the model's dtype.
        norms: the largest magnitude of each token's states, ``[tokens, layers]``; NaN where any is.
        input_ids: what the model was given, ``[tokens]``.
        positions: at which position, ``[tokens]``.
    """

    def __init__(self, empty: Callable[..., torch.Tensor], tokens: int, shape: tuple[int, int],
                 dtype: torch.dtype) -> None:  # fmt: skip
        import torch

        self.states = empty((tokens, *shape), dtype=dtype)
        self.norms = empty((tokens, shape[0]), dtype=dtype)
        self.input_ids = empty((tokens,), dtype=torch.int64)
        self.positions = empty((tokens,), dtype=torch.int64)
        self._ready: torch.cuda.Event | None = None
        self._readers = 0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Until what was copied is there."""
        if self._ready is not None:
            self._ready.synchronize()

    def hold(self, readers: int, ready: torch.cuda.Event | None) -> None:
        """It is used again after so many calls of ``release``."""
        self._readers, self._ready = readers, ready

    def release(self) -> bool:
        """One reader less; whether it was the last."""
        with self._lock:
            self._readers -= 1
            return self._readers == 0


class Staging:
    """Device blocks and host slots, all of the size of the largest step.

    Args:
        device: where the model runs.
        tokens: of the largest step.
        shape: ``(layers, hidden)``.
        dtype: of the states.
        slots: steps that may wait to be written.
        patience: seconds to wait for a slot before giving up.

    Raises:
        CaptureError: there is not that much memory.
    """

    def __init__(
        self,
        device: torch.device,
        tokens: int,
        shape: tuple[int, int],
        dtype: torch.dtype,
        *,
        slots: int,
        patience: float,
    ) -> None:
        import torch

        self._patience = patience
        self._free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        self._device = device
        self._cuda = device.type == "cuda"
        self._slot: Slot | None = None
        self._rows = 0

        def empty(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(size, dtype=dtype, pin_memory=self._cuda)

        try:
            for _ in range(slots):
                self._free.put(Slot(empty, tokens, shape, dtype))
            if self._cuda:
                self._blocks = [
                    (
                        torch.empty((tokens, *shape), dtype=dtype, device=device),
                        torch.empty((tokens, shape[0]), dtype=dtype, device=device),
                        torch.cuda.Event(),
                    )
                    for _ in range(DEVICE_BLOCKS)
                ]
                self._copies = torch.cuda.Stream(device)
        except RuntimeError as error:
            step = tokens * shape[0] * shape[1] * dtype.itemsize / 2**30
            raise CaptureError(
                "not enough memory to stage the states of a step",
                found=str(error).splitlines()[0],
                needed=f"{step:.2f} GiB for a step of {tokens} tokens: {DEVICE_BLOCKS} times on the"
                f" device, {slots} times pinned on the host",
                next_step="lower gpu_memory_utilization or max_num_batched_tokens",
            ) from error

    def begin(self, rows: int) -> None:
        """A step of ``rows`` tokens: wait for a slot and a block.

        Raises:
            CaptureError: none was written for as long as patience lasts.
        """
        import torch

        try:
            self._slot = self._free.get(timeout=self._patience)
        except queue.Empty:
            raise CaptureError(
                f"the disk took no states for {self._patience:.0f} s",
                needed="a target that takes writes",
                next_step="look at the target's file system; the run can be resumed",
            ) from None
        self._rows = rows
        if self._cuda:
            self._blocks.reverse()
            self._states, self._norms, copied = self._blocks[0]
            torch.cuda.current_stream().wait_event(copied)
        else:
            self._states, self._norms = self._slot.states, self._slot.norms

    def layer(
        self, column: int, hidden: torch.Tensor, residual: torch.Tensor | None, combine: Combine
    ) -> None:
        """Take one layer's states."""
        import torch

        state = self._states[: self._rows, column]
        combine(hidden, residual, state)
        norms = torch.linalg.vector_norm(state, ord=float("inf"), dim=1)
        self._norms[: self._rows, column].copy_(norms)

    def end(self, batch: Batch, readers: int) -> Slot:
        """Send the step on its way to the host; ``readers`` will ``release`` it."""
        import torch

        slot, rows = self._slot, self._rows
        assert slot is not None
        self._slot = None
        # The runner's own buffers, which the next step overwrites: on the model's stream.
        slot.input_ids[:rows].copy_(batch.input_ids, non_blocking=True)
        slot.positions[:rows].copy_(batch.positions, non_blocking=True)
        if not self._cuda:
            slot.hold(readers, None)
            return slot
        self._copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copies):
            slot.states[:rows].copy_(self._states[:rows], non_blocking=True)
            slot.norms[:rows].copy_(self._norms[:rows], non_blocking=True)
            self._blocks[0][2].record(self._copies)
            ready = torch.cuda.Event()
            ready.record(self._copies)
        slot.hold(readers, ready)
        return slot

    def cancel(self) -> None:
        """Give back the slot of a step that did not end."""
        if self._slot is not None:
            self._free.put(self._slot)
            self._slot = None

    def release(self, slot: Slot) -> None:
        """A reader is done with a slot."""
        if slot.release():
            self._free.put(slot)
