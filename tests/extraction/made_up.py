"""An engine that is not there: steps as a model would make them, for the code around it."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from vllm_compat.capture.batch import Batch, Segment
from vllm_compat.capture.residual import READINGS
from vllm_compat.extraction import engine, worker
from vllm_compat.extraction.staging import Staging
from vllm_compat.extraction.writing import Piece

LAYERS, HIDDEN = (1, 3, 5, 7), 24
SUM = READINGS["hidden + residual"]


def states(index, length, hidden=HIDDEN):
    """[tokens, layers, hidden], other ones for each sample; twice a half of them is exact."""
    generator = torch.Generator().manual_seed(index)
    return torch.randn(length, len(LAYERS), hidden, generator=generator)


def staging(tokens=64, slots=3, patience=5.0):
    shape = (len(LAYERS), HIDDEN)
    return Staging(
        torch.device("cpu"), tokens, shape, torch.float32, slots=slots, patience=patience
    )


def step(stage, *parts, positions=None):
    """A step of ``(rows, ids, start)`` for each request in it: one piece for each."""
    rows = torch.cat([rows for rows, _, _ in parts])
    ids = torch.cat([torch.as_tensor(ids) for _, ids, _ in parts])
    places = torch.cat([torch.arange(start, start + len(ids)) for _, ids, start in parts])
    stage.begin(len(rows))
    for column in range(len(LAYERS)):
        stage.layer(column, rows[:, column] / 2, rows[:, column] / 2, SUM)
    batch = Batch([], ids, places if positions is None else torch.as_tensor(positions))
    slot = stage.end(batch, len(parts))
    pieces, first = [], 0
    for part, _, start in parts:
        pieces.append(Piece(slot, slice(first, first + len(part)), start))
        first += len(part)
    return pieces


class MadeUpEngine:
    """In place of ``engine.Engine``: the worker's side of the extraction runs in this process.

    Prompts are run in chunks, several at a time, as chunked prefill does.
    """

    STEP, CHUNK = 64, 24

    def __init__(self, arguments, settings, *, stall_timeout):  # noqa: ARG002 - as the engine's
        self.hidden_size, self.dtype = 128, "float32"
        self._left = []  # [sample, rows done]
        self._columns = settings.layer_ids
        scheduler = SimpleNamespace(max_num_batched_tokens=self.STEP)
        worker.StepCapture = lambda *_: SimpleNamespace(failure=None)
        self._extraction = worker._Extraction(
            SimpleNamespace(
                device=torch.device("cpu"),
                vllm_config=SimpleNamespace(scheduler_config=scheduler),
            ),
            settings,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    @property
    def wants_more(self):
        return len(self._left) < 8

    @property
    def busy(self):
        return bool(self._left)

    def add(self, sample):
        self._left.append([sample, 0])

    def step(self):
        room, new, segments, ids, places, rows = self.STEP, [], [], [], [], []
        for each in self._left:
            sample, done = each
            count = min(room, self.CHUNK, len(sample.token_ids) - done)
            if not count:
                continue
            name, room = str(sample.index), room - count
            if not done:
                mask = bytes(sample.loss_mask or [1] * len(sample.token_ids))
                ours = {worker.KEY: {"index": sample.index, "loss_mask": mask}}
                parameters = SimpleNamespace(extra_args=ours)
                new.append(
                    SimpleNamespace(
                        req_id=name, prompt_token_ids=sample.token_ids, sampling_params=parameters
                    )
                )
            segments.append(Segment(name, done, count))
            ids += sample.token_ids[done : done + count]
            places += range(done, done + count)
            rows.append(states(sample.index, len(sample.token_ids), 128)[done : done + count])
            each[1] += count
        self._left = [each for each in self._left if each[1] < len(each[0].token_ids)]
        self._extraction.begin(new, Batch(segments, torch.tensor(ids), torch.tensor(places)))
        half = torch.cat(rows) / 2
        for column, layer_id in enumerate(self._columns):
            self._extraction.layer(layer_id, half[:, column], half[:, column], SUM)
        self._extraction.end()

    def poll(self):
        return engine._merged([self._extraction.poll()])

    def finish(self, timeout):
        return engine._merged([self._extraction.finish(timeout)])
