"""``hs_{i}.safetensors`` through speculators' own readers and checks of 0.5 and later."""

import warnings

import pytest
import torch
from datasets import load_from_disk
from hs_connectors import FileTransfer
from speculators.data_generation import offline as theirs
from speculators.models.eagle3.data import shift_batch
from speculators.models.utils import resolve_target_layer_ids
from speculators.train.data import ArrowDataset, CollateFn
from speculators.train.recovery import SampleUnavailable

from tests.files.making import HIDDEN, header, sample, states, write
from vllm_compat.extraction.errors import SampleError
from vllm_compat.extraction.formats.native import write_dataset
from vllm_compat.extraction.layers import from_vllm
from vllm_compat.extraction.samples import read_samples
from vllm_compat.extraction.target import Target

SAMPLES = [sample(index, 3 + index) for index in range(5)]


@pytest.fixture
def folder(tmp_path):
    """A training folder: the dataset, and the states of all samples but the fourth."""
    write_dataset(tmp_path, SAMPLES)
    with Target(tmp_path / "hidden_states") as target:
        target.resume(header())
        kept = [each for each in SAMPLES if each.index != 3]
        target.record([write(target.folder, each, chunk=2) for each in kept])
        target.finish()
    return tmp_path


def test_their_check_passes_every_file_and_would_not_pass_another(folder):
    transfer = FileTransfer(folder / "hidden_states")
    for index in (0, 1, 2, 4):
        theirs.check_hidden_states(transfer.get_cached(index), SAMPLES[index].token_ids)
    with pytest.raises(ValueError, match="Token ids don't match"):
        theirs.check_hidden_states(transfer.get_cached(0), SAMPLES[1].token_ids)
    assert transfer.get_cached(3) is None


def test_their_check_sees_a_value_that_is_not_finite(tmp_path):
    rows = states(SAMPLES[0])
    rows[1, 2, 3] = float("nan")
    write(tmp_path, SAMPLES[0], rows=rows)
    with pytest.raises(ValueError, match="non-finite"):
        theirs.check_hidden_states(FileTransfer(tmp_path).get_cached(0), SAMPLES[0].token_ids)


def test_their_resume_sees_what_is_done_and_nothing_corrupt(folder):
    (folder / "hidden_states" / ".hs_3.safetensors.tmp-1").write_bytes(b"half")
    existing = theirs.get_existing_hidden_state_indices(folder / "hidden_states")
    assert existing == [0, 1, 2, 4]
    assert theirs.find_corrupt_hidden_state_indices(folder / "hidden_states", existing) == {}
    assert theirs.get_indices_to_process(5, None, existing, 1, 0) == [3]


def test_every_item_of_their_dataset(folder):
    dataset = ArrowDataset(64, folder, on_missing="skip")
    assert len(dataset) == 5
    assert dataset.approx_lengths == [3, 4, 5, 6, 7]
    assert isinstance(dataset[3], SampleUnavailable)
    for index in (0, 1, 2, 4):
        item, rows = dataset[index], states(SAMPLES[index])
        assert item["input_ids"].tolist() == SAMPLES[index].token_ids
        assert item["loss_mask"].tolist() == SAMPLES[index].loss_mask
        assert item["lengths"].tolist() == [3 + index]
        assert item["hidden_states"].dtype == torch.bfloat16
        assert torch.equal(item["hidden_states"], rows[:, :3].flatten(1))
        assert torch.equal(item["verifier_last_hidden_states"], rows[:, 3])


def test_a_split_of_their_dataset_finds_its_files(folder):
    dataset = ArrowDataset(64, folder, on_missing="raise", train_ratio=0.8, split="val")
    assert torch.equal(dataset[0]["verifier_last_hidden_states"], states(SAMPLES[4])[:, 3])


def test_a_batch_of_their_loader(folder):
    loader = torch.utils.data.DataLoader(
        ArrowDataset(64, folder, on_missing="skip"),
        batch_size=5,
        collate_fn=CollateFn(32, HIDDEN, preprocess=shift_batch),
        num_workers=1,
    )
    [batch] = loader
    rows = [states(each) for each in SAMPLES if each.index != 3]
    aux = torch.cat([each[:-1, :3].flatten(1) for each in rows])
    last = torch.cat([each[1:, 3] for each in rows])
    assert batch["error_records"] == 1
    assert batch["hidden_states"].shape == (1, 32, 72)
    assert torch.equal(batch["hidden_states"][0, :15], aux)
    assert torch.equal(batch["verifier_last_hidden_states"][0, :15], last)
    assert batch["document_ids"][0].tolist() == [0] * 2 + [1] * 3 + [2] * 4 + [3] * 6 + [-1] * 17


def test_the_trainer_passes_over_a_cut_sample_unless_the_dataset_is_cut_too(tmp_path):
    write_dataset(tmp_path / "whole", SAMPLES)
    [cut] = [s for s in read_samples(tmp_path / "whole", max_len=4) if s.index == 4]
    assert (len(cut.token_ids), cut.cut_from) == (4, 7)
    for name in ("whole", "cut"):
        (tmp_path / name / "hidden_states").mkdir(parents=True)
        write(tmp_path / name / "hidden_states", cut)
    write_dataset(tmp_path / "cut", read_samples(tmp_path / "whole", max_len=4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        item = ArrowDataset(64, tmp_path / "whole", on_missing="raise")[4]
    assert isinstance(item, SampleUnavailable)
    item = ArrowDataset(64, tmp_path / "cut", on_missing="raise")[4]
    assert torch.equal(item["verifier_last_hidden_states"], states(cut)[:, 3])


def test_the_dataset_is_one_that_samples_are_read_from(folder):
    assert list(read_samples(folder)) == SAMPLES
    assert load_from_disk(folder).column_names == ["input_ids", "loss_mask", "seq_len"]
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_a_dataset_of_a_part_is_refused(tmp_path):
    with pytest.raises(SampleError, match=r"but 1 is missing\n  found: sample 2 in its place"):
        write_dataset(tmp_path, [SAMPLES[0], SAMPLES[2]])


def test_their_default_layers_in_our_convention(tmp_path):
    """Their ids are vLLM's; the last layer, which they call the number of layers, is appended."""
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 32}')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ids = resolve_target_layer_ids(None, str(tmp_path))
    assert ids == [2, 16, 29]
    assert from_vllm([*ids, 32]) == [1, 15, 28, 31]
    assert resolve_target_layer_ids([0, 32], str(tmp_path)) == [0, 32]
    with pytest.raises(ValueError, match=r"within \[0, 32\]"):
        resolve_target_layer_ids([33], str(tmp_path))
