"""Memory that a worker fills and its parent reads in place.

vLLM sends what a worker replies through a queue, pickled: 0.3 GB/s. A prefill makes ten times that.
Here the worker's copies go from the device straight into memory that both processes map, and only
a description of it goes through the queue.

The memory is a `memfd`: a file without a name, which lives as long as a process has it open or
mapped. So whatever ends whichever process, nothing stays behind. The parent opens it through the
worker's ``/proc/<pid>/fd``.

A chunk of memory is used again once its reader has let go of everything it took from it: the reader
says so in the chunk's first byte.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from typing import TYPE_CHECKING, NamedTuple

from vllm_compat.errors import CaptureError

if TYPE_CHECKING:
    import torch

HEADER = 4096
# The least that is mapped and locked at once, and what a tensor may keep from being used again.
CHUNK = 64 << 20
ALIGNMENT = 64
_FREE, _LENT = b"\0", b"\1"


class SharedTensor(NamedTuple):
    """Where a tensor lies: what a worker sends in its place."""

    pid: int
    descriptor: int
    serial: int
    offset: int
    shape: tuple[int, ...]
    dtype: str


class _Chunk:
    """One memfd, mapped by the worker that made it."""

    def __init__(self, size: int, serial: int, pin: bool) -> None:
        self.serial = serial
        self.size = HEADER + size
        self.descriptor = os.memfd_create(f"vllm_compat-{serial}", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, self.size)
        self.memory = mmap.mmap(self.descriptor, self.size)
        self.bytes = _as_tensor(self.memory)
        self.used = HEADER
        self._pinned = pin and _pin(self.bytes)

    @property
    def free(self) -> bool:
        return self.memory[:1] == _FREE

    def lend(self) -> None:
        self.memory[:1] = _LENT

    def close(self) -> None:
        if self._pinned:
            _unpin(self.bytes)
        del self.bytes
        # Tensors into it may still be alive; then it goes with the last of them.
        os.close(self.descriptor)


class Arena:
    """A worker's shared memory: room for tensors, handed out one after the other.

    Args:
        pin: lock the memory for copies from a CUDA device, which makes them fast and asynchronous.
    """

    def __init__(self, pin: bool) -> None:
        self._pin = pin
        self._serial = 0
        self._open: list[_Chunk] = []
        self._lent: list[_Chunk] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in shared memory, not initialised, valid until `reset` and the reader's end.

        In memory of this process alone where the system has no memfd.
        """
        if not hasattr(os, "memfd_create"):
            import torch

            return torch.empty(shape, dtype=dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        chunk = self._with_room(nbytes)
        start, chunk.used = chunk.used, _aligned(chunk.used + nbytes)
        return chunk.bytes[start : start + nbytes].view(dtype).view(shape)

    def share(self, tensor: torch.Tensor) -> SharedTensor | torch.Tensor:
        """Describe a tensor that `empty` gave, and keep its memory until the reader is done.

        Another tensor is given back as it is.
        """
        address = tensor.data_ptr()
        for chunk in self._open:
            start = chunk.bytes.data_ptr()
            if start <= address < start + chunk.size:
                chunk.lend()
                return SharedTensor(
                    os.getpid(),
                    chunk.descriptor,
                    chunk.serial,
                    address - start,
                    tuple(tensor.shape),
                    str(tensor.dtype).removeprefix("torch."),
                )
        return tensor

    def reset(self) -> None:
        """Forget what was handed out; chunks that a reader still has are left to it."""
        chunks = self._open + self._lent
        # What the call before did not need goes back to the system.
        spare = [chunk for chunk in chunks if chunk.free and chunk.used == HEADER]
        for chunk in spare:
            chunk.close()
        kept = [chunk for chunk in chunks if chunk not in spare]
        self._lent = [chunk for chunk in kept if not chunk.free]
        self._open = [chunk for chunk in kept if chunk.free]
        for chunk in self._open:
            chunk.used = HEADER

    def _with_room(self, nbytes: int) -> _Chunk:
        for chunk in self._open:
            if chunk.used + nbytes <= chunk.size:
                return chunk
        self._serial += 1
        chunk = _Chunk(max(CHUNK, nbytes), self._serial, self._pin)
        self._open.append(chunk)
        return chunk


class Reader:
    """The parent's side: opens what workers describe; a chunk is mapped once and kept."""

    def __init__(self) -> None:
        self._mapped: dict[tuple[int, int], tuple[mmap.mmap, list[int]]] = {}

    def open(self, shared: SharedTensor) -> torch.Tensor:
        """The tensor itself, over the worker's memory, which stays lent as long as it lives, or
        what was made of it.

        Its storage is its own, not the chunk's: saving it saves no more than itself.

        Raises:
            CaptureError: this process may not open the worker's memory.
        """
        import numpy
        import torch

        memory, lent = self._chunk(shared)
        dtype: torch.dtype = getattr(torch, shared.dtype)
        count = math.prod(shared.shape)
        if not count:
            return torch.empty(shared.shape, dtype=dtype)
        array = numpy.frombuffer(memory, numpy.uint8, count * dtype.itemsize, shared.offset)
        lent[0] += 1
        weakref.finalize(array, _return, memory, lent)
        tensor = torch.from_numpy(array).view(dtype).view(shared.shape)
        # speculators clones every tensor it is sent, which takes as long as the prefill. This one
        # is nobody else's already: its clone is itself. (A part of it is copied as ever.)
        sent = tensor.detach()
        sent.clone = lambda: tensor
        return sent

    def _chunk(self, shared: SharedTensor) -> tuple[mmap.mmap, list[int]]:
        key = shared.pid, shared.serial
        if key not in self._mapped:
            path = f"/proc/{shared.pid}/fd/{shared.descriptor}"
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                raise CaptureError(
                    "the memory that a worker put hidden states into cannot be opened",
                    found=str(error),
                    needed="a worker of the same user on the same machine",
                    next_step="VLLM_COMPAT_TRANSPORT=queue sends them through vLLM's own queue",
                ) from error
            try:
                self._mapped[key] = (mmap.mmap(descriptor, 0), [0])
            finally:
                os.close(descriptor)
        return self._mapped[key]

    def forget(self, keep: set[tuple[int, int]]) -> None:
        """Unmap chunks that are not among ``keep`` (pid, serial) once nothing of them is in use."""
        for key in [key for key in self._mapped if key not in keep]:
            del self._mapped[key]


def _return(memory: mmap.mmap, lent: list[int]) -> None:
    lent[0] -= 1
    if not lent[0]:
        memory[:1] = _FREE


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _as_tensor(memory: mmap.mmap) -> torch.Tensor:
    import torch

    return torch.frombuffer(memory, dtype=torch.uint8)


def _pin(tensor: torch.Tensor) -> bool:
    """Lock the pages for the device; without it copies are slower, not wrong."""
    import torch

    status = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.numel(), 0)
    return int(status) == 0


def _unpin(tensor: torch.Tensor) -> None:
    import torch

    torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())
