"""``data_{i}.pt`` through speculators 0.3's or 0.4's own loader, as its trainer uses it."""

import json
from itertools import islice
from pathlib import Path

import pytest
import torch
from speculators.train import data as theirs

from tests.files.making import header, sample, states, write
from vllm_compat.extraction.target import Target

SAMPLES = [sample(index, 3 + index) for index in range(5)]
KNOWS_LENGTHS = "sample_lengths.json" in Path(theirs.__file__).read_text()


@pytest.fixture
def folder(tmp_path):
    with Target(tmp_path) as target:
        target.resume(header("legacy"))
        target.record([write(tmp_path, each, "legacy", chunk=2) for each in SAMPLES])
        target.finish()
    return tmp_path


def as_their_script_writes_it(folder):
    """The same samples, each layer a tensor of its own, as their offline script saves them."""
    folder.mkdir()
    for each in SAMPLES:
        content = {
            "input_ids": torch.as_tensor(each.token_ids, dtype=torch.long),
            "hidden_states": [layer.contiguous() for layer in states(each).unbind(1)],
            "loss_mask": torch.tensor(each.loss_mask),
        }
        torch.save(content, folder / f"data_{each.index}.pt")
    lengths = {str(each.index): len(each.token_ids) for each in SAMPLES}
    (folder / "sample_lengths.json").write_text(json.dumps(lengths))
    return folder


def files_of(folder):
    return sorted(str(path) for path in theirs.list_files(folder))


def equal(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert value.dtype == other[key].dtype
        assert torch.equal(value, other[key])


def test_their_search_finds_the_samples_and_nothing_else(folder):
    assert files_of(folder) == [str(folder / f"data_{i}.pt") for i in range(5)]


@pytest.mark.parametrize("dtype", [torch.float, torch.bfloat16])
def test_every_item_is_what_their_own_files_give(folder, tmp_path, dtype):
    reference = as_their_script_writes_it(tmp_path / "theirs")
    ours, expected = (
        theirs.Eagle3SampleFileDataset(64, file_list=files, hidden_states_dtype=dtype)
        for files in (files_of(folder)[:5], files_of(reference))
    )
    assert len(ours) == len(expected) == 5
    for index in range(5):
        equal(ours[index], expected[index])
    if KNOWS_LENGTHS:
        assert ours.approx_lengths == expected.approx_lengths == [3, 4, 5, 6, 7]


def test_one_item_value_by_value(folder):
    item = theirs.Eagle3SampleFileDataset(64, datapath=str(folder / "."), file_list=None)
    item = next(each for each in islice(item, 5) if each["input_ids"][0] == 2001)
    rows = states(SAMPLES[2]).float()
    assert item["input_ids"].tolist() == [2001, 2002, 2003, 2004]
    assert item["loss_mask"].tolist() == [1, 0, 1, 0]
    assert item["lengths"].tolist() == [4]
    assert torch.equal(item["hidden_states"], rows[:-1, :3].flatten(1))
    assert torch.equal(item["verifier_last_hidden_states"], rows[1:, 3])


def test_a_collated_batch_is_what_their_own_files_give(folder, tmp_path):
    reference = as_their_script_writes_it(tmp_path / "theirs")
    batches = []
    for files in (files_of(folder)[:5], files_of(reference)):
        dataset = theirs.Eagle3SampleFileDataset(16, file_list=files)
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=5, collate_fn=theirs.create_collate_fn(16), num_workers=1
        )
        batches += list(loader)
    ours, expected = batches
    equal(ours, expected)
    assert ours["lengths"].tolist() == [2, 3, 4, 5, 2]
    assert ours["hidden_states"].shape == (1, 16, 72)


def test_lengths_are_written_anew_with_every_finish(folder):
    assert json.loads((folder / "sample_lengths.json").read_bytes()) == {
        "0": 3, "1": 4, "2": 5, "3": 6, "4": 7,
    }  # fmt: skip
    with Target(folder) as target:
        target.resume(header("legacy"))
        target.record([write(folder, sample(9, 2), "legacy")])
        target.finish()
    assert json.loads((folder / "sample_lengths.json").read_bytes())["9"] == 2
