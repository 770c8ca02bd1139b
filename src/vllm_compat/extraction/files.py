"""Bytes to disk: whole writes, and files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable

Bytes = bytes | bytearray | memoryview


def write_all(fd: int, data: Bytes, offset: int) -> int:
    """Write all of ``data`` at ``offset``; the offset after it.

    Raises:
        OSError: what the system said, with an unknown part written.
    """
    rest = memoryview(data).cast("B")
    while rest:  # a signal, or 2 GiB, ends a single write early
        written = os.pwrite(fd, rest, offset)
        offset += written
        rest = rest[written:]
    return offset


def temporary_name(name: str) -> str:
    """What ``name`` is called until it is whole. Hidden, and of an ending no reader looks for."""
    return f".{name}.tmp-{os.getpid()}"


def final_name(temporary: str) -> str | None:
    """The name a temporary one stands for, or None where it is no such name."""
    name, mark, pid = temporary.rpartition(".tmp-")
    return name[1:] if mark and name.startswith(".") and pid.isdigit() else None


def write_atomically(path: str, pieces: Iterable[Bytes]) -> None:
    """Put a file at ``path`` that holds all ``pieces``, durably, or leave what was there.

    Raises:
        OSError: what the system said.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, temporary_name(name))
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            offset = 0
            for piece in pieces:
                offset = write_all(fd, piece, offset)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    sync_folder(folder)


def sync_folder(folder: str) -> None:
    """Make the names in ``folder`` durable.

    Raises:
        OSError: what the system said.
    """
    fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
