"""Real engines on a CPU: one worker process at a time, shared by the tests of a module."""

from __future__ import annotations

import os

from vllm_compat.discovery import find_vllm


def threads_bind() -> str:
    """No pinning of cores that others use too; where that crashes, one core a test process.

    vLLM 0.11.0 does not know "nobind", and 0.20.0 to 0.20.2 raise IndexError on it.
    """
    vllm = find_vllm()
    if vllm is None or vllm.release is None or vllm.release.release[:2] not in {(0, 11), (0, 20)}:
        return "nobind"
    return os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")


# Before vllm is imported anywhere: a small cache, no hub.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", threads_bind())
os.environ.setdefault("OMP_NUM_THREADS", "1")

import vllm_compat  # noqa: E402

vllm_compat.apply()

from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402

from .engines import Engines, errors  # noqa: E402
from .record import Recorder  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, metavar="FOLDER", help="write what was shown there")


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--record")
    # With several processes, the one that hears from all of them.
    if folder is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(folder))


@pytest.fixture(autouse=True)
def _worst_error(record_property) -> Iterator[None]:
    """Every test says how far from transformers its worst state was."""
    errors.clear()
    yield
    if errors:
        record_property("worst_error", max(errors))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models of this run are made."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def engines(models: Path) -> Iterator[Engines]:
    """Starts engines; the one before is shut down first, and the last one with the module."""
    engines = Engines(models)
    yield engines
    engines.stop()
