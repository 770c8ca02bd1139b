"""The files that speculators' trainers read.

A format is a module: what a sample's file is called, which bytes come before and after its states,
how it is read back the way its trainer reads it, and what the trainer wants beside the samples.

- ``legacy``  ``data_{i}.pt``, speculators 0.3 and 0.4
- ``native``  ``hs_{i}.safetensors``, speculators 0.5 to 0.9

In both, the states of a sample are one block ``[tokens, layers, hidden]``, so that rows go to disk
as they come out of the model, a step at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    import torch

FORMATS = ("legacy", "native")


class Stored(NamedTuple):
    """A sample read back: ids ``[tokens]``, and for each layer its states ``[tokens, hidden]``."""

    token_ids: torch.Tensor
    layers: list[torch.Tensor]


class Frame(NamedTuple):
    """What comes before and after the states in a sample's file."""

    before: bytes
    after: bytes


class Format(Protocol):
    """What a module of this package provides."""

    def side_files(self) -> tuple[str, ...]:
        """The names of what ``write_side_files`` writes."""

    def file_name(self, index: int) -> str:
        """What the file of sample ``index`` is called."""

    def index_of(self, name: str) -> int | None:
        """The sample whose file is called ``name``, or None where no sample's is."""

    def frame(
        self,
        token_ids: Sequence[int],
        loss_mask: Sequence[int],
        shape: tuple[int, int, int],
        dtype: torch.dtype,
    ) -> Frame:
        """The bytes around states of ``shape`` and ``dtype``."""

    def load(self, path: str) -> Stored:
        """Read a sample as its trainer does."""

    def write_side_files(self, folder: str, lengths: Iterable[tuple[int, int]]) -> None:
        """Write what the trainer wants beside the samples; ``lengths`` are ``(index, tokens)``."""


def get_format(name: str) -> Format:
    """The format called ``name``, one of ``FORMATS``."""
    if name not in FORMATS:
        raise ValueError(f"unknown format {name!r}: one of {', '.join(FORMATS)}")
    return cast("Format", import_module(f"{__name__}.{name}"))


def dtype_name(dtype: torch.dtype | str) -> str:
    """``bfloat16``, for torch's dtype or its name."""
    return str(dtype).removeprefix("torch.")
