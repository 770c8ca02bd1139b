"""Extraction with real engines on a CPU (marked ``engine``), and its parts without one.

Two lines of speculators cannot be in one process: each trains where it is the one installed.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess

# Before vllm is imported anywhere, and for the processes that tests start: a small cache, no hub,
# no pinning of cores that others use too.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
import transformers.configuration_utils

from tests.real.zoo import build

# speculators before 0.5 takes this name from there, and transformers 5 no longer has it.
transformers.configuration_utils.torch = torch

LEGACY = importlib.metadata.version("speculators").startswith(("0.3.", "0.4."))
collect_ignore = ["test_training_native.py" if LEGACY else "test_training_legacy.py"]


def pytest_configure(config):
    config.addinivalue_line("markers", "engine: starts vLLM, which takes about a minute each time")


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Makes the model of a family when it is first asked for."""
    folder = tmp_path_factory.mktemp("models")
    made = {}

    def of(family):
        if family not in made:
            made[family] = build(family, folder / family)
        return made[family]

    return of


@pytest.fixture
def disk(tmp_path):
    """Makes a file system of so many bytes: a memory disk."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def of(size):
        options = ["-t", "tmpfs", "-o", f"size={size}", "none"]
        subprocess.run(["mount", *options, folder], check=True)
        return folder

    yield of
    subprocess.run(["umount", "-l", folder], check=True)
