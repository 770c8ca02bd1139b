"""One line for each sample, appended as the run goes.

A line is JSON, and its last field is a checksum of what comes before it, so that a line is either
right or known not to be. Lines are appended in batches, each one write and one sync. A run that is
killed in the middle of one leaves a line without its end: reading passes over it, and the next run
cuts it off before it appends. A later line about a sample replaces an earlier one.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from time import time
from typing import TYPE_CHECKING, Any

from vllm_compat.extraction.errors import TargetError, explained
from vllm_compat.extraction.files import write_all
from vllm_compat.extraction.samples import Sample, Shard

if TYPE_CHECKING:
    from vllm_compat.extraction.formats.writer import FileRecord

_NAME = re.compile(r"manifest-\d{5,}-of-\d{5,}\.jsonl")
_CRC = b',"crc":"%08x"}\n'
_CRC_LENGTH = len(_CRC % 0)
# How the lines of `to_line` begin. A million lines are read at every resume, and most of what they
# say is not needed then.
_NUMBERS = re.compile(
    rb'\{"index":(\d+),"ok":(true|false),"length":(\d+),"tokens":"([0-9a-f]+)","time":(\d+)'
    rb'(?:,"file":"[^"]*","bytes":(\d+))?'
)


@dataclass(slots=True)
class Entry:
    """What a manifest says about a sample.

    ``ok`` samples have a file, described by the fields down to ``dtype``; the others have a
    ``reason``. ``tokens`` is a hash of the ids, ``cut_from`` the length before a cut, ``time`` when
    the entry was made, in milliseconds since 1970.
    """

    index: int
    ok: bool
    length: int
    tokens: str
    time: int
    file: str = ""
    bytes: int = 0
    checksum: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    cut_from: int | None = None
    reason: str = ""


_FIELDS = tuple(each.name for each in fields(Entry))
_NOTHING = (None, "", ())


def written(sample: Sample, record: FileRecord) -> Entry:
    """The entry of a sample whose file is finished."""
    return Entry(
        **_about(sample),
        ok=True,
        file=record.file,
        bytes=record.bytes,
        checksum=record.checksum,
        shape=record.shape,
        dtype=record.dtype,
    )


def refused(sample: Sample, reason: str) -> Entry:
    """The entry of a sample that has no states, and why."""
    return Entry(**_about(sample), ok=False, reason=reason)


def _about(sample: Sample) -> dict[str, Any]:
    return {
        "index": sample.index,
        "length": len(sample.token_ids),
        "tokens": token_hash(sample.token_ids),
        "cut_from": sample.cut_from,
        "time": int(time() * 1000),
    }


def token_hash(token_ids: Sequence[int]) -> str:
    """A hash of token ids, to know a sample by."""
    import xxhash

    digest: str = xxhash.xxh3_64_hexdigest(array("q", token_ids).tobytes())
    return digest


def manifest_name(shard: Shard) -> str:
    """What the manifest of a shard is called."""
    return f"manifest-{shard.number:05d}-of-{shard.count:05d}.jsonl"


def is_manifest(name: str) -> bool:
    """Whether a file of that name is a manifest."""
    return _NAME.fullmatch(name) is not None


def to_line(entry: Entry) -> bytes:
    """The entry as a line, without the fields that say nothing."""
    values = {name: getattr(entry, name) for name in _FIELDS}
    values = {name: value for name, value in values.items() if value not in _NOTHING}
    body = json.dumps(values, separators=(",", ":")).encode()[:-1]
    return body + _CRC % zlib.crc32(body)


def is_whole(line: bytes) -> bool:
    """Whether a line is as it was written."""
    return line[-_CRC_LENGTH:] == _CRC % zlib.crc32(line[:-_CRC_LENGTH])


def from_line(line: bytes) -> Entry:
    """The entry of a whole line."""
    values = json.loads(line)
    del values["crc"]
    values["shape"] = tuple(values.get("shape", ()))
    return Entry(**values)


def numbers_of(line: bytes) -> tuple[int, bool, int, int, int, int]:
    """Index, ok, length, tokens, time and bytes of a whole line, several times faster."""
    match = _NUMBERS.match(line)
    if match is None:
        raise ValueError(f"not a line of this layout: {line!r}")
    index, ok, length, tokens, time, size = match.groups(b"0")
    return int(index), ok == b"true", int(length), int(tokens, 16), int(time), int(size)


def read_manifest(path: str, on_damage: Callable[[str], None]) -> Iterator[tuple[int, bytes]]:
    """Where each whole line starts, and the line; any other but the last is told to ``on_damage``.

    Raises:
        OSError: what the system said.
    """
    with open(path, "rb") as file:
        offset = 0
        for number, line in enumerate(file, 1):
            if is_whole(line):
                yield offset, line
            elif line.endswith(b"\n"):
                on_damage(f"line {number} of {path} is damaged")
            offset += len(line)


class Manifest:
    """The manifest of one shard, open for appending, which no one else does.

    Args:
        path: made where it is not there; a torn last line is cut off.

    Raises:
        TargetError: it cannot be written to.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with self._explained():
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            self._size = _whole_lines(self._fd)
            os.ftruncate(self._fd, self._size)

    def _explained(self) -> AbstractContextManager[None]:
        return explained("cannot write the manifest", self._path)

    def append(self, entries: Iterable[Entry]) -> None:
        """Add the entries; they are on the medium when this returns. All of them, or none.

        Raises:
            DiskFullError: no room is left.
            TargetError: the folder was taken away, or the system refuses the write.
        """
        lines = b"".join(map(to_line, entries))
        with self._explained():
            if not os.fstat(self._fd).st_nlink:
                raise TargetError(
                    f"{self._path} was removed while the run was going",
                    needed="the folder to stay where it is for the whole run",
                    next_step="bring it back and start the same run again",
                )
            try:
                end = write_all(self._fd, lines, self._size)
                os.fsync(self._fd)
            except OSError:
                os.ftruncate(self._fd, self._size)
                raise
        self._size = end

    def close(self) -> None:
        """Let go of the file; more than once is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _whole_lines(fd: int) -> int:
    """How long the file is up to the end of its last whole line."""
    end = os.fstat(fd).st_size
    while end:
        start = max(0, end - 4096)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
