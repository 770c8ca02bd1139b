import json
import tracemalloc
from itertools import chain

import datasets
import numpy as np
import pytest
import torch

from vllm_compat.extraction.errors import SampleError
from vllm_compat.extraction.samples import Sample, Shard, read_samples

ROWS = [{"input_ids": [10 * i, 10 * i + 1], "loss_mask": [0, 1]} for i in range(1, 12)]
SAMPLES = [Sample(i, row["input_ids"], row["loss_mask"]) for i, row in enumerate(ROWS)]


def jsonl(folder):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def saved(folder):
    dataset = datasets.Dataset.from_list([{**row, "seq_len": 2} for row in ROWS])
    dataset.set_format("torch")
    dataset.save_to_disk(folder / "rows")
    return folder / "rows"


def plain(folder):
    return ROWS


SOURCES = pytest.mark.parametrize("source", [jsonl, saved, plain])


@SOURCES
def test_every_source_gives_the_same_samples(source, tmp_path):
    assert list(read_samples(source(tmp_path))) == SAMPLES


@SOURCES
def test_shards_divide_the_source_and_keep_its_indices(source, tmp_path):
    path = source(tmp_path)
    parts = [list(read_samples(path, shard=Shard(number, 3))) for number in range(3)]
    assert [[each.index for each in part] for part in parts] == [
        [0, 3, 6, 9],
        [1, 4, 7, 10],
        [2, 5, 8],
    ]
    assert sorted(chain(*parts), key=lambda each: each.index) == SAMPLES


def test_a_dataset_longer_than_one_read(tmp_path):
    rows = [{"input_ids": [i]} for i in range(1000)]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "rows")
    for shard in (Shard(), Shard(2, 3)):
        read = [(s.index, s.token_ids) for s in read_samples(tmp_path / "rows", shard=shard)]
        assert read == [(i, [i]) for i in range(shard.number, 1000, shard.count)]


@pytest.mark.parametrize(
    "item",
    [[3, 4], (3, 4), np.array([3, 4]), torch.tensor([3, 4]), {"input_ids": torch.tensor([3, 4])}],
)
def test_every_container_of_ids(item):
    assert list(read_samples([item])) == [Sample(0, [3, 4])]


def test_a_long_sample_is_cut_and_says_so():
    row = {"input_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 1, 1]}
    assert list(read_samples([row, [5, 6, 7]], max_len=3)) == [
        Sample(0, [1, 2, 3], [0, 0, 1], cut_from=4),
        Sample(1, [5, 6, 7]),
    ]


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ([], "sample 1 is empty"),
        ({"input_ids": []}, "sample 1 is empty"),
        ([1, -100], "sample 1 has a negative token id\n  found: -100 at position 1"),
        ([[1, 2]], "sample 1: token ids must be a flat sequence of integers"),
        ([1.5], "sample 1: token ids must be a flat sequence of integers"),
        ("text", "sample 1: token ids must be a flat sequence of integers"),
        ({"text": "x"}, "sample 1 has no `input_ids`\n  found: only text"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "found: 2 tokens, a mask of 1"),
        (
            {"input_ids": [1], "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "sample 1 has content that is not text",
        ),
    ],
)
def test_a_wrong_sample_is_named_by_its_index(item, says):
    with pytest.raises(SampleError) as caught:
        list(read_samples([[1], item]))
    assert says in str(caught.value)


def test_messages_of_text_are_fine():
    row = {"input_ids": [1], "messages": [{"role": "user", "content": "hello"}]}
    assert list(read_samples([row])) == [Sample(0, [1])]


def test_a_broken_line_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('[1]\n{"input_ids": [1\n')
    with pytest.raises(SampleError, match=r"sample 1 \(line 2 of .*rows.jsonl\) is not JSON"):
        list(read_samples(path))
    path.write_text("[1]\n\n[2]\n")
    with pytest.raises(SampleError, match="found: an empty line"):
        list(read_samples(path))


def test_no_source_there(tmp_path):
    with pytest.raises(SampleError, match="found: nothing there"):
        list(read_samples(tmp_path / "rows.jsonl"))
    with pytest.raises(SampleError, match="cannot read samples from the folder"):
        list(read_samples(tmp_path))


def test_a_folder_of_splits_is_refused(tmp_path):
    split = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": split, "test": split}).save_to_disk(tmp_path / "rows")
    with pytest.raises(SampleError, match="found: train, test"):
        list(read_samples(tmp_path / "rows"))


def test_a_shard_outside_its_count_is_refused():
    with pytest.raises(SampleError, match="shard 3 of 3"):
        list(read_samples([[1]], shard=Shard(3, 3)))


def test_a_large_file_is_streamed(tmp_path):
    path = tmp_path / "rows.jsonl"
    line = json.dumps({"input_ids": list(range(1000))}) + "\n"
    path.write_text(line * 500)  # two megabytes
    tracemalloc.start()
    assert sum(len(each.token_ids) for each in read_samples(path)) == 500_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000
