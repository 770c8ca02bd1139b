"""Threads in the worker that check a step's states and put them into their samples' files."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from vllm_compat.errors import VllmCompatError
from vllm_compat.extraction.formats.writer import FileRecord, SampleWriter

if TYPE_CHECKING:
    import torch

    from vllm_compat.extraction.staging import Slot


class Piece(NamedTuple):
    """Rows of a step that are one sample's: ``rows`` of the slot, positions from ``start`` on."""

    slot: Slot
    rows: slice
    start: int


class BadSampleError(VllmCompatError):
    """A sample whose states must not be written."""


class Outcome(NamedTuple):
    """What became of a sample: a file, or a reason."""

    sample: int
    record: FileRecord | None
    reason: str = ""


class _Sample:
    """A sample in the making; its pieces are written in order, by one thread at a time."""

    def __init__(self, index: int, token_ids: Sequence[int], loss_mask: Sequence[int]) -> None:
        import torch

        self.index = index
        self.token_ids = torch.tensor(token_ids, dtype=torch.int64)
        self.loss_mask = loss_mask
        self.pieces: deque[Piece] = deque()
        self.busy = False
        self.done = False
        self.rows = 0
        self.writer: SampleWriter | None = None


class SampleThreads:
    """Writes samples beside the model.

    Args:
        file_format: one of ``formats.FORMATS``.
        folder: where the files go.
        layer_ids: what the columns of a slot's states are, for errors.
        threads: how many write at the same time.
        durable: sync every file.
        release: called with a slot for every piece that is done with.
    """

    def __init__(
        self,
        file_format: str,
        folder: str,
        layer_ids: Sequence[int],
        *,
        threads: int,
        durable: bool,
        release: Callable[[Slot], None],
    ) -> None:
        self._format = file_format
        self._folder = folder
        self._layer_ids = list(layer_ids)
        self._durable = durable
        self._release = release
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="vllm_compat-write")
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._working = 0
        self._samples: dict[str, _Sample] = {}
        self._outcomes: list[Outcome] = []
        self.failure: Exception | None = None

    def expect(
        self, request_id: str, index: int, token_ids: Sequence[int], loss_mask: Sequence[int]
    ) -> None:
        """The rows of ``request_id`` are a sample's; said again of one that was preempted."""
        if request_id not in self._samples:
            self._samples[request_id] = _Sample(index, token_ids, loss_mask)

    def knows(self, request_id: str) -> bool:
        """Whether its rows are wanted still."""
        return request_id in self._samples

    def write(self, request_id: str, piece: Piece) -> None:
        """Take rows of a request, in the order the model computed them."""
        with self._lock:
            # One that was known a moment ago may have been found bad since.
            sample = self._samples.get(request_id)
            starts = sample is not None and not sample.busy
            if sample is not None:
                sample.pieces.append(piece)
                sample.busy = True
            self._working += starts
        if sample is None:
            self._release(piece.slot)
        elif starts:
            self._pool.submit(self._run, request_id, sample)

    def take_outcomes(self) -> list[Outcome]:
        """What has become of samples since the last time."""
        with self._lock:
            outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def drain(self, timeout: float) -> bool:
        """Wait until everything taken is written; whether it was in time."""
        with self._idle:
            return self._idle.wait_for(lambda: self._working == 0, timeout)

    def close(self) -> None:
        """End the threads and remove files that are not whole."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for sample in self._samples.values():
            if sample.writer is not None:
                sample.writer.abort()
        self._samples = {}

    # -- in the threads -------------------------------------------------------------------------

    def _run(self, request_id: str, sample: _Sample) -> None:
        while True:
            with self._idle:
                if not sample.pieces:
                    sample.busy = False
                    self._working -= 1
                    self._idle.notify_all()
                    return
                piece = sample.pieces.popleft()
            try:
                if not sample.done:
                    self._take(request_id, sample, piece)
            except BadSampleError as bad:
                sample.done = True
                self._finish(request_id, sample, Outcome(sample.index, None, bad.what))
            except Exception as error:  # the disk: no sample is to blame, and none goes on
                sample.done = True
                self.failure = self.failure or error
                if sample.writer is not None:
                    sample.writer.abort()
            finally:
                self._release(piece.slot)

    def _take(self, request_id: str, sample: _Sample, piece: Piece) -> None:
        length = len(sample.token_ids)
        # A preempted request starts again: what it computes twice is the same.
        skip = sample.rows - piece.start
        first = piece.rows.start + skip
        count = min(piece.rows.stop - first, length - sample.rows)
        if skip < 0:
            raise BadSampleError(self._missing(sample))
        if count <= 0:
            return
        piece.slot.wait()
        rows = slice(first, first + count)
        self._check(sample, piece.slot, rows)
        states = piece.slot.states[rows]
        if sample.writer is None:
            sample.writer = SampleWriter(
                self._format,
                self._folder,
                sample.index,
                sample.token_ids.tolist(),
                sample.loss_mask,
                states.shape[1],
                states.shape[2],
                states.dtype,
            )
        sample.writer.write(sample.rows, states)
        sample.rows += count
        if sample.rows == length:
            sample.done = True
            record = sample.writer.finish(durable=self._durable)
            self._finish(request_id, sample, Outcome(sample.index, record))

    def _check(self, sample: _Sample, slot: Slot, rows: slice) -> None:
        """The rows are this sample's, and all are finite."""
        import torch

        count, start = rows.stop - rows.start, sample.rows
        places = torch.arange(start, start + count)
        _same(slot.positions[rows], places, start, "position")
        _same(slot.input_ids[rows], sample.token_ids[start : start + count], start, "id")
        finite = slot.norms[rows].isfinite()
        if not bool(finite.all()):
            row, column = (~finite).nonzero()[0].tolist()
            raise BadSampleError(
                f"NaN or infinity at token {start + row}, layer {self._layer_ids[column]}"
            )

    def _missing(self, sample: _Sample) -> str:
        return f"states of {sample.rows} of {len(sample.token_ids)} tokens"

    def _finish(self, request_id: str, sample: _Sample, outcome: Outcome) -> None:
        if outcome.record is None and sample.writer is not None:
            sample.writer.abort()
        with self._lock:
            self._outcomes.append(outcome)
            self._samples.pop(request_id, None)


def _same(got: torch.Tensor, expected: torch.Tensor, start: int, what: str) -> None:
    wrong = (got != expected).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise BadSampleError(
            f"the model was given another {what} than the sample's at token {start + row}:"
            f" {int(got[row])} instead of {int(expected[row])}"
        )
