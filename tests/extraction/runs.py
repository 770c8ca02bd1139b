"""Runs of ``vllm-compat extract`` in a process of their own, and what they left compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import torch

from tests.real.reference import BOUND, reference_states, relative_error
from tests.real.zoo import VOCABULARY
from vllm_compat.extraction.formats import get_format
from vllm_compat.extraction.manifest import from_line, is_manifest, read_manifest
from vllm_compat.extraction.verify import verify

START_SECONDS = 400  # an engine on a machine that has other work


def samples(lengths, seed=0):
    """Random prompts, ids clear of the special tokens, with a mask that differs."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for length in lengths:
        ids = torch.randint(10, VOCABULARY, (length,), generator=generator).tolist()
        found.append({"input_ids": ids, "loss_mask": [each % 2 for each in ids]})
    return found


def write_jsonl(path, data):
    path.write_text("".join(json.dumps(each) + "\n" for each in data))
    return path


def needs_code(folder):
    """A model of a type that only the code in its folder knows, which leaves a trace."""
    (folder / "config.json").write_text(
        json.dumps({"model_type": "ours_alone", "auto_map": {"AutoConfig": "ours.OurConfig"}})
    )
    (folder / "ours.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")


def entries(folder):
    """All that a folder's manifests record, in the order of the lines."""

    def damaged(text):
        raise AssertionError(text)

    return [
        from_line(line)
        for path in sorted(Path(folder).iterdir())
        if is_manifest(path.name)
        for _, line in read_manifest(str(path), damaged)
    ]


def recorded(folder):
    """How many samples are recorded so far; the last line may be half written."""
    manifests = Path(folder).glob("manifest-*.jsonl")
    return sum(path.read_bytes().count(b"\n") for path in manifests)


def check(folder, model, data, layer_ids, file_format):
    """Every sample once, whole, and as transformers has it; the worst error of any token."""
    assert Counter(entry.index for entry in entries(folder)) == dict.fromkeys(range(len(data)), 1)
    report = verify(folder, expected=len(data))
    assert (report.ok, report.unexpected, report.problems) == (len(data), 0, [])
    return compare(folder, model, dict(enumerate(data)), layer_ids, file_format)


def compare(folder, model, data, layer_ids, file_format):
    """The worst error of any token of these samples; every value that a file holds is looked at."""
    form, worst = get_format(file_format), 0.0
    for index, sample in data.items():
        path = Path(folder) / form.file_name(index)
        ids, layers = form.load(str(path))
        assert ids.tolist() == sample["input_ids"]
        if file_format == "legacy":
            mask = torch.load(path, weights_only=True)["loss_mask"]
            assert mask.tolist() == sample["loss_mask"]
        [reference] = reference_states(model, [sample["input_ids"]])
        assert len(layers) == len(layer_ids)
        for layer_id, states in zip(layer_ids, layers, strict=True):
            assert states.dtype == torch.float32
            error = relative_error(states, reference[layer_id])
            assert error < BOUND, f"sample {index}, layer {layer_id}: error {error:.2g}"
            worst = max(worst, error)
    return worst


class Run:
    """``vllm-compat extract`` on a small engine."""

    def __init__(self, model, data, folder, *options, workers=1):
        self.folder = Path(folder)
        self.log = Path(data).with_name(f"{time.monotonic_ns()}.log")  # not on a target that fails
        command = [sys.executable, "-m", "vllm_compat", "extract"]
        command += ["--model", model, "--data", data, "--output-dir", folder]
        command += ["--dtype", "float32", "--seq-length", "512", "--max-num-batched-tokens", "256"]
        command += ["--gpu-memory-utilization", "0.4", "--tensor-parallel-size", str(workers)]
        bind = {} if workers == 1 else {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*map(str, command), *map(str, options)],
                env={**os.environ, **bind},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def text(self):
        return self.log.read_text(errors="replace")

    def tree(self):
        """The driver and all below it."""
        driver = psutil.Process(self.process.pid)
        return [driver, *driver.children(recursive=True)]

    def named(self, text):
        """The first process below the driver whose title has the text."""
        for process in self.tree()[1:]:
            title = " ".join(process.cmdline())
            if text in title and "resource_tracker" not in title:
                return process
        raise LookupError(f"{text} in none of {[each.cmdline() for each in self.tree()]}")

    def wait_for(self, condition, seconds=START_SECONDS):
        """Until it holds, while the run is going."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"the run ended before:\n{self.text()[-3000:]}"
            assert time.monotonic() < deadline, f"not in {seconds} s:\n{self.text()[-3000:]}"
            time.sleep(0.02)

    def wait(self, code=0, seconds=START_SECONDS):
        """The run's end, with this exit code; what it printed."""
        found = self.process.wait(seconds)
        assert found == code, f"exit code {found}:\n{self.text()[-3000:]}"
        return self.text()


def shared_memory(processes):
    """The names in /dev/shm that these processes have mapped."""
    names = set()
    for process in processes:
        try:
            maps = Path(f"/proc/{process.pid}/maps").read_text()
        except OSError:  # ended meanwhile
            continue
        names |= {word for word in maps.split() if word.startswith("/dev/shm/")}
    return names


def gone(processes, seconds):
    """How long it took until none was there; fails where one is there after so many seconds."""
    start = time.monotonic()
    while left := [each for each in processes if alive(each)]:
        assert time.monotonic() - start < seconds, f"still there: {left}"
        time.sleep(0.05)
    return time.monotonic() - start


def alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
