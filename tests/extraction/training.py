"""A folder of real states to train from, and steps of training a tiny draft model on it."""

from __future__ import annotations

import copy

import torch
from transformers import AutoConfig

from tests.extraction.runs import samples
from tests.real.reference import reference_states
from vllm_compat.extraction.formats.writer import SampleWriter
from vllm_compat.extraction.header import RunHeader
from vllm_compat.extraction.manifest import written
from vllm_compat.extraction.samples import read_samples
from vllm_compat.extraction.target import Target

LAYERS = (2, 4, 5, 7)
DATA = samples([30, 45, 12, 40, 25, 38])
TOTAL = sum(len(each["input_ids"]) for each in DATA)
LENGTH = 256  # of a batch; a block of their attention's mask is half of it


def write_states(folder, model, file_format):
    """The states that transformers computes, in the files that an extraction writes."""
    header = RunHeader(
        format=file_format,
        layer_ids=LAYERS,
        model=str(model),
        model_config="",
        hidden_size=128,
        dtype="float32",
    )
    with Target(folder) as target:
        target.resume(header)
        for sample in read_samples(DATA):
            [states] = reference_states(model, [sample.token_ids])
            rows = torch.stack([states[layer] for layer in LAYERS], 1)
            writer = SampleWriter(
                file_format, folder, sample.index, sample.token_ids, sample.loss_mask,
                *rows.shape[1:], rows.dtype,
            )  # fmt: skip
            writer.write(0, rows)
            target.record([written(sample, writer.finish())])
        target.finish()


def draft_config(model):
    """One layer of the verifier's shape."""
    config = copy.deepcopy(AutoConfig.from_pretrained(model))
    config.num_hidden_layers = 1
    return config


def losses(draft, batch, steps=8, **arguments):
    """The loss before each of some steps of training on one batch."""
    optimizer = torch.optim.AdamW([p for p in draft.parameters() if p.requires_grad], lr=3e-3)
    found = []
    draft.train()
    for _ in range(steps):
        _tokens, loss, _metrics = draft(**batch, **arguments)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found
