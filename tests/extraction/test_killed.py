"""Processes of real runs are killed: nothing is lost, nothing is left behind.

``KILLS`` in the environment is how often; the default kills each kind of process once.
"""

import os
import random
import subprocess
import sys
import time

import pytest

from tests.extraction.runs import Run, check, gone, recorded, samples, shared_memory, write_jsonl

pytestmark = pytest.mark.engine
KILLS = int(os.environ.get("KILLS", "4"))
GONE_SECONDS = 10.0
LAYERS = (2, 4, 5, 7)


@pytest.mark.parametrize("file_format", ["native"])
def test_killed_again_and_again(tmp_path, model, file_format, record_property):
    moments = random.Random(20)
    data = samples([40] * (600 + 400 * KILLS))
    source, folder = write_jsonl(tmp_path / "data.jsonl", data), tmp_path / "out"
    options = ["--format", file_format, "--layer-ids", *LAYERS]
    progress, waits = [0], []
    for number in range(KILLS):
        victim = ("driver", "core", "worker", "driver while it starts")[number % 4]
        run = Run(model("llama"), source, folder, *options, workers=2 if victim == "worker" else 1)
        if victim == "driver while it starts":
            run.wait_for(lambda run=run: len(run.tree()) > 2)  # the guard, and one of vLLM's
            time.sleep(moments.uniform(0, 10))
        else:
            run.wait_for(lambda: recorded(folder) > progress[-1])
            time.sleep(moments.uniform(0, 0.7))
        tree = run.tree()
        memory = shared_memory(tree)
        if victim == "core":
            run.named("EngineCore").kill()
        elif victim == "worker":
            assert memory, "two workers share memory: where is it?"
            run.named("Worker").kill()
        else:
            run.process.kill()
        begun = time.monotonic()
        if victim in ("core", "worker"):
            text = run.wait(code=3, seconds=60)
            assert "the same run goes on where this one ended" in text
        else:
            run.process.wait(5)
        waits.append((victim, time.monotonic() - begun + gone(tree, GONE_SECONDS)))
        assert [name for name in memory if os.path.exists(name)] == []
        progress.append(recorded(folder))
    assert progress == sorted(progress), "a resume lost what was recorded"
    record_property("seconds_until_all_were_gone", waits)
    record_property("recorded_after_each", progress)

    text = Run(model("llama"), source, folder, *options).wait()
    new = len(data) - progress[-1]
    assert f"{new} samples extracted, {progress[-1]} were there, 0 refused" in text
    worst = check(folder, model("llama"), data, LAYERS, file_format)
    record_property("worst_error", worst)
    command = [sys.executable, "-m", "vllm_compat", "verify", folder, "--expected", str(len(data))]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    command[-1] = str(len(data) + 1)
    said = subprocess.run(command, check=False, capture_output=True, text=True)
    assert said.returncode == 1
    assert f"sample {len(data)}: not recorded in any manifest" in said.stdout
