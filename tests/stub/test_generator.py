"""The real speculators, with the real adapters, on a stub of every vLLM: up to the first step.

``VLLM_COMPAT_SOURCES`` names a folder with the unpacked wheels ``speculators/<release>``. Of them
the modules that run in process are taken, as they are; the rest of the package needs torch, which
here is a few names of ours.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest

import vllm_compat
from vllm_compat.contracts import load_vllm, releases
from vllm_compat.contracts.stub import generate

FOLDER = Path(os.environ["VLLM_COMPAT_SOURCES"]) / "speculators"
RELEASES = releases()
SPECULATORS = ("0.3.0", "0.4.0", "0.4.0.1")
FOUR = ("0.4.0", "0.4.0.1")
OURS = ("vllm", "speculators", "torch", "transformers", "psutil")
GENERATOR = "speculators.data_generation.vllm_hidden_states_generator"
TAKEN = (
    "data_generation/vllm_hidden_states_generator.py",
    "data_generation/custom_worker.py",
    "data_generation/logging_utils.py",
    "utils/util.py",
)
STAND_INS = {
    "torch/__init__.py": """
        from types import SimpleNamespace
        class Tensor: ...
        cuda = SimpleNamespace(mem_get_info=lambda: (2**34, 2**35), empty_cache=lambda: None)
        accelerator = SimpleNamespace(current_accelerator=lambda: None)
    """,
    "transformers/__init__.py": """
        from types import SimpleNamespace
        class AutoConfig:
            from_pretrained = lambda *_, **__: SimpleNamespace(num_hidden_layers=8)
        class AutoTokenizer:
            from_pretrained = lambda *_, **__: SimpleNamespace(eos_token_id=2)
    """,
    "transformers/configuration_utils.py": "class PretrainedConfig: ...",
    "transformers/utils.py": "is_torch_npu_available = lambda: False",
    "psutil.py": """
        from types import SimpleNamespace
        virtual_memory = lambda: SimpleNamespace(available=2**34, total=2**35)
    """,
}


class NeedsModelError(Exception):
    """As far as a stub can go."""


@pytest.fixture
def on_stub(tmp_path: Path, monkeypatch):
    """Puts a stub vLLM and a real speculators on the path; takes all of it away again."""

    def prepare(speculators: str, vllm: str):
        generate(load_vllm(vllm).contract, tmp_path)
        for name in TAKEN:
            source = FOLDER / speculators / "speculators" / name
            if source.exists():
                target = tmp_path / "speculators" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                (target.parent / "__init__.py").touch()
                shutil.copy(source, target)
        (tmp_path / "speculators" / "__init__.py").touch()
        (tmp_path / "speculators" / "_version.py").write_text(f"version = {speculators!r}\n")
        for name, text in STAND_INS.items():
            file = tmp_path / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(dedent(text))
        monkeypatch.syspath_prepend(str(tmp_path))
        stub = importlib.import_module("vllm._stub")
        block = SimpleNamespace(block_size=16)
        plan = SimpleNamespace(
            num_blocks=100,
            kv_cache_groups=[SimpleNamespace(layer_names=["a"], kv_cache_spec=block)],
        )

        def reply(arguments):
            if callable(arguments["method"]):
                return [arguments["method"](None)]
            return [{"a": block}]

        def schedule(_):
            raise NeedsModelError

        executor = "vllm.v1.executor.multiproc_executor:MultiprocExecutor"
        stub.answers.update(
            {
                f"{executor}.collective_rpc": reply,
                "vllm.config:ModelConfig.get_vocab_size": lambda _: 50,
                "vllm.v1.core.sched.scheduler:Scheduler.schedule": schedule,
                **{
                    f"vllm.v1.core.kv_cache_{home}:get_kv_cache_config_from_groups": lambda _: plan
                    for home in ("utils", "planning")
                },
                **{
                    f"vllm.v1.core.kv_cache_{home}:_get_kv_cache_groups_uniform_spec": (
                        lambda _: plan.kv_cache_groups
                    )
                    for home in ("utils", "planning")
                },
            }
        )
        return stub

    def forget() -> None:
        vllm_compat.revert()
        for name in list(sys.modules):
            if name.partition(".")[0] in OURS:
                del sys.modules[name]

    forget()
    yield prepare
    forget()


def construct():
    return importlib.import_module(GENERATOR).VllmHiddenStatesGenerator("m", layer_ids=[1, 2])


def arguments(stub, symbol: str):
    (found,) = (passed for name, passed in stub.calls if name == symbol)
    return found


@pytest.mark.parametrize("vllm", RELEASES)
@pytest.mark.parametrize("speculators", SPECULATORS)
def test_with_adapters_it_gets_to_the_first_step(speculators: str, vllm: str, on_stub) -> None:
    stub = on_stub(speculators, vllm)
    report = vllm_compat.apply()
    assert (report.speculators, report.vllm) == (speculators, vllm)
    with pytest.raises(vllm_compat.UnsupportedModelError) as error:
        construct()
    assert isinstance(error.value.__cause__, NeedsModelError)

    config = arguments(stub, "vllm.config:SchedulerConfig")
    assert config["async_scheduling"] is False
    assert config.get("is_encoder_decoder", False) is False
    assert arguments(stub, "vllm.config:CacheConfig")["enable_prefix_caching"] is False
    assert arguments(stub, "vllm.v1.core.sched.scheduler:Scheduler").get("block_size", 16) == 16
    request = arguments(stub, "vllm.v1.request:Request")
    assert request["prompt_token_ids"] == [1, 8, 15, 22, 29, 36, 43, 0]
    assert request.get("eos_token_id", 2) == 2
    layout = "vllm.v1.executor.multiproc_executor:MultiprocExecutor.set_kv_cache_layout"
    told = [symbol for symbol, _ in stub.calls].count(layout)
    assert told == (RELEASES.index(vllm) >= RELEASES.index("0.29.0"))


# Without adapters: the first thing that fails, if any does before the first step.
UNADAPTED = [
    ("0.3.0", "0.11.0", "0.11.0", "NeedsModelError"),
    ("0.3.0", "0.11.1", "0.11.2", "TypeError: .*missing 1 required .*'block_size'"),
    ("0.3.0", "0.12.0", "0.32.0", "TypeError: .*missing 1 required .*'is_encoder_decoder'"),
    ("0.4.0", "0.11.0", "0.11.0", "ModuleNotFoundError: No module named 'vllm.utils.hashing'"),
    ("0.4.0", "0.11.1", "0.11.2", "TypeError: .*missing 1 required .*'kv_cache_specs'"),
    ("0.4.0", "0.12.0", "0.16.0", "NeedsModelError"),
    ("0.4.0", "0.17.0", "0.32.0", "TypeError: .*unexpected keyword argument 'eos_token_id'"),
    *(
        (
            s,
            "0.33.0",
            "0.33.0",
            "ImportError: cannot import name '_get_kv_cache_groups_uniform_spec'",
        )
        for s in ("0.3.0", "0.4.0")
    ),
]


@pytest.mark.parametrize(
    ("speculators", "vllm", "failure"),
    [
        (speculators, vllm, failure)
        for speculators, first, last, failure in UNADAPTED
        for vllm in RELEASES[RELEASES.index(first) : RELEASES.index(last) + 1]
    ],
)
def test_without_adapters_it_fails_as_users_saw(speculators, vllm, failure, on_stub) -> None:
    on_stub(speculators, vllm)
    with pytest.raises((NeedsModelError, ImportError, TypeError)) as error:
        construct().generate([[1, 2]])
    assert re.match(failure, f"{type(error.value).__name__}: {error.value}")
