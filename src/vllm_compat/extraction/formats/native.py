"""``hs_{i}.safetensors``, as speculators 0.5 to 0.9 cache what their vLLM server extracted.

Their ``check_hidden_states`` and ``ArrowDataset`` want ``token_ids``, int64 ``[tokens]``, equal to
``input_ids`` of row ``i`` of the training dataset, and ``hidden_states`` ``[tokens, layers,
hidden]``, of which the last layer is the verifier's and the others are the draft model's input.
Lengths and loss masks are not here but in that dataset, ``write_dataset``'s or ``prepare-data``'s,
whose subfolder ``hidden_states`` is where the trainer looks first.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Iterable, Sequence
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from vllm_compat.extraction.errors import SampleError
from vllm_compat.extraction.formats import Frame, Stored, dtype_name

if TYPE_CHECKING:
    import torch

    from vllm_compat.extraction.samples import Sample

_NAME = re.compile(r"hs_(0|[1-9]\d*)\.safetensors")
_DTYPES = {"bfloat16": ("BF16", 2), "float16": ("F16", 2), "float32": ("F32", 4)}


def file_name(index: int) -> str:
    return f"hs_{index}.safetensors"


def index_of(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def frame(
    token_ids: Sequence[int],
    loss_mask: Sequence[int],  # noqa: ARG001 - the trainer has it from its dataset
    shape: tuple[int, int, int],
    dtype: torch.dtype,
) -> Frame:
    ids = array("q", token_ids).tobytes()
    code, width = _DTYPES[dtype_name(dtype)]
    end = len(ids) + shape[0] * shape[1] * shape[2] * width
    # The ids first: they are known before the states, and the file is written front to back.
    described = {
        "token_ids": {"dtype": "I64", "shape": [shape[0]], "data_offsets": [0, len(ids)]},
        "hidden_states": {"dtype": code, "shape": list(shape), "data_offsets": [len(ids), end]},
    }
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # keeps the states aligned for readers that map the file
    return Frame(len(header).to_bytes(8, "little") + header + ids, b"")


def load(path: str) -> Stored:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return Stored(
            file.get_tensor("token_ids"), list(file.get_tensor("hidden_states").unbind(1))
        )


def side_files() -> tuple[str, ...]:
    return ()


def write_side_files(folder: str, lengths: Iterable[tuple[int, int]]) -> None:
    """Nothing: lengths are a column of the training dataset."""


def write_dataset(folder: str | os.PathLike[str], samples: Iterable[Sample]) -> None:
    """Save the dataset that speculators' trainer reads beside the states, streaming.

    For sources that are not such a dataset already, or whose samples were cut: the trainer passes
    over a row whose ids are not exactly the extracted ones. A sample without a loss mask gets one
    of ones.

    Args:
        folder: made or replaced; the states belong in its subfolder ``hidden_states``.
        samples: all of the source's, since a row's number is its sample's index.

    Raises:
        SampleError: a sample is missing.
    """
    from datasets import Dataset, Features, Value
    from datasets import Sequence as ListOf
    from datasets.arrow_writer import ArrowWriter

    number = Value("int64")
    features = Features(
        {"input_ids": ListOf(number), "loss_mask": ListOf(number), "seq_len": number}
    )
    folder = os.path.abspath(folder)
    os.makedirs(folder, exist_ok=True)
    # Beside what is saved, and gone afterwards: the common cache would keep a second copy.
    with TemporaryDirectory(prefix=".building-", dir=folder) as scratch:
        rows = os.path.join(scratch, "rows.arrow")
        with ArrowWriter(path=rows, features=features) as writer:
            for row, sample in enumerate(samples):
                if sample.index != row:
                    raise SampleError(
                        f"a training dataset needs every sample, but {row} is missing",
                        found=f"sample {sample.index} in its place",
                        needed="the whole source, not a shard of it",
                    )
                length = len(sample.token_ids)
                mask = sample.loss_mask or [1] * length
                writer.write({"input_ids": sample.token_ids, "loss_mask": mask, "seq_len": length})
            writer.finalize()
        dataset = Dataset.from_file(rows)
        dataset.set_format("torch")
        dataset.save_to_disk(folder)
