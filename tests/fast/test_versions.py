"""What versions tell, and what what is missing is taken for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vllm_compat.adapters import transformers_torch
from vllm_compat.contracts import releases
from vllm_compat.versions import (
    NEWEST_KNOWN,
    OLDEST_KNOWN,
    has_come,
    newer_than_known,
    numbers,
    says_nothing,
)


def test_the_known_ones_are_those_recorded() -> None:
    assert (releases()[0], releases()[-1]) == (OLDEST_KNOWN, NEWEST_KNOWN)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.33.0", (0, 33, 0)),
        ("0.33", (0, 33, 0)),
        ("0.29.1rc1.dev3+gabc", (0, 29, 1)),
        ("0.4.0.1", (0, 4, 0, 1)),
        ("dev", ()),
        ("", ()),
    ],
)
def test_numbers(version, expected) -> None:
    assert numbers(version) == expected


@pytest.mark.parametrize(
    ("version", "come", "nothing", "newer"),
    [
        ("0.28.0", False, False, False),
        ("0.28.1.dev7+gabc", False, False, False),
        ("0.29.0rc1", True, False, False),
        ("0.29", True, False, False),
        ("0.29.0+cpu", True, False, False),
        ("0.33.1", True, False, True),
        ("1.0", True, False, True),
        ("0.1.dev1+gabc", True, True, False),
        ("0.10.2", True, True, False),
        ("dev", True, True, False),
        ("", True, True, False),
    ],
)
def test_whether_0_29_has_come(version, come, nothing, newer) -> None:
    assert has_come("0.29.0", version) is come
    assert says_nothing(version) is nothing
    assert newer_than_known(version) is newer


def test_transformers_that_keep_their_configurations_elsewhere(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(transformers_torch, "package_root", lambda name: str(tmp_path / name))
    (tmp_path / "transformers" / "configuration_utils").mkdir(parents=True)
    decision = transformers_torch.needed(None)
    assert decision.state == "uncovered"
    assert "configuration_utils.py" in decision.found
    assert decision.needed == "transformers.configuration_utils, one file"


def test_what_apply_imports() -> None:
    script = (
        "import sys, vllm_compat, vllm_compat.session\n"
        "print(*sorted(n for n in sys.modules if n.startswith(('vllm_compat.', 'packaging'))))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "vllm_compat.judge" in loaded
    parts = {name.split(".")[1] for name in loaded if name.startswith("vllm_compat.")}
    assert parts.isdisjoint({"checking", "contracts", "capture", "cli", "extraction", "matrix"})
    assert not any(name.startswith("packaging") for name in loaded)
