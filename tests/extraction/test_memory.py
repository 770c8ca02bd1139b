"""The number of samples costs no memory."""

import time
from pathlib import Path

import pytest

from tests.extraction.runs import Run, recorded, samples, write_jsonl

pytestmark = pytest.mark.engine
FEW, MANY = 1_000, 20_000
NOISE_MB = 40  # allocators keep what they had: of some 1,000 MB


def resident_mb(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields["VmRSS"].split()[0]) / 1000


def test_twenty_times_the_samples(tmp_path, model, record_property):
    source = write_jsonl(tmp_path / "data.jsonl", samples([8] * MANY))
    run = Run(model("llama"), source, tmp_path / "out", "--format", "native", "--not-durable")
    run.wait_for(lambda: recorded(run.folder) >= FEW)
    processes = {"driver": run.tree()[0]}
    processes |= {name: run.named(name) for name in ("EngineCore", "Worker")}
    few = {name: resident_mb(each) for name, each in processes.items()}
    many = dict(few)

    def nearly_all():
        for name, process in processes.items():
            many[name] = max(many[name], resident_mb(process))
        time.sleep(0.2)
        return recorded(run.folder) >= MANY - FEW

    run.wait_for(nearly_all)
    run.wait()
    for name in processes:
        record_property(f"{name}_mb", [few[name], many[name]])
        assert many[name] - few[name] < NOISE_MB
