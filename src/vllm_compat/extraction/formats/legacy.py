"""``data_{i}.pt``, as speculators 0.3's and 0.4's offline script writes it.

A dict, saved by ``torch.save``: ``input_ids`` and ``loss_mask``, int64 ``[tokens]``, and
``hidden_states``, a list with one ``[tokens, hidden]`` tensor a layer, of which the last is the
verifier's. Their loader maps the file and joins all layers but the last along the last dimension,
so the layers may as well be views of one ``[tokens, layers, hidden]`` block, as they are here.

From 0.4 on, the loader takes each file's length from ``sample_lengths.json`` beside them.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, BinaryIO

from vllm_compat.extraction.files import write_atomically
from vllm_compat.extraction.formats import Frame, Stored

if TYPE_CHECKING:
    import torch

_LENGTHS = "sample_lengths.json"

_NAME = re.compile(r"data_(0|[1-9]\d*)\.pt")


def file_name(index: int) -> str:
    return f"data_{index}.pt"


def index_of(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def frame(
    token_ids: Sequence[int],
    loss_mask: Sequence[int],
    shape: tuple[int, int, int],
    dtype: torch.dtype,
) -> Frame:
    """torch.save's own bytes, of tensors whose memory is never touched, with the ids put in.

    ``skip_data`` leaves a hole where each tensor's bytes go, and a memory file has no blocks for a
    hole, so this costs no more for long samples than for short ones. The checksums that a zip
    archive keeps stay zero as well: torch does not look at them, a zip program would complain. The
    manifest has a better one.
    """
    import torch
    from torch.serialization import skip_data

    states = torch.empty(shape, dtype=dtype, device="cpu")
    integers = {
        "input_ids": array("q", token_ids).tobytes(),
        "loss_mask": array("q", loss_mask).tobytes(),
    }
    empty = {name: torch.empty(shape[0], dtype=torch.int64, device="cpu") for name in integers}
    sample = {
        "input_ids": empty["input_ids"],
        "hidden_states": list(states.unbind(1)),
        "loss_mask": empty["loss_mask"],
    }
    with open(os.memfd_create("sample"), "rb") as file:
        with skip_data():
            torch.save(sample, f"/proc/self/fd/{file.fileno()}")
        # Storages are numbered as they are met: ids, states, mask.
        ids_at, states_at, mask_at = _offsets(file)
        states_end = states_at + states.nbytes
        file.seek(0)
        before = bytearray(file.read(states_at))
        file.seek(states_end)
        after = bytearray(file.read())
    before[ids_at : ids_at + 8 * shape[0]] = integers["input_ids"]
    mask_at -= states_end
    after[mask_at : mask_at + 8 * shape[0]] = integers["loss_mask"]
    return Frame(bytes(before), bytes(after))


def _offsets(file: BinaryIO) -> list[int]:
    """Where the bytes of storages 0, 1, 2 begin in a file of torch.save's, a zip archive."""
    with zipfile.ZipFile(file) as archive:
        headers = {entry.filename.split("/", 1)[1]: entry for entry in archive.infolist()}
    offsets = []
    for name in ("data/0", "data/1", "data/2"):
        start = headers[name].header_offset
        file.seek(start)
        name_length, extra_length = struct.unpack("<26xHH", file.read(30))
        offsets.append(start + 30 + name_length + extra_length)
    return offsets


def load(path: str) -> Stored:
    import torch

    data = torch.load(path, mmap=True, weights_only=True, map_location="cpu")
    return Stored(data["input_ids"], data["hidden_states"])


def side_files() -> tuple[str, ...]:
    return (_LENGTHS,)


def write_side_files(folder: str, lengths: Iterable[tuple[int, int]]) -> None:
    """``sample_lengths.json``, a dict from an index, as text, to a number of tokens."""
    pieces = (
        f"{',' if number else ''}\n{json.dumps(str(index))}: {length}".encode()
        for number, (index, length) in enumerate(lengths)
    )
    path = os.path.join(folder, _LENGTHS)
    write_atomically(path, _gathered(chain((b"{",), pieces, (b"\n}\n",))))


def _gathered(pieces: Iterable[bytes], size: int = 1 << 20) -> Iterable[bytes]:
    """The same bytes in pieces of about ``size``."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        if len(buffer) >= size:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer)
