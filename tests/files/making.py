"""Samples with states that can be told apart, and a folder of them."""

import torch

from vllm_compat.extraction.formats.writer import SampleWriter
from vllm_compat.extraction.header import RunHeader
from vllm_compat.extraction.manifest import Entry, written
from vllm_compat.extraction.samples import Sample

LAYERS, HIDDEN = 4, 24


def header(file_format="native", **changes):
    values = {
        "format": file_format,
        "layer_ids": (1, 3, 5, 7),
        "model": "tiny",
        "model_config": "0123456789abcdef",
        "hidden_size": HIDDEN,
        "dtype": "bfloat16",
    }
    return RunHeader(**{**values, **changes})


def sample(index, length=None):
    """Tokens that no other sample has; lengths from 1 to 9."""
    length = 1 + index * 7 % 9 if length is None else length
    return Sample(index, [1000 * index + i for i in range(length)], [i % 2 for i in range(length)])


def states(each, dtype=torch.bfloat16):
    """Seeded by the index: equal for equal samples, different otherwise."""
    generator = torch.Generator().manual_seed(each.index)
    shape = (len(each.token_ids), LAYERS, HIDDEN)
    return torch.randn(shape, generator=generator).to(dtype)


def write(folder, each, file_format="native", rows=None, chunk=None) -> Entry:
    """Write a sample in chunks of rows and return its entry."""
    rows = states(each) if rows is None else rows
    writer = SampleWriter(
        file_format, folder, each.index, each.token_ids, each.loss_mask, *rows.shape[1:], rows.dtype
    )
    step = chunk or len(rows)
    for start in range(0, len(rows), step):
        reused = rows[start : start + step].clone()
        writer.write(start, reused)
        reused.fill_(7)  # as a ring's memory is, once `write` has returned
    return written(each, writer.finish())
