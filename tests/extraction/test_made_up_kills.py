"""The whole of a run but for vLLM, killed at fifty moments."""

import multiprocessing
import os
import random
import signal
import time
from collections import Counter

import pytest
import torch

from tests.extraction.made_up import LAYERS, MadeUpEngine, states
from tests.extraction.runs import entries, recorded, samples
from vllm_compat.extraction import run
from vllm_compat.extraction.formats import FORMATS, get_format
from vllm_compat.extraction.verify import verify

KILLS, COUNT = 50, 4000


def extract(data, options):
    run.Engine, run.POLL_SECONDS = MadeUpEngine, 0.01
    return run.extract(data, options)


@pytest.mark.parametrize("file_format", FORMATS)
def test_killed_at_fifty_moments(tmp_path, model, file_format):
    moments = random.Random(file_format)
    data = samples(moments.choices(range(1, 60), k=COUNT))
    folder = tmp_path / "out"
    options = run.Options(
        str(model("llama")),
        str(folder),
        LAYERS,
        file_format,
        dtype="float32",
        threads=3,
        durable=False,
    )
    fork = multiprocessing.get_context("fork")  # torch is loaded already: a start takes no time
    progress = [0]
    for number in range(KILLS):
        process = fork.Process(target=extract, args=(data, options))
        process.start()
        deadline = time.monotonic() + 60
        while number % 2 and recorded(folder) == progress[-1]:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.05))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL, "raise COUNT: it was through before the kill"
        progress.append(recorded(folder))
    assert progress == sorted(progress), "a resume lost what was recorded"
    assert len(set(progress)) > KILLS // 2

    process = fork.Process(target=extract, args=(data, options))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert Counter(entry.index for entry in entries(folder)) == dict.fromkeys(range(COUNT), 1)
    report = verify(folder, expected=COUNT)
    assert (report.ok, report.unexpected, report.problems) == (COUNT, 0, [])
    form = get_format(file_format)
    for index, sample in enumerate(data):
        token_ids, layers = form.load(str(folder / form.file_name(index)))
        assert token_ids.tolist() == sample["input_ids"]
        assert torch.equal(torch.stack(layers, 1), states(index, len(token_ids), 128))
