"""Stub packages made from contracts: what is read of a stub is what was recorded."""

from __future__ import annotations

import importlib
import sys

import pytest

from vllm_compat.contracts import load_vllm, releases
from vllm_compat.contracts.stub import generate
from vllm_compat.probe import SourceTree


def shape(finding):
    """What a stub keeps of a finding; what lies outside of vLLM is a value in the stub."""
    kind = finding.kind or ("value" if finding.status == "found" else None)
    return finding.status, kind, str(finding.signature)


@pytest.mark.parametrize("release", releases())
def test_a_stub_is_called_as_the_release_is(release: str, tmp_path) -> None:
    contract = load_vllm(release).contract
    stub = SourceTree(generate(contract, tmp_path), "vllm")
    for symbol, finding in contract.findings.items():
        read, told = shape(stub.probe(symbol)), shape(finding)
        if told == ("found", "class", "None"):
            told = ("found", "class", "(*args, **kwargs)")  # an enum's constructor, say
        assert read == told, symbol


def test_a_stub_keeps_what_it_is_called_with(tmp_path, monkeypatch) -> None:
    generate(load_vllm("0.11.0").contract, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        stub = importlib.import_module("vllm._stub")
        config = importlib.import_module("vllm.config")
        executor = importlib.import_module("vllm.v1.executor.multiproc_executor")
        status = importlib.import_module("vllm.v1.request").RequestStatus.FINISHED_ABORTED

        cache = config.CacheConfig(block_size=32)
        assert (cache.block_size, cache.swap_space) == (32, ...)
        with pytest.raises(TypeError, match="surprise"):
            config.CacheConfig(surprise=1)
        made = executor.MultiprocExecutor(cache)
        assert made.vllm_config is cache
        assert not hasattr(made, "sample_tokens")  # came with 0.11.1
        assert made.anything_else(1, a=2)._symbol.endswith("MultiprocExecutor.anything_else()")
        assert list(status) == []
        stub.answers[f"{made.symbol}.execute_model"] = sorted
        assert made.execute_model("plan") == ["non_block", "scheduler_output"]
        assert [symbol.partition(":")[2] for symbol, _ in stub.calls] == [
            "CacheConfig",
            "MultiprocExecutor",
            "MultiprocExecutor.anything_else",
            "MultiprocExecutor.execute_model",
        ]
        with pytest.raises(ImportError):
            importlib.import_module("vllm.utils.hashing")
    finally:
        for name in [n for n in sys.modules if n.partition(".")[0] == "vllm"]:
            del sys.modules[name]
