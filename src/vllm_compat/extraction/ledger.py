"""All manifests of a folder, read as one: the last word on each sample.

A million samples fit in some forty megabytes: a row of numbers for each, and no objects. Where a
whole entry is wanted, its line is read again.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator

from vllm_compat.extraction.errors import TargetError, explained
from vllm_compat.extraction.manifest import (
    Entry,
    from_line,
    is_whole,
    numbers_of,
    read_manifest,
)

UNKNOWN, OK, BAD = range(3)


class Ledger:
    """What the manifests of a folder, given by name, record about its samples, by index.

    ``status[i]`` is UNKNOWN, OK or BAD; ``sizes[i]`` the file's bytes, ``lengths[i]`` the tokens,
    ``tokens[i]`` the hash of the ids. ``damage`` names lines that could not be read.
    """

    def __init__(self, folder: str, manifests: list[str]) -> None:
        self.folder = folder
        self.status = bytearray()
        self.sizes = array("q")
        self.lengths = array("i")
        self.tokens = array("Q")
        self.damage: list[str] = []
        self._times = array("q")
        self._offsets = array("q")
        self._manifests = array("H")
        self._names = manifests
        with explained("cannot read the manifests", folder):
            for number, name in enumerate(manifests):
                path = os.path.join(folder, name)
                for offset, line in read_manifest(path, self.damage.append):
                    self._take(line, number, offset)

    def _take(self, line: bytes, manifest: int, offset: int) -> None:
        index, ok, length, tokens, time, size = numbers_of(line)
        if index >= len(self.status):
            self._grow(index + 1)
        # Another sharding may have recorded the sample earlier, in a manifest that is read later.
        if time < self._times[index]:
            return
        self.status[index] = OK if ok else BAD
        self.sizes[index] = size
        self.lengths[index] = length
        self.tokens[index] = tokens
        self._times[index] = time
        self._offsets[index] = offset
        self._manifests[index] = manifest

    def _grow(self, wanted: int) -> None:
        more = max(wanted - len(self.status), len(self.status) // 8, 1024)
        self.status.extend(bytes(more))
        for column in (self.sizes, self.lengths, self.tokens, self._times, self._offsets):
            column.frombytes(bytes(more * column.itemsize))
        self._manifests.frombytes(bytes(more * self._manifests.itemsize))

    def __contains__(self, index: int) -> bool:
        return index < len(self.status) and self.status[index] != UNKNOWN

    def indices(self, status: int | None = None) -> Iterator[int]:
        """The recorded samples, or those of one status, by rising index."""
        return (
            index
            for index, each in enumerate(self.status)
            if (each if status is None else each == status)
        )

    def entry(self, index: int) -> Entry:
        """All that is recorded about a sample.

        Raises:
            TargetError: its line is no longer what it was.
        """
        path = os.path.join(self.folder, self._names[self._manifests[index]])
        with explained("cannot read the manifest", path), open(path, "rb") as file:
            file.seek(self._offsets[index])
            line = file.readline()
        if not is_whole(line) or numbers_of(line)[0] != index:
            raise TargetError(
                f"{path} changed while it was read",
                needed="a folder that nothing else rewrites",
                next_step="start again once nothing does",
            )
        return from_line(line)
