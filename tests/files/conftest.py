"""Two lines of speculators cannot be in one process: each tests against the one that is installed.

The formats' own tests and all others run with either.
"""

import importlib.metadata
import subprocess

import pytest
import torch
import transformers.configuration_utils

# speculators before 0.5 takes this name from there, and transformers 5 no longer has it.
transformers.configuration_utils.torch = torch

LEGACY = importlib.metadata.version("speculators").startswith(("0.3.", "0.4."))
collect_ignore = ["test_speculators_native.py" if LEGACY else "test_speculators_legacy.py"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one mebibyte, which is to be had for the asking: a memory disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
