"""Targets that fail: before a model is loaded, or in the middle of a real run."""

import os
import subprocess

import pytest

from tests.extraction.runs import Run, check, recorded, samples, write_jsonl
from vllm_compat.extraction.target import Target

LAYERS = (1, 3, 5, 7)


def test_a_second_run_is_refused_before_anything_is_loaded(tmp_path, model):
    source = write_jsonl(tmp_path / "data.jsonl", samples([3]))
    with Target(tmp_path / "out"):
        text = Run(model("llama"), source, tmp_path / "out").wait(code=3, seconds=120)
    assert f"found: process {os.getpid()} on" in text
    assert "EngineCore" not in text


def test_a_read_only_target_is_refused_before_anything_is_loaded(tmp_path, model, disk):
    source, folder = write_jsonl(tmp_path / "data.jsonl", samples([3])), disk("1m")
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    text = Run(model("llama"), source, folder / "out").wait(code=3, seconds=120)
    assert "Read-only file system" in text
    assert "choose another folder, or mount this one writable" in text
    assert "EngineCore" not in text


@pytest.mark.engine
def test_a_disk_that_fills_and_a_folder_that_vanishes(tmp_path, model, disk, record_property):
    """Three runs: one ends with the disk full, one with its folder gone, the last finishes."""
    data = samples([40] * 1500)
    source, small = write_jsonl(tmp_path / "data.jsonl", data), disk("170m")
    folder, away = small / "out", small / "away"
    arguments = (model("llama"), source, folder, "--layer-ids", *LAYERS, "--format", "legacy")

    text = Run(*arguments).wait(code=3)
    assert "make room and start the same run again: it goes on where this one ended" in text
    full = recorded(folder)
    assert 0 < full < len(data)

    subprocess.run(["mount", "-o", "remount,size=400m", small], check=True)
    second = Run(*arguments)
    second.wait_for(lambda: recorded(folder) > full)
    folder.rename(away)
    text = second.wait(code=3, seconds=60)
    assert "the folder was removed, renamed or unmounted" in text
    away.rename(folder)
    kept = recorded(folder)
    assert full < kept < len(data)

    text = Run(*arguments).wait()
    assert f"{len(data) - kept} samples extracted, {kept} were there, 0 refused" in text
    record_property("recorded_after_each", [full, kept])
    record_property("worst_error", check(folder, model("llama"), data, LAYERS, "legacy"))
