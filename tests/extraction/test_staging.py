"""Slots between a model and the threads that write."""

import threading
import time

import pytest
import torch

from tests.extraction.made_up import HIDDEN, LAYERS, staging, states, step
from vllm_compat.errors import CaptureError
from vllm_compat.extraction.staging import Staging


def test_a_step_lies_in_its_slot():
    stage = staging()
    rows = states(1, 5)
    [piece] = step(stage, (rows, [11, 12, 13, 14, 15], 30))
    slot = piece.slot
    slot.wait()
    assert torch.equal(slot.states[:5], rows)
    assert torch.equal(slot.norms[:5], rows.abs().amax(dim=2))
    assert slot.input_ids[:5].tolist() == [11, 12, 13, 14, 15]
    assert slot.positions[:5].tolist() == [30, 31, 32, 33, 34]


def test_a_slot_is_used_again_when_its_last_reader_is_done():
    stage = staging(slots=1, patience=0.05)
    first, _ = step(stage, (states(1, 2), [1, 2], 0), (states(2, 1), [3], 0))
    stage.release(first.slot)
    with pytest.raises(CaptureError, match="the disk took no states for 0 s"):
        stage.begin(1)
    stage.release(first.slot)
    [again] = step(stage, (states(3, 1), [4], 0))
    assert again.slot is first.slot
    assert torch.equal(again.slot.states[:1], states(3, 1))


def test_a_step_waits_for_a_slot():
    stage = staging(slots=1, patience=30)
    [piece] = step(stage, (states(1, 1), [1], 0))
    threading.Timer(0.2, stage.release, [piece.slot]).start()
    start = time.monotonic()
    stage.begin(1)
    assert 0.15 < time.monotonic() - start < 10


def test_a_step_that_did_not_end_gives_its_slot_back():
    stage = staging(slots=1, patience=0.05)
    stage.begin(3)
    stage.cancel()
    stage.cancel()
    stage.begin(3)
    with pytest.raises(CaptureError, match="the disk took no states"):
        stage.begin(3)


def test_a_value_that_is_not_finite_shows_in_the_norms():
    rows = states(1, 3)
    rows[1, 2, 5], rows[2, 0, 7] = float("nan"), float("-inf")
    [piece] = step(staging(), (rows, [1, 2, 3], 0))
    finite = piece.slot.norms[:3].isfinite().tolist()
    assert finite == [[True] * 4, [True, True, False, True], [False, True, True, True]]


def test_a_step_that_fits_no_memory():
    with pytest.raises(CaptureError, match="not enough memory to stage") as error:
        Staging(torch.device("cpu"), 1 << 42, (len(LAYERS), HIDDEN), torch.float32, slots=2,
                patience=1)  # fmt: skip
    assert error.value.needed.startswith("1572864.00 GiB for a step of 4398046511104 tokens")
