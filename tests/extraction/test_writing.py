"""From pieces of steps to files of samples."""

import os
import random
import subprocess
import time

import pytest
import torch

from tests.extraction.made_up import LAYERS, staging, states, step
from vllm_compat.extraction.errors import DiskFullError, TargetError
from vllm_compat.extraction.formats import FORMATS, get_format
from vllm_compat.extraction.writing import SampleThreads


class Writing:
    """Threads, the staging that feeds them, and the folder they fill."""

    def __init__(self, folder, file_format="native", slots=3, threads=4):
        self.folder, self.format = folder, get_format(file_format)
        self.stage = staging(slots=slots)
        self.threads = SampleThreads(
            file_format,
            str(folder),
            LAYERS,
            threads=threads,
            durable=False,
            release=self.stage.release,
        )

    def expect(self, index, length):
        self.threads.expect(f"r{index}", index, ids(index, length), [1] * length)

    def step(self, *parts, positions=None):
        """``parts``: (index, rows, start), of as many tokens as there are rows."""
        given = [(rows, ids(i, start + len(rows))[start:], start) for i, rows, start in parts]
        pieces = step(self.stage, *given, positions=positions)
        for (index, _, _), piece in zip(parts, pieces, strict=True):
            self.threads.write(f"r{index}", piece)

    def done(self):
        """{index: record or reason} once all is written."""
        assert self.threads.drain(30)
        return {each.sample: each.record or each.reason for each in self.threads.take_outcomes()}

    def load(self, index):
        token_ids, layers = self.format.load(str(self.folder / self.format.file_name(index)))
        return token_ids.tolist(), torch.stack(list(layers), 1)

    def all_slots_are_free(self):
        for _ in range(3):
            self.stage._free.get(timeout=5)
        return True


def ids(index, length):
    return [1000 * index + place for place in range(length)]


@pytest.fixture
def writing(tmp_path):
    made = Writing(tmp_path)
    yield made
    made.threads.close()


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("seed", range(5))
def test_pieces_in_any_interleaving(tmp_path, file_format, seed):
    choose = random.Random(seed)
    writing = Writing(tmp_path, file_format)
    left = {index: [choose.randint(1, 90), 0] for index in range(40)}
    lengths = {index: length for index, (length, _) in left.items()}
    for index, length in lengths.items():
        writing.expect(index, length)
    while left:
        parts = []
        for index in choose.sample(sorted(left), min(len(left), 5)):
            length, start = left[index]
            count = min(choose.randint(1, 12), length - start)
            parts.append((index, states(index, length)[start : start + count], start))
            left[index][1] += count
            if left[index][1] == length:
                del left[index]
        writing.step(*parts)
    records = writing.done()
    assert sorted(records) == sorted(lengths)
    for index, length in lengths.items():
        token_ids, found = writing.load(index)
        assert token_ids == ids(index, length)
        assert torch.equal(found, states(index, length))
        path = tmp_path / records[index].file
        assert (records[index].bytes, records[index].shape) == (
            path.stat().st_size,
            tuple(states(index, length).shape),
        )
    assert writing.threads.take_outcomes() == []
    assert writing.all_slots_are_free()
    writing.threads.close()


def test_a_preempted_request_starts_again(writing):
    rows = states(1, 30)
    writing.expect(1, 30)
    writing.step((1, rows[:20], 0))
    writing.expect(1, 30)  # vLLM says it is new again
    writing.step((1, rows[:8], 0))
    writing.step((1, rows[8:26], 8))
    writing.step((1, rows[26:], 26))
    assert list(writing.done()) == [1]
    token_ids, found = writing.load(1)
    assert token_ids == ids(1, 30)
    assert torch.equal(found, rows)


def test_what_is_generated_behind_the_prompt_is_not_written(writing):
    writing.expect(1, 5)
    writing.step((1, states(1, 7), 0))
    assert writing.done()[1].shape == (5, 4, 24)
    assert torch.equal(writing.load(1)[1], states(1, 7)[:5])


