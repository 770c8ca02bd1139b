"""The output of decoder layers at every step of a worker, residual added, for whoever keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from vllm_compat.capture.batch import Batch, BatchReader, reader_for
from vllm_compat.capture.residual import READINGS, Calibration, refuse_scaled_float16, split
from vllm_compat.capture.stack import DecoderStack, find_stack
from vllm_compat.errors import CaptureError, VllmCompatError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vllm_compat.capture.residual import Combine


class Sink(Protocol):
    """Keeps the states. Called in the worker's main thread, in this order, for every step.

    An error of this package that it raises is kept, and nothing is captured any more until
    ``StepCapture.resume``.
    """

    def begin(self, new_requests: Sequence[Any], batch: Batch) -> None:
        """A step begins; ``new_requests`` are vLLM's ``NewRequestData``."""

    def layer(
        self,
        layer_id: int,
        hidden: torch.Tensor,
        residual: torch.Tensor | None,
        combine: Combine,
    ) -> None:
        """A layer ran: ``combine(hidden, residual)`` is its state, ``[rows, hidden]``.

        Both tensors are the model's own and change as soon as this returns.
        """

    def end(self) -> None:
        """Every layer asked for has been given."""


class StepCapture:
    """Watches decoder layers through forward hooks and gives their states to a sink.

    Hooks on the layers, rather than a forward of our own: the model's code runs as it is, so its
    embedding's name, its layers' extra arguments and its sharding are its own business.

    The first step settles how the layers carry their residual. Of tensor-parallel workers the
    first gives its sink the states; the others only take their part in gathering them.

    Args:
        worker: vLLM's worker, with its model loaded.
        layer_ids: decoder layers to watch, 0-based, each once.
        sink: what keeps the states.

    Raises:
        UnsupportedModelError: the decoder stack is not found, or its states would be a guess.
    """

    def __init__(self, worker: Any, layer_ids: Sequence[int], sink: Sink) -> None:
        runner = worker.model_runner
        model: nn.Module = runner.get_model() if hasattr(runner, "get_model") else runner.model
        model_config = worker.vllm_config.model_config
        config = getattr(model_config, "hf_text_config", model_config.hf_config)
        self.stack: DecoderStack = find_stack(model, config.num_hidden_layers)
        # The worker's own `device` is None on a CPU in some releases.
        self.device: torch.device = next(self.stack.layers.parameters()).device
        refuse_scaled_float16(self.stack.layers[-1], model_config.dtype)

        self._layer_ids = frozenset(layer_ids)
        self._sink = sink
        self._parallel = _TensorParallel()
        self._reader: BatchReader = reader_for(runner)
        self._calibration: Calibration | None = Calibration(
            self.stack.layers, self.stack.owner, self._whole
        )
        self._combine: Combine | None = None
        self._unsettled: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._scheduler_output: Any = None
        self._new_requests: list[Any] = []
        self._seen: set[int] = set()
        self.failure: VllmCompatError | None = None

        for layer_id in sorted(self._layer_ids):
            self.stack.layers[layer_id].register_forward_hook(self._layer_hook(layer_id))
        execute = runner.execute_model

        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dummy_run") or not scheduler_output.total_num_scheduled_tokens:
                return execute(scheduler_output, *args, **kwargs)
            self._begin(scheduler_output)
            try:
                return execute(scheduler_output, *args, **kwargs)
            finally:
                self._end()

        runner.execute_model = execute_model

    @property
    def gives(self) -> bool:
        """Whether this worker is the one whose sink gets the states."""
        return self._parallel.first

    def resume(self) -> VllmCompatError | None:
        """Capture again after a failure, which is returned and forgotten."""
        failure, self.failure = self.failure, None
        return failure

    def _begin(self, scheduler_output: Any) -> None:
        self._scheduler_output = scheduler_output
        self._new_requests = list(scheduler_output.scheduled_new_reqs)
        self._seen = set()
        self._unsettled = {}

    def _layer_hook(self, layer_id: int) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            if self._scheduler_output is None or self.failure is not None:
                return  # a profiling or warm-up run, or a failure before
            # A hook must not raise: the runner would be left half-way through a step, and the
            # next call would fail for it.
            try:
                self._take(layer_id, output)
            except VllmCompatError as failure:
                self.failure = failure

        return hook

    def _take(self, layer_id: int, output: Any) -> None:
        if not self._seen and self.gives:
            self._sink.begin(self._new_requests, self._reader.read(self._scheduler_output))
        if layer_id in self._seen:
            raise CaptureError(
                f"decoder layer {layer_id} ran twice in one step",
                found="a model that loops over its layers, or micro-batches",
                needed="one run of every layer in a step",
                next_step="switch micro-batches off; a model that loops has no one state a layer",
            )
        self._seen.add(layer_id)
        hidden, residual = (None if part is None else self._whole(part) for part in split(output))
        assert hidden is not None
        if not self.gives:
            return
        if self._combine is None:  # the step's end will know
            self._unsettled[layer_id] = (
                hidden.clone(),
                None if residual is None else residual.clone(),
            )
        else:
            self._sink.layer(layer_id, hidden, residual, self._combine)

    def _whole(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The rows of the step, also where each tensor-parallel rank holds a slice of them.

        A reduce-scatter mixture of experts (vLLM 0.25 on) leaves the states sharded between layers.
        None outside a step (a profiling or warm-up run).
        """
        if self._scheduler_output is None:
            return None
        rows: int = self._scheduler_output.total_num_scheduled_tokens
        if tensor.shape[0] < rows:
            tensor = self._parallel.all_gather(tensor)
        return tensor[:rows]

    def _end(self) -> None:
        self._scheduler_output = None
        try:
            if self._calibration is not None:
                self._combine = READINGS[self._calibration.finish()]
                self._calibration = None
                for layer_id, (hidden, residual) in self._unsettled.items():
                    self._sink.layer(layer_id, hidden, residual, self._combine)
                self._unsettled = {}
            if self.failure is not None:
                return
            if self._seen != self._layer_ids:
                raise CaptureError(
                    "the model's forward did not run every decoder layer asked for",
                    found=f"layers {sorted(self._seen)}",
                    needed=f"layers {sorted(self._layer_ids)}",
                    next_step="this vLLM runs its layers past their hooks; enforce eager mode",
                )
            if self.gives:
                self._sink.end()
        except VllmCompatError as failure:
            self.failure = self.failure or failure


class _TensorParallel:
    """This worker's place among its tensor-parallel peers."""

    def __init__(self) -> None:
        from vllm.distributed import get_tp_group, tensor_model_parallel_all_gather

        self.first: bool = get_tp_group().rank_in_group == 0
        self._all_gather = tensor_model_parallel_all_gather

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        gathered: torch.Tensor = self._all_gather(tensor.contiguous(), 0)
        return gathered
