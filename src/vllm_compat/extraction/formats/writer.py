"""Writes one sample's file as its states arrive."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_compat.extraction.errors import TargetError, explained
from vllm_compat.extraction.files import Bytes, temporary_name, write_all
from vllm_compat.extraction.formats import dtype_name, get_format

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A finished file: ``checksum`` is xxh3_64 of all its bytes, ``shape`` that of its states."""

    index: int
    file: str
    bytes: int
    checksum: str
    shape: tuple[int, int, int]
    dtype: str


class SampleWriter:
    """Takes a sample's rows in order and puts them on disk, under a temporary name until whole.

    Rows are neither kept nor copied: each ``write`` hashes and writes the memory it is given, in
    one call each, so that the threads that write seldom ask for the interpreter's lock. Any number
    of writers may be at work at the same time; one writer is used by one thread at a time.

    Args:
        file_format: one of ``formats.FORMATS``.
        folder: where the file goes; it must exist.
        sample_index: the sample's index, which names the file.
        token_ids: the ids the states are of.
        loss_mask: as long; None stands for ones.
        num_layers: how many layers each row holds.
        hidden: the model's hidden size.
        dtype: the states' dtype.

    Raises:
        DiskFullError: no room is left.
        TargetError: the folder is gone or cannot be written to.
    """

    def __init__(  # noqa: PLR0917 - in the order a file is thought of
        self,
        file_format: str,
        folder: str | os.PathLike[str],
        sample_index: int,
        token_ids: Sequence[int],
        loss_mask: Sequence[int] | None,
        num_layers: int,
        hidden: int,
        dtype: torch.dtype,
    ) -> None:
        import xxhash

        form = get_format(file_format)
        self._folder = os.fspath(folder)
        self._index = sample_index
        self._name = form.file_name(sample_index)
        self._temporary = os.path.join(self._folder, temporary_name(self._name))
        self._shape = (len(token_ids), num_layers, hidden)
        self._dtype = dtype
        self._rows = 0
        self._size = 0
        self._hash = xxhash.xxh3_64()
        self._fd = -1
        mask = [1] * len(token_ids) if loss_mask is None else loss_mask
        try:
            with self._explained():
                before, self._after = form.frame(token_ids, mask, self._shape, dtype)
                self._fd = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
                self._append(before)
        except BaseException:
            self.abort()
            raise

    def _explained(self) -> AbstractContextManager[None]:
        return explained(f"cannot write sample {self._index}", self._folder)

    def _append(self, data: Bytes) -> None:
        self._hash.update(data)
        self._size = write_all(self._fd, data, self._size)

    def write(self, start: int, rows: torch.Tensor) -> None:
        """Take the rows of tokens ``start`` on, ``[m, layers, hidden]``, contiguous, on the CPU.

        Their memory may be used again once this returns.

        Raises:
            TargetError: rows out of order, of another shape or dtype; or as at construction.
        """
        import torch

        if (
            start != self._rows
            or start + rows.shape[0] > self._shape[0]
            or rows.shape[1:] != self._shape[1:]
            or rows.dtype is not self._dtype
            or not rows.is_contiguous()
        ):
            raise TargetError(
                f"sample {self._index}: rows that do not fit",
                found=f"{list(rows.shape)} {rows.dtype} from token {start} on"
                + ("" if rows.is_contiguous() else ", not contiguous"),
                needed=f"{list(self._shape)} {self._dtype} in all, of which {self._rows} tokens "
                "are written",
                next_step="abort this sample: its states would be another's",
            )
        if not rows.shape[0]:
            return  # Python has no bytes-like view of nothing
        with self._explained():
            self._append(memoryview(rows.view(torch.uint8).numpy()).cast("B"))
        self._rows += rows.shape[0]

    def finish(self, *, durable: bool = True) -> FileRecord:
        """Give the file its name; with ``durable``, its bytes are on the medium before that.

        The name itself is durable once the folder is synced, which ``Target.record`` does.

        Raises:
            TargetError: rows are missing; or as at construction.
        """
        if self._rows != self._shape[0]:
            raise TargetError(
                f"sample {self._index} is not whole",
                found=f"states of {self._rows} tokens",
                needed=f"{self._shape[0]}",
                next_step="abort it, and extract the sample again",
            )
        with self._explained():
            self._append(self._after)
            if durable:
                os.fsync(self._fd)
            self._close()
            os.rename(self._temporary, os.path.join(self._folder, self._name))
        return FileRecord(
            self._index,
            self._name,
            self._size,
            self._hash.hexdigest(),
            self._shape,
            dtype_name(self._dtype),
        )

    def abort(self) -> None:
        """Leave nothing behind; also after a failure, and more than once."""
        self._close()
        with suppress(OSError):  # never created, or gone with its folder: nothing is behind
            os.unlink(self._temporary)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