def refused(writing, reason):
    """Sample 1 was, for this reason; sample 2 of the same step was not; nothing is left over."""
    outcomes = writing.done()
    assert outcomes[1] == reason
    assert outcomes[2].shape == (3, 4, 24)
    assert os.listdir(writing.folder) == ["hs_2.safetensors"]
    assert not writing.threads.knows("r1")
    assert writing.threads.failure is None
    assert writing.all_slots_are_free()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("column", range(4))
def test_a_value_that_is_not_finite(writing, value, column):
    rows = states(1, 6)
    rows[4, column, 11] = value
    writing.expect(1, 6)
    writing.expect(2, 3)
    writing.step((1, rows[:3], 0))
    writing.step((1, rows[3:], 3), (2, states(2, 3), 0))
    refused(writing, f"NaN or infinity at token 4, layer {LAYERS[column]}")


def test_the_ids_of_another_prompt(writing):
    writing.threads.expect("r1", 1, [1000, 1001, 77, 1003], [1] * 4)
    writing.expect(2, 3)
    writing.step((1, states(1, 4), 0), (2, states(2, 3), 0))
    refused(
        writing,
        "the model was given another id than the sample's at token 2: 1002 instead of 77",
    )


def test_other_positions(writing):
    writing.expect(1, 4)
    writing.expect(2, 3)
    writing.step((1, states(1, 4), 0), (2, states(2, 3), 0), positions=[0, 1, 2, 0, 0, 1, 2])
    refused(
        writing, "the model was given another position than the sample's at token 3: 0 instead of 3"
    )


def test_rows_that_were_never_given(writing):
    writing.expect(1, 9)
    writing.expect(2, 3)
    writing.step((1, states(1, 9)[:2], 0), (2, states(2, 3), 0))
    writing.step((1, states(1, 9)[5:], 5))
    refused(writing, "states of 2 of 9 tokens")


def test_rows_of_a_sample_that_was_found_bad_a_moment_ago(writing):
    """The model's thread asked whether it is known before the writing thread gave it up."""
    rows = states(1, 6)
    rows[0, 0, 0] = float("nan")
    writing.expect(1, 6)
    writing.expect(2, 3)
    writing.step((1, rows[:3], 0), (2, states(2, 3), 0))
    assert writing.threads.drain(30)
    writing.step((1, rows[3:], 3))
    refused(writing, "NaN or infinity at token 0, layer 1")


def test_a_disk_that_fills_stops_all_of_it(disk):
    folder = disk("64k")
    writing = Writing(folder, slots=3)
    for index in range(6):
        writing.expect(index, 60)
        writing.step((index, states(index, 60), 0))  # 23 kB each
    done = writing.done()
    assert isinstance(writing.threads.failure, DiskFullError)
    assert all(record.bytes > 23_000 for record in done.values())
    assert sorted(os.listdir(folder)) == sorted(record.file for record in done.values())
    assert 1 <= len(done) <= 2
    assert writing.all_slots_are_free()
    writing.threads.close()


def test_a_folder_that_is_gone_stops_all_of_it(writing):
    subprocess.run(["rmdir", writing.folder], check=True)
    writing.expect(1, 6)
    writing.step((1, states(1, 6), 0))
    assert writing.done() == {}
    assert isinstance(writing.threads.failure, TargetError)
    assert "the folder was removed, renamed or unmounted" in str(writing.threads.failure)
    assert writing.all_slots_are_free()
    writing.folder.mkdir()


def test_a_drain_that_is_not_in_time(writing, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda *_, write=os.pwrite: time.sleep(0.5) or write(*_))
    writing.expect(1, 6)
    writing.step((1, states(1, 6), 0))
    assert not writing.threads.drain(0.1)
    assert list(writing.done()) == [1]


def test_closing_removes_what_is_not_whole(writing):
    writing.expect(1, 6)
    writing.step((1, states(1, 6)[:3], 0))
    assert writing.done() == {}
    [half] = os.listdir(writing.folder)
    assert half.startswith(".hs_1.safetensors.tmp-")
    writing.threads.close()
    assert os.listdir(writing.folder) == []
