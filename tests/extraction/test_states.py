"""What lies in the files is what transformers computes, for every token of every layer."""

import json

import pytest

from tests.extraction.runs import check, compare, entries, samples
from tests.real.zoo import VOCABULARY
from vllm_compat.extraction.run import Options, extract

pytestmark = pytest.mark.engine
# Steps are of 256 tokens: some prompts take several, and begin in the middle of one.
LENGTHS = [3, 130, 1, 17, 64, 300, 200, 90, 1, 511, 600] + [40] * 40
ENGINE = {"max_num_batched_tokens": 256, "gpu_memory_utilization": 0.4}


def options(folder, model, **changes):
    values = {"max_len": 512, "dtype": "float32", "engine": ENGINE}
    return Options(model=str(model), output=str(folder), **{**values, **changes})


def cut(data, length):
    return [{name: values[:length] for name, values in each.items()} for each in data]


def test_llama_in_the_legacy_format(tmp_path, model, record_property):
    data, layers, seen = samples(LENGTHS), (5, 0, 7), []
    outside = {"input_ids": [11, VOCABULARY, 12], "loss_mask": [1, 1, 1]}
    last = extract([*data, outside], options(tmp_path, model("llama"), layer_ids=layers),
                   lambda progress: seen.append(progress.done))  # fmt: skip
    data = cut(data, 512)
    assert (last.done, last.bad, last.kept) == (len(data), 1, 0)
    assert last.tokens == sum(len(each["input_ids"]) for each in data)
    assert seen[-1] == len(data)
    reason = "token id 1000 outside the vocabulary of 1000"
    assert last.notes == [f"sample {len(data)}: {reason}"]
    by_index = {entry.index: entry for entry in entries(tmp_path)}
    assert sorted(by_index) == list(range(len(data) + 1))
    assert {i: e.cut_from for i, e in by_index.items() if e.cut_from} == {10: 600}
    assert {i: e.reason for i, e in by_index.items() if not e.ok} == {len(data): reason}
    sizes = {str(i): len(each["input_ids"]) for i, each in enumerate(data)}
    assert json.loads((tmp_path / "sample_lengths.json").read_bytes()) == sizes
    worst = compare(tmp_path, model("llama"), dict(enumerate(data)), layers, "legacy")
    record_property("worst_error", worst)

    again = extract([*data[:3]], options(tmp_path, model("llama"), layer_ids=layers))
    assert (again.done, again.kept) == (0, len(data) + 1)  # and no engine was started


def test_kimi_k25_in_the_native_format(tmp_path, model, record_property):
    data, layers = samples(LENGTHS, seed=1), (1, 4, 0, 5)
    last = extract(
        data,
        options(
            tmp_path, model("kimi_k25"), layer_ids=layers, format="native", trust_remote_code=True
        ),
    )
    assert (last.done, last.bad) == (len(data), 0)
    worst = check(tmp_path, model("kimi_k25"), cut(data, 512), layers, "native")
    record_property("worst_error", worst)


def test_two_tensor_parallel_workers(tmp_path, model, monkeypatch, record_property):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    data, layers = samples(LENGTHS, seed=2), (7, 3)
    engine = {**ENGINE, "tensor_parallel_size": 2}
    last = extract(
        data,
        options(tmp_path, model("llama"), layer_ids=layers, format="native", engine=engine),
    )
    assert (last.done, last.bad) == (len(data), 0)
    worst = check(tmp_path, model("llama"), cut(data, 512), layers, "native")
    record_property("worst_error", worst)
