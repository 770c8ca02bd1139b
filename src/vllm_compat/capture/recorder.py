"""Keeps the states of one ``generate`` call, request by request, and hands them out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm_compat.capture.arena import Arena
from vllm_compat.capture.batch import Batch
from vllm_compat.capture.steps import StepCapture
from vllm_compat.errors import CaptureError

if TYPE_CHECKING:
    import torch

    from vllm_compat.capture.residual import Combine


class RequestStates(NamedTuple):
    """What one prompt got, on the CPU.

    Attributes:
        input_ids: the ids the model was given, ``[tokens]`` int64.
        layers: for each layer asked for, in the order asked, its states, ``[tokens, hidden]`` in
            the model's dtype, in the recorder's arena.
        finite: whether the states of a token are finite, ``[tokens, layers]`` bool.
    """

    input_ids: torch.Tensor
    layers: list[torch.Tensor]
    finite: torch.Tensor


class _Request:
    """A prompt and the states that have come for it."""

    def __init__(self, prompt: Sequence[int]) -> None:
        import torch

        self.prompt = list(prompt)
        self.states: dict[int, torch.Tensor] = {}
        self.finite: dict[int, torch.Tensor] = {}
        self.input_ids = torch.full((len(self.prompt),), -1, dtype=torch.int64)


class Recorder:
    """Records decoder layers, from one ``reset`` to the next ``collect``.

    Each step's rows go straight to where their request's states are kept, in memory that the parent
    process can map (``arena``). Rows that a preempted request computed twice are the same; the
    later ones are kept.

    Args:
        worker: vLLM's worker, with its model loaded.
        layer_ids: decoder layers to record, 0-based, in any order, repeats allowed.

    Raises:
        UnsupportedModelError: the decoder stack is not found, or its states would be a guess.
    """

    def __init__(self, worker: Any, layer_ids: Sequence[int]) -> None:
        self.layer_ids = list(layer_ids)
        self._requests: dict[str, _Request] = {}
        self._batch: Batch
        self._finite: dict[int, torch.Tensor] = {}
        self._capture = StepCapture(worker, sorted(set(self.layer_ids)), self)
        self.stack = self._capture.stack
        self.arena = Arena(pin=self._capture.device.type == "cuda")

    def reset(self) -> None:
        """Forget everything recorded; the next call starts here."""
        self._requests = {}
        self._capture.resume()
        self.arena.reset()

    # -- one step -------------------------------------------------------------------------------

    def begin(self, new_requests: Sequence[Any], batch: Batch) -> None:
        for new in new_requests:
            self._requests[new.req_id] = _Request(new.prompt_token_ids)
        self._batch = batch
        self._finite = {}

    def layer(
        self,
        layer_id: int,
        hidden: torch.Tensor,
        residual: torch.Tensor | None,
        combine: Combine,
    ) -> None:
        state = combine(hidden, residual, None)
        self._finite[layer_id] = state.isfinite().all(dim=1)
        for request, source, target in self._placed():
            if layer_id not in request.states:
                shape = (len(request.prompt), state.shape[1])
                request.states[layer_id] = self.arena.empty(shape, state.dtype)
            # On the device's own stream: what the model computes next does not overtake it.
            request.states[layer_id][target].copy_(state[source], non_blocking=True)

    def end(self) -> None:
        import torch

        _check_positions(self._batch)
        ids = self._batch.input_ids.cpu()
        finite = {layer_id: rows.cpu() for layer_id, rows in self._finite.items()}
        for request, source, target in self._placed():
            request.input_ids[target] = ids[source].to(torch.int64)
            for layer_id, rows in finite.items():
                kept = request.finite.setdefault(
                    layer_id, torch.zeros(len(request.prompt), dtype=torch.bool)
                )
                kept[target] = rows[source]

    def _placed(self) -> Iterator[tuple[_Request, slice, slice]]:
        """For each segment of the step: whose it is, its rows, and where in the prompt they go."""
        for segment, rows in self._batch.rows():
            request = self._requests[segment.request_id]
            count = min(segment.rows, len(request.prompt) - segment.start)
            if count > 0:  # past the prompt: decoded tokens
                yield (
                    request,
                    slice(rows.start, rows.start + count),
                    slice(segment.start, segment.start + count),
                )

    # -- one call -------------------------------------------------------------------------------

    def collect(self) -> dict[str, RequestStates]:
        """The states of every request of the call.

        They are valid until the next ``reset``, and then as long as a reader of the arena has them.

        Raises:
            CaptureError: a prompt has rows that were never computed, or ids that are not its own.
            UnsupportedModelError: set-up could not settle how the layers carry their residual.
        """
        import torch

        requests, self._requests = self._requests, {}
        failure = self._capture.resume()
        if failure is not None:
            raise failure
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        return {name: self._checked(name, request) for name, request in requests.items()}

    def _checked(self, request_id: str, request: _Request) -> RequestStates:
        import torch

        prompt, ids = request.prompt, request.input_ids.tolist()
        missing = [position for position, token_id in enumerate(ids) if token_id < 0]
        if missing or not request.states:
            raise CaptureError(
                f"{prompt_name(request_id)}: {len(missing)} of {len(ids)} tokens were never"
                " computed",
                found=f"no state for positions {missing[:5]}{'...' if len(missing) > 5 else ''}",
                needed="every token of the prompt computed",
                next_step="prefix caching must be off, and the KV cache larger than the prompt",
            )
        if ids != prompt:
            wrong = next(i for i, token_id in enumerate(ids) if token_id != prompt[i])
            raise CaptureError(
                f"{prompt_name(request_id)}: the model was given other tokens than the prompt's",
                found=f"id {ids[wrong]} at position {wrong}",
                needed=f"id {prompt[wrong]}",
                next_step="report this vLLM and model: rows are attributed to the wrong request",
            )
        return RequestStates(
            request.input_ids,
            [request.states[layer_id] for layer_id in self.layer_ids],
            torch.stack([request.finite[layer_id] for layer_id in self.layer_ids], dim=1),
        )


def prompt_name(request_id: str) -> str:
    """A request of speculators (``req_<call>_<index>``), named to whoever passed the prompt."""
    return f"prompt {request_id.rpartition('_')[2]} (request {request_id})"


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
