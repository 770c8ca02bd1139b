"""A run that is killed again and again, at any moment, loses nothing and does nothing twice."""

import collections
import multiprocessing
import os
import random
import signal
import time

import pytest

from tests.files.making import header, sample, states, write
from tests.files.test_formats import same
from vllm_compat.extraction.formats import FORMATS, get_format
from vllm_compat.extraction.manifest import manifest_name, numbers_of, read_manifest
from vllm_compat.extraction.samples import Shard
from vllm_compat.extraction.target import Target
from vllm_compat.extraction.verify import verify

COUNT, KILLS, BATCH = 1200, 20, 4
SHARD = Shard()


def extract(folder, file_format):
    with Target(folder) as target:
        done = target.resume(header(file_format))
        batch = []
        for index in range(COUNT):
            if index in done:
                done.check(sample(index))
                continue
            batch.append(write(folder, sample(index), file_format, chunk=2))
            if len(batch) == BATCH or index == COUNT - 1:
                target.record(batch)
                batch = []
        target.record(batch)
        target.finish()


def recorded(folder):
    path = folder / manifest_name(SHARD)
    if not path.exists():
        return []
    return [numbers_of(line)[0] for _, line in read_manifest(str(path), pytest.fail)]


@pytest.mark.parametrize("file_format", FORMATS)
def test_killed_at_random_moments(tmp_path, file_format):
    moments = random.Random(file_format)
    fork = multiprocessing.get_context("fork")  # torch is loaded already: a start takes no time
    progress = [0]
    for number in range(KILLS):
        process = fork.Process(target=extract, args=(tmp_path, file_format))
        process.start()
        # Every other one at any moment of the start, the rest at any moment of the work.
        deadline = time.monotonic() + 30
        while number % 2 and len(recorded(tmp_path)) == progress[-1]:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.03))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL, "raise COUNT: it was through before the kill"
        progress.append(len(recorded(tmp_path)))
    assert progress == sorted(progress), "a resume lost what was recorded"
    assert len(set(progress)) > KILLS // 2

    extract(tmp_path, file_format)
    assert collections.Counter(recorded(tmp_path)) == dict.fromkeys(range(COUNT), 1)
    report = verify(tmp_path, expected=COUNT)
    assert (report.ok, report.unexpected, report.problems) == (COUNT, 0, [])
    form = get_format(file_format)
    for index in range(COUNT):
        token_ids, layers = form.load(str(tmp_path / form.file_name(index)))
        assert token_ids.tolist() == sample(index).token_ids
        for number, layer in enumerate(layers):
            assert same(layer, states(sample(index))[:, number])
