"""Token sequences, one after the other, from wherever they are kept.

A sample's index is its position in the source, whatever part of the source a run takes: it names
the sample's file, and a trainer pairs the file with the source's row by it.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from vllm_compat.extraction.errors import SampleError

_BATCH = 256  # rows of a dataset read at a time


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence. ``loss_mask`` is as long, 1 where a draft model is to learn, or None where the
    source has none. ``cut_from`` is the length it had before it was cut, or None."""

    index: int
    token_ids: list[int]
    loss_mask: list[int] | None = None
    cut_from: int | None = None


@dataclass(frozen=True, slots=True)
class Shard:
    """Every ``count``-th sample from ``number`` on."""

    number: int = 0
    count: int = 1

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and index % self.count == self.number


Source = str | os.PathLike[str] | Iterable[Any]


def read_samples(
    source: Source, *, max_len: int | None = None, shard: Shard | None = None
) -> Iterator[Sample]:
    """The samples of a source, in its order, one at a time.

    Args:
        source: a ``.jsonl`` file with one ``{"input_ids": [...], "loss_mask": [...]}`` a line; a
            folder saved by ``datasets`` (speculators' ``prepare-data``); or anything that yields
            token sequences, or mappings with ``input_ids``. ``loss_mask`` may be left out.
        max_len: longer samples are cut to this.
        shard: the part of the source to yield; all of it where it is None.

    Raises:
        SampleError: a source that cannot be read, or a sample that is empty or no token sequence.
    """
    shard = shard or Shard()
    if not 0 <= shard.number < shard.count:
        raise SampleError(
            f"shard {shard.number} of {shard.count}",
            needed="a number from 0 to one less than the count",
        )
    for index, item in _items(source, shard):
        yield _sample(index, item, max_len)


def _items(source: Source, shard: Shard) -> Iterator[tuple[int, Any]]:
    if not isinstance(source, (str, os.PathLike)):
        return islice(enumerate(source), shard.number, None, shard.count)
    path = os.fspath(source)
    if os.path.isdir(path):
        return _rows(path, shard)
    if os.path.isfile(path) and path.endswith(".jsonl"):
        return _lines(path, shard)
    raise SampleError(
        f"cannot read samples from {path}",
        found="another kind of file" if os.path.exists(path) else "nothing there",
        needed="a .jsonl file, or a folder saved by datasets' save_to_disk",
        next_step="speculators' prepare-data makes such a folder out of conversations",
    )


def _lines(path: str, shard: Shard) -> Iterator[tuple[int, Any]]:
    with open(path, "rb") as file:
        for index, line in islice(enumerate(file), shard.number, None, shard.count):
            yield index, _parsed(path, index, line)


def _parsed(path: str, index: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise SampleError(
            f"sample {index} (line {index + 1} of {path}) is not JSON",
            found=f"{error}" if line.strip() else "an empty line",
            needed='one {"input_ids": [...], "loss_mask": [...]} a line',
        ) from error


def _rows(path: str, shard: Shard) -> Iterator[tuple[int, Any]]:
    from datasets import Dataset, load_from_disk

    try:
        dataset = load_from_disk(path)
    except (OSError, ValueError) as error:
        raise SampleError(
            f"cannot read samples from the folder {path}",
            found=str(error),
            needed="a folder saved by datasets' save_to_disk",
            next_step="speculators' prepare-data makes such a folder out of conversations",
        ) from error
    if not isinstance(dataset, Dataset):
        raise SampleError(
            f"{path} holds several splits",
            found=", ".join(dataset),
            needed="one",
            next_step="give the folder of one of them",
        )
    dataset = dataset.with_format(None)
    for start in range(shard.number, len(dataset), shard.count * _BATCH):
        indices = range(len(dataset))[start :: shard.count][:_BATCH]
        columns = dataset[indices]
        for row, index in enumerate(indices):
            yield index, {name: column[row] for name, column in columns.items()}


def _sample(index: int, item: Any, max_len: int | None) -> Sample:
    loss_mask = None
    if isinstance(item, Mapping):
        if "input_ids" not in item:
            raise SampleError(
                f"sample {index} has no `input_ids`",
                found=f"only {', '.join(map(str, item))}",
                needed="token ids: text is tokenized before states are extracted",
                next_step="speculators' prepare-data turns conversations into token ids",
            )
        _refuse_images(index, item.get("messages"))
        item, loss_mask = item["input_ids"], item.get("loss_mask")
    token_ids = _integers(index, item, "token ids")
    if not token_ids:
        raise SampleError(
            f"sample {index} is empty",
            needed="at least one token",
            next_step="drop it from the source",
        )
    if min(token_ids) < 0:
        raise SampleError(
            f"sample {index} has a negative token id",
            found=f"{min(token_ids)} at position {token_ids.index(min(token_ids))}",
            needed="ids of the vocabulary; padding is left out",
        )
    mask = None if loss_mask is None else _integers(index, loss_mask, "a loss mask")
    if mask is not None and len(mask) != len(token_ids):
        raise SampleError(
            f"sample {index} has a loss mask of another length",
            found=f"{len(token_ids)} tokens, a mask of {len(mask)}",
            needed="one value for each token",
        )
    length = len(token_ids)
    if max_len is None or length <= max_len:
        return Sample(index, token_ids, mask)
    return Sample(index, token_ids[:max_len], mask and mask[:max_len], length)


def _integers(index: int, values: Any, what: str) -> list[int]:
    if hasattr(values, "tolist"):
        values = values.tolist()
    try:
        return array("q", values).tolist()
    except (TypeError, OverflowError) as error:
        raise SampleError(
            f"sample {index}: {what} must be a flat sequence of integers",
            found=f"{type(values).__name__}: {error}",
        ) from error


def _refuse_images(index: int, messages: Any) -> None:
    if any(
        isinstance(turn.get("content"), Sequence) and not isinstance(turn["content"], str)
        for turn in messages or ()
    ):
        raise SampleError(
            f"sample {index} has content that is not text",
            found="a conversation with images, audio or video parts",
            needed="text alone: token ids do not carry the rest, and the states would be wrong",
            next_step="extract these samples through speculators' own server path",
        )
