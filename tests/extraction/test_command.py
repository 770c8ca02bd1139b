"""``vllm-compat extract`` and ``extract-kimi-k25``: their options, and what they say at the end."""

import argparse
import json

import pytest

from tests.extraction.made_up import LAYERS, MadeUpEngine
from tests.extraction.runs import entries, needs_code, samples, write_jsonl
from vllm_compat import cli, extract_kimi_k25
from vllm_compat.cli import extract
from vllm_compat.extraction import run
from vllm_compat.extraction.run import Options, Progress
from vllm_compat.extraction.samples import Shard


def parsed(*words, **defaults):
    parser = argparse.ArgumentParser()
    extract.add_options(parser, **defaults)
    return extract.options_of(parser.parse_args([*words]))


def test_the_least_and_its_defaults():
    assert parsed("--model", "m", "--data", "d.jsonl", "--output-dir", "o") == Options("m", "o")


def test_every_option():
    text = (
        "--target-model-path m --train-data-path d --output-dir o --layer-ids 3 1 --format native"
        " --seq-length 512 --dtype float32 --trust-remote-code --tensor-parallel-size 2"
        " --gpu-memory-utilization 0.4 --max-num-batched-tokens 256 --max-num-seqs 7"
        " --load-format dummy --quantization fp8 --tokenizer t --distributed-executor-backend ray"
        ' --engine-arg seed=7 --engine-arg=--hf-overrides={"a":"b=c"} --shard 1/4'
        " --on-bad-sample stop --retry-bad --t2d t.pt --d2t d.pt --write-threads 3 --not-durable"
        " --stall-timeout 60"
    )
    assert parsed(*text.split()) == Options(
        "m",
        "o",
        (3, 1),
        "native",
        512,
        "float32",
        True,
        Shard(1, 4),
        "stop",
        True,
        "t.pt",
        "d.pt",
        threads=3,
        durable=False,
        stall_timeout=60.0,
        engine={
            "tensor_parallel_size": 2,
            "gpu_memory_utilization": 0.4,
            "max_num_batched_tokens": 256,
            "max_num_seqs": 7,
            "load_format": "dummy",
            "quantization": "fp8",
            "tokenizer": "t",
            "distributed_executor_backend": "ray",
            "seed": 7,
            "hf_overrides": {"a": "b=c"},
        },
    )


