"""Which rows of a step belong to which request, read from the model runner that runs it.

The scheduler's order is not the batch's: the V1 runner keeps a persistent batch and swaps requests
in it, the V2 runner sorts every step by token count. So the order is taken from the runner, after
it has prepared the step, and checked against the positions the model is really given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from vllm_compat.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


class Segment(NamedTuple):
    """``rows`` consecutive rows of a step: positions ``start`` on of one request."""

    request_id: str
    start: int
    rows: int


class Batch(NamedTuple):
    """One prepared step: its segments in row order, and what the model is given, ``[rows]``."""

    segments: list[Segment]
    input_ids: torch.Tensor
    positions: torch.Tensor

    def rows(self) -> Iterator[tuple[Segment, slice]]:
        """Each segment and its rows in the step."""
        end = 0
        for segment in self.segments:
            start, end = end, end + segment.rows
            yield segment, slice(start, end)


class BatchReader(Protocol):
    """Reads the step that a model runner has prepared."""

    def read(self, scheduler_output: Any) -> Batch:
        """The step now being run; called from inside the model's forward."""


def reader_for(runner: Any) -> BatchReader:
    """The reader for a model runner, told apart by what it has.

    Raises:
        CaptureError: a runner of neither kind.
    """
    if hasattr(runner, "prepare_inputs"):
        return PreparedInputsReader(runner)
    if hasattr(runner, "input_batch"):
        return PersistentBatchReader(runner)
    raise CaptureError(
        f"cannot read the batch order of {type(runner).__module__}.{type(runner).__qualname__}",
        found="neither `input_batch` (runner V1) nor `prepare_inputs` (runner V2)",
        needed="one of the two",
        next_step="set VLLM_USE_V2_MODEL_RUNNER=0, or use a vLLM that vllm_compat knows",
    )


class PersistentBatchReader:
    """Model runner V1 (``GPUModelRunner.input_batch``)."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def read(self, scheduler_output: Any) -> Batch:
        order = [
            request_id
            for request_id in self._runner.input_batch.req_ids
            if request_id in scheduler_output.num_scheduled_tokens
        ]
        counts = [int(scheduler_output.num_scheduled_tokens[request_id]) for request_id in order]
        rows = sum(counts)
        return Batch(
            _segments(scheduler_output, order, counts),
            _side(self._runner.input_ids, "gpu")[:rows],
            # The host's side: where rotary positions have three sections (Qwen-VL), the device's
            # is not filled in.
            _side(self._runner.positions, "cpu")[:rows],
        )


class PreparedInputsReader:
    """Model runner V2: the order is in what ``prepare_inputs`` returns, and nowhere else."""

    def __init__(self, runner: Any) -> None:
        self._prepared: Any = None
        prepare = runner.prepare_inputs

        def prepare_inputs(*args: Any, **kwargs: Any) -> Any:
            self._prepared = prepare(*args, **kwargs)
            return self._prepared

        runner.prepare_inputs = prepare_inputs

    def read(self, scheduler_output: Any) -> Batch:
        prepared = self._prepared
        order = list(prepared.req_ids)
        counts = [int(count) for count in prepared.num_scheduled_tokens[: len(order)]]
        rows = sum(counts)
        return Batch(
            _segments(scheduler_output, order, counts),
            prepared.input_ids[:rows],
            prepared.positions[:rows],
        )


def _segments(scheduler_output: Any, order: list[str], counts: list[int]) -> list[Segment]:
    starts = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
    cached = scheduler_output.scheduled_cached_reqs
    starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    planned = dict(scheduler_output.num_scheduled_tokens)
    if dict(zip(order, counts, strict=True)) != planned:
        raise CaptureError(
            "the model runner runs other tokens than the scheduler planned",
            found=f"{dict(zip(order, counts, strict=True))}",
            needed=f"{planned}",
            next_step="switch off what changes a batch (speculative decoding, micro-batches)",
        )
    return [
        Segment(request_id, int(starts[request_id]), count)
        for request_id, count in zip(order, counts, strict=True)
    ]


def _side(buffer: Any, side: str) -> Any:
    """One side of a ``CpuGpuBuffer``, or the tensor that later releases have in its place."""
    return getattr(buffer, side) if hasattr(buffer, "np") else buffer
