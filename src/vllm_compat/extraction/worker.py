"""What runs inside vLLM's workers: the capture, the staging and the threads that write.

vLLM mixes ``ExtractionExtension`` into its worker class (``worker_extension_cls``), where its
methods are reached by ``collective_rpc``. Which sample a request is of comes with the request, in
``SamplingParams.extra_args``: request ids are vLLM's own business, and recent releases change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vllm_compat.capture.steps import StepCapture
from vllm_compat.extraction.formats import dtype_name
from vllm_compat.extraction.staging import Staging
from vllm_compat.extraction.writing import Piece, SampleThreads

if TYPE_CHECKING:
    import torch

    from vllm_compat.capture.batch import Batch
    from vllm_compat.capture.residual import Combine

# The key in SamplingParams.extra_args.
KEY = "vllm_compat"


@dataclass(frozen=True)
class WorkerSettings:
    """What the driver tells its workers; everything in it can be sent.

    Attributes:
        file_format: one of ``formats.FORMATS``.
        folder: where the files go, as the workers see it.
        layer_ids: decoder layers, 0-based, each once, in the order of the files' columns.
        threads: how many samples are written at the same time.
        slots: steps that may wait to be written.
        durable: sync every file before it gets its name.
        patience: seconds without a write being finished after which the run is given up.
    """

    file_format: str
    folder: str
    layer_ids: tuple[int, ...]
    threads: int
    slots: int
    durable: bool
    patience: float


class ExtractionExtension:
    """Mixed into vLLM's worker."""

    def extraction_start(self, settings: dict[str, Any]) -> None:
        """Capture from the next step on. ``settings``: the fields of ``WorkerSettings``."""
        self._extraction = _Extraction(self, WorkerSettings(**settings))

    def extraction_poll(self) -> dict[str, Any]:
        """What has become of samples since the last call.

        Returns:
            ``states`` (``[hidden size, dtype]``, None before the first step), ``outcomes`` (dicts
            with ``index``, ``record`` or None, ``reason``), ``failure`` (a text, or None).
        """
        return self._extraction.poll()

    def extraction_finish(self, timeout: float) -> dict[str, Any]:
        """Wait until all that was computed is written, then as ``extraction_poll``."""
        return self._extraction.finish(timeout)


class _Extraction:
    """The sink of one worker's capture."""

    def __init__(self, worker: Any, settings: WorkerSettings) -> None:
        self._settings = settings
        self._tokens: int = worker.vllm_config.scheduler_config.max_num_batched_tokens
        self._columns = {layer_id: n for n, layer_id in enumerate(settings.layer_ids)}
        self._staging: Staging | None = None
        self._begun = False
        self._batch: Batch
        self._states: list[Any] | None = None
        self._threads = SampleThreads(
            settings.file_format,
            settings.folder,
            settings.layer_ids,
            threads=settings.threads,
            durable=settings.durable,
            release=self._release,
        )
        self._capture = StepCapture(worker, settings.layer_ids, self)

    def _release(self, slot: Any) -> None:
        assert self._staging is not None
        self._staging.release(slot)

    # -- the sink: a step in the worker's main thread --------------------------------------------

    def begin(self, new_requests: Sequence[Any], batch: Batch) -> None:
        for new in new_requests:
            ours = (new.sampling_params.extra_args or {}).get(KEY)
            if ours is not None:
                self._threads.expect(
                    new.req_id, ours["index"], new.prompt_token_ids, list(ours["loss_mask"])
                )
        if self._staging is not None:
            self._staging.cancel()  # of a step that failed
        self._batch = batch
        self._begun = False

    def layer(
        self,
        layer_id: int,
        hidden: torch.Tensor,
        residual: torch.Tensor | None,
        combine: Combine,
    ) -> None:
        if self._staging is None:
            self._staging = self._staging_for(hidden, residual)
        if not self._begun:
            self._staging.begin(hidden.shape[0])
            self._begun = True
        self._staging.layer(self._columns[layer_id], hidden, residual, combine)

    def _staging_for(self, hidden: torch.Tensor, residual: torch.Tensor | None) -> Staging:
        import torch

        dtype = hidden.dtype if residual is None else torch.result_type(hidden, residual)
        self._states = [hidden.shape[1], dtype_name(dtype)]
        return Staging(
            hidden.device,
            self._tokens,
            (len(self._columns), hidden.shape[1]),
            dtype,
            slots=self._settings.slots,
            patience=self._settings.patience,
        )

    def end(self) -> None:
        assert self._staging is not None
        wanted = [
            (segment, rows)
            for segment, rows in self._batch.rows()
            if self._threads.knows(segment.request_id)
        ]
        if not wanted or self._threads.failure is not None:
            self._staging.cancel()
            return
        slot = self._staging.end(self._batch, len(wanted))
        for segment, rows in wanted:
            self._threads.write(segment.request_id, Piece(slot, rows, segment.start))

    # -- the driver's questions -------------------------------------------------------------------

    def poll(self) -> dict[str, Any]:
        failure = self._capture.failure or self._threads.failure
        return {
            "states": self._states,
            "outcomes": [
                {
                    "index": outcome.sample,
                    "record": outcome.record and asdict(outcome.record),
                    "reason": outcome.reason,
                }
                for outcome in self._threads.take_outcomes()
            ],
            "failure": None if failure is None else str(failure),
        }

    def finish(self, timeout: float) -> dict[str, Any]:
        in_time = self._threads.drain(timeout)
        said = self.poll()
        if not in_time and said["failure"] is None:
            said["failure"] = f"states were still being written after {timeout:.0f} s"
        self._threads.close()
        return said
