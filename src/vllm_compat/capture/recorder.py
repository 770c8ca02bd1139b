"""Keeps the states of one ``generate`` call, row by row, and hands them out by request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm_compat.capture.batch import Batch, BatchReader, reader_for
from vllm_compat.capture.residual import READINGS, Calibration, refuse_scaled_float16, split
from vllm_compat.capture.stack import DecoderStack, find_stack
from vllm_compat.errors import CaptureError, VllmCompatError

if TYPE_CHECKING:
    import torch
    from torch import nn


class RequestStates(NamedTuple):
    """What one prompt got: the ids the model was given, ``[tokens]`` int64, and for each layer
    asked for, in the order asked, its states, ``[tokens, hidden]`` in the model's dtype, on the
    CPU."""

    input_ids: torch.Tensor
    layers: list[torch.Tensor]


class _Step(NamedTuple):
    batch: Batch
    states: dict[int, torch.Tensor]


class Recorder:
    """Records the output of decoder layers, residual added, through forward hooks.

    Hooks on the layers, rather than a forward of our own: the model's code runs as it is, so its
    embedding's name, its layers' extra arguments and its sharding are its own business.

    Args:
        worker: vLLM's worker, with its model loaded.
        layer_ids: decoder layers to record, 0-based, in any order, repeats allowed.

    Raises:
        UnsupportedModelError: the decoder stack is not found, or its states would be a guess.
    """

    def __init__(self, worker: Any, layer_ids: Sequence[int]) -> None:
        runner = worker.model_runner
        model: nn.Module = runner.get_model() if hasattr(runner, "get_model") else runner.model
        model_config = worker.vllm_config.model_config
        config = getattr(model_config, "hf_text_config", model_config.hf_config)
        self.layer_ids = list(layer_ids)
        self.stack: DecoderStack = find_stack(model, config.num_hidden_layers)
        refuse_scaled_float16(self.stack.layers[-1], model_config.dtype)

        self._parallel = _TensorParallel()
        self._reader: BatchReader = reader_for(runner)
        self._calibration: Calibration | None = Calibration(
            self.stack.layers, self.stack.owner, self._whole
        )
        self._reading: str | None = None
        self.reset()

        for layer_id in sorted(set(self.layer_ids)):
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

    def reset(self) -> None:
        """Forget everything recorded; the next call starts here."""
        self._steps: list[_Step] = []
        self._prompts: dict[str, list[int]] = {}
        self._failure: VllmCompatError | None = None
        self._scheduler_output: Any = None
        self._batch: Batch | None = None
        self._now: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    # -- one step -------------------------------------------------------------------------------

    def _begin(self, scheduler_output: Any) -> None:
        self._scheduler_output = scheduler_output
        self._batch = None
        self._now = {}
        for new in scheduler_output.scheduled_new_reqs:
            self._prompts[new.req_id] = list(new.prompt_token_ids)

    def _layer_hook(self, layer_id: int) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            if self._scheduler_output is None or self._failure is not None:
                return  # a profiling or warm-up run, or a call that has failed already
            # A hook must not raise: the runner would be left half-way through a step, and the
            # next call would fail for it. The failure is kept and raised by `collect`.
            try:
                self._record(layer_id, output)
            except VllmCompatError as failure:
                self._failure = failure

        return hook

    def _record(self, layer_id: int, output: Any) -> None:
        if self._batch is None:
            self._batch = self._reader.read(self._scheduler_output)
        if layer_id in self._now:
            raise CaptureError(
                f"decoder layer {layer_id} ran twice in one step",
                found="a model that loops over its layers, or micro-batches",
                needed="one run of every layer in a step",
                next_step="switch micro-batches off; a model that loops has no one state a layer",
            )
        hidden, residual = (None if part is None else self._whole(part) for part in split(output))
        assert hidden is not None
        if not self._parallel.records:
            self._now[layer_id] = (hidden, None)
        elif self._reading is None:  # not settled yet: keep both, the step's end will know
            self._now[layer_id] = (hidden.clone(), None if residual is None else residual.clone())
        else:
            self._now[layer_id] = (READINGS[self._reading](hidden, residual), None)

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
        batch, now = self._batch, self._now
        self._scheduler_output, self._batch, self._now = None, None, {}
        try:
            if self._calibration is not None:
                self._reading = self._calibration.finish()
                self._calibration = None
                if self._parallel.records:
                    combine = READINGS[self._reading]
                    now = {layer_id: (combine(*pair), None) for layer_id, pair in now.items()}
            if batch is None or len(now) != len(set(self.layer_ids)):
                raise CaptureError(
                    "the model's forward did not run every decoder layer asked for",
                    found=f"layers {sorted(now)}",
                    needed=f"layers {sorted(set(self.layer_ids))}",
                    next_step="this vLLM runs its layers past their hooks; enforce eager mode",
                )
            _check_positions(batch)
        except VllmCompatError as failure:
            self._failure = self._failure or failure
            return
        if self._parallel.records:
            # To the host step by step: a call may be larger than the device's spare memory.
            self._steps.append(
                _Step(
                    Batch(batch.segments, batch.input_ids.cpu().clone(), batch.positions.cpu()),
                    {layer_id: state.cpu() for layer_id, (state, _) in now.items()},
                )
            )

    # -- one call -------------------------------------------------------------------------------

    def collect(self) -> dict[str, RequestStates]:
        """The states of every request of the call, then forget them.

        Rows that a preempted request computed twice are the same; the later ones are kept.

        Raises:
            CaptureError: a prompt has rows that were never computed, or ids that are not its own.
            UnsupportedModelError: set-up could not settle how the layers carry their residual.
        """
        steps, prompts, failure = self._steps, self._prompts, self._failure
        self.reset()
        if failure is not None:
            raise failure
        pieces: dict[str, list[tuple[int, _Step, slice]]] = {}
        for step in steps:
            row = 0
            for request_id, start, count in step.batch.segments:
                pieces.setdefault(request_id, []).append((start, step, slice(row, row + count)))
                row += count
        return {
            request_id: self._assemble(request_id, prompts[request_id], request_pieces)
            for request_id, request_pieces in pieces.items()
        }

    def _assemble(
        self, request_id: str, prompt: list[int], pieces: list[tuple[int, _Step, slice]]
    ) -> RequestStates:
        import torch

        length = len(prompt)
        covered = torch.zeros(length, dtype=torch.bool)
        ids = torch.empty(length, dtype=torch.int64)
        states = {
            layer_id: state.new_empty((length, state.shape[1]))
            for layer_id, state in pieces[0][1].states.items()
        }
        for start, step, rows in pieces:
            count = min(rows.stop - rows.start, length - start)  # past the prompt: decoded tokens
            if count <= 0:
                continue
            source, target = slice(rows.start, rows.start + count), slice(start, start + count)
            covered[target] = True
            ids[target] = step.batch.input_ids[source]
            for layer_id, state in step.states.items():
                states[layer_id][target] = state[source]
        if not bool(covered.all()):
            missing = (~covered).nonzero().flatten().tolist()
            raise CaptureError(
                f"{prompt_name(request_id)}: {len(missing)} of {length} tokens were never computed",
                found=f"no state for positions {missing[:5]}{'...' if len(missing) > 5 else ''}",
                needed="every token of the prompt computed",
                next_step="prefix caching must be off, and the KV cache larger than the prompt",
            )
        if ids.tolist() != prompt:
            wrong = next(i for i, token_id in enumerate(ids.tolist()) if token_id != prompt[i])
            raise CaptureError(
                f"{prompt_name(request_id)}: the model was given other tokens than the prompt's",
                found=f"id {int(ids[wrong])} at position {wrong}",
                needed=f"id {prompt[wrong]}",
                next_step="report this vLLM and model: rows are attributed to the wrong request",
            )
        return RequestStates(ids, [states[layer_id] for layer_id in self.layer_ids])


def prompt_name(request_id: str) -> str:
    """A request of speculators (``req_<call>_<index>``), named to whoever passed the prompt."""
    return f"prompt {request_id.rpartition('_')[2]} (request {request_id})"


class _TensorParallel:
    """This worker's place among its tensor-parallel peers."""

    def __init__(self) -> None:
        from vllm.distributed import get_tp_group, tensor_model_parallel_all_gather

        self.records: bool = get_tp_group().rank_in_group == 0
        self._all_gather = tensor_model_parallel_all_gather

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        gathered: torch.Tensor = self._all_gather(tensor.contiguous(), 0)
        return gathered


def _check_positions(batch: Batch) -> None:
    import torch

    expected = torch.cat([torch.arange(start, start + count) for _, start, count in batch.segments])
    positions = batch.positions.to("cpu", torch.int64)
    if not torch.equal(positions, expected):
        row = int((positions != expected).nonzero()[0])
        raise CaptureError(
            f"row {row} of a step holds another position than the batch order says",
            found=f"position {int(positions[row])}",
            needed=f"position {int(expected[row])}",
            next_step="report this vLLM and model runner: its batch order is not understood",
        )