def test_the_launcher_is_asked(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    words = ["--model", "m", "--data", "d", "--output-dir", "o", "--shard", "auto"]
    assert parsed(*words).shard == Shard(1, 3)


@pytest.mark.parametrize("value", ["seed", "seed=", "seed=x", "=1"])
def test_an_engine_argument_that_is_none(value, capsys):
    words = ["extract", "--model", "m", "--data", "d", "--output-dir", "o", "--engine-arg", value]
    with pytest.raises(SystemExit) as error:
        cli.main(words)
    assert error.value.code == 2
    assert f"argument --engine-arg: {value!r} is no NAME=JSON" in capsys.readouterr().err


def test_kimi_k25_says_whose_code_runs(capsys):
    with pytest.raises(SystemExit) as error:
        extract_kimi_k25.main(["--help"])
    assert error.value.code == 0
    help_text = capsys.readouterr().out
    assert extract_kimi_k25.REMOTE_CODE in help_text
    assert "written by Moonshot AI" in help_text
    assert "runs it, with your rights" in help_text


def test_kimi_k25_defaults():
    options = parsed("--data", "d", "--output-dir", "o", **extract_kimi_k25.DEFAULTS)
    assert (options.model, options.layer_ids) == ("moonshotai/Kimi-K2.5", (2, 30, 58, 60))
    assert (options.dtype, options.trust_remote_code) == ("bfloat16", False)
    assert options.engine == {
        "tensor_parallel_size": 8,
        "gpu_memory_utilization": 0.92,
        "max_num_batched_tokens": 16384,
    }


def test_kimi_k25_without_leave_to_run_code(tmp_path, capsys):
    needs_code(tmp_path)
    words = ["--model", str(tmp_path), "--data", "d", "--output-dir", str(tmp_path / "out")]
    assert extract_kimi_k25.main(words) == 3
    said = capsys.readouterr().err
    assert said.startswith(extract_kimi_k25.REMOTE_CODE)
    assert f"extract-kimi-k25: cannot read the config of {tmp_path}" in said


def test_the_summary():
    progress = Progress(None, 5, 7, 1, 14_000, 2_500_000_000, 4.0, notes=["sample 3: NaN"])
    assert extract.summary(progress).splitlines() == [
        "7 samples extracted, 5 were there, 1 refused",
        "14,000 tokens, 2.50 GB in 4 s, 3,500 tokens/s",
        "  sample 3: NaN",
    ]
    assert extract.summary(Progress(kept=5)).splitlines() == [
        "0 samples extracted, 5 were there, 0 refused",
        "0 tokens, 0.00 GB in 0 s",
    ]


@pytest.fixture
def command(tmp_path, model, monkeypatch, capsys):
    """Runs the command with the engine made up; the exit code and what it said."""
    monkeypatch.setattr(run, "Engine", MadeUpEngine)
    layers = [str(each) for each in LAYERS]

    def of(data, *words):
        source = write_jsonl(tmp_path / "data.jsonl", data)
        words = ["extract", "--model", str(model("llama")), "--data", str(source),
                 "--output-dir", str(tmp_path / "out"), "--dtype", "float32",
                 "--layer-ids", *layers, *words]  # fmt: skip
        capsys.readouterr()  # what making the model printed
        code = cli.main(words)
        return code, capsys.readouterr().err

    return of


def test_exit_codes(command, tmp_path):
    data = samples([30, 1, 70, 5])
    code, said = command(data, "--max-samples", "3", "--seq-length", "50")
    assert (code, said.splitlines()[0]) == (0, "3 samples extracted, 0 were there, 0 refused")
    assert {e.index: (e.length, e.cut_from) for e in entries(tmp_path / "out")} == {
        0: (30, None),
        1: (1, None),
        2: (50, 70),
    }
    data.append({"input_ids": [5, 1000], "loss_mask": [1, 1]})
    code, said = command(data, "--seq-length", "50")
    assert (code, said.splitlines()[0]) == (1, "1 samples extracted, 3 were there, 1 refused")
    assert "  sample 4: token id 1000 outside the vocabulary of 1000" in said
    code, said = command(data, "--seq-length", "60")
    assert code == 3
    assert "holds states of another run" in said
    assert command(data[::-1], "--seq-length", "50")[0] == 3


def test_stopping_at_a_bad_sample_keeps_what_is_done(command, tmp_path):
    data = samples([30] * 20)
    data[15] = {"input_ids": [5, 1000], "loss_mask": [1, 1]}
    code, said = command(data, "--on-bad-sample", "stop")
    assert code == 3
    assert "sample 15 was refused" in said
    assert 'on_bad_sample "skip" records it and goes on' in said
    found = {entry.index: entry.ok for entry in entries(tmp_path / "out")}
    assert found.pop(15) is False
    assert set(found.values()) == {True}
    assert len(found) >= 7
    code, said = command(data, "--retry-bad")
    assert (code, said.splitlines()[0]) == (
        1,
        f"{19 - len(found)} samples extracted, {len(found)} were there, 1 refused",
    )


def test_verify_says_the_same_to_machines(command, tmp_path, capsys):
    command(samples([30, 1, 70]))
    assert cli.main(["verify", str(tmp_path / "out"), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["passed"], report["ok"], report["tokens"]) == (True, 3, 101)
    (tmp_path / "out" / "data_1.pt").unlink()
    assert cli.main(["verify", str(tmp_path / "out")]) == 1
    assert "data_1.pt: the file is gone" in capsys.readouterr().out
