"""Findings to be written, and an environment to be looked at."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vllm_compat.checking.incompatibility import Incompatibility

COVERED = Incompatibility(
    "", 166, "speculators.data_generation.worker", "vllm.config:CacheConfig", "moved",
    "100% gone, or: moved", "block-size", "0.18.0", "#1, #2",
)  # fmt: skip
FAULT = Incompatibility(
    "", 0, "speculators.data_generation.worker", "vllm.v1:Request", "fault", "is <odd> & \x00", "x"
)
MISSING = Incompatibility(
    "", 7, "speculators.other", "vllm.v1.request:Request", "parameter added",
    "Request: missing required tenant", "", "", "", "install another vLLM",
)  # fmt: skip

PACKAGES = {
    "vllm/__init__.py": "",
    "vllm/_version.py": "version = '0.34.0'\n",
    "vllm/config.py": "class CacheConfig:\n    def __init__(self, block_size): pass\n",
    "speculators/__init__.py": "",
    "speculators/_version.py": "__version__ = version = '0.4.1'\n",
    "speculators/data_generation/__init__.py": "",
    "speculators/data_generation/vllm_hidden_states_generator.py": (
        "from vllm.config import CacheConfig, gone\n\nCacheConfig(block_size=1)\n"
    ),
    "script.py": "from vllm.config import CacheConfig\n\nCacheConfig(1, 2)\n",
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of its own on the path, with the packages that are asked for."""

    def make(*wanted: str) -> Path:
        for name, text in PACKAGES.items():
            if name.partition("/")[0] in wanted:
                file = tmp_path / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        monkeypatch.delenv("VLLM_VERSION_OVERRIDE", raising=False)
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return make
