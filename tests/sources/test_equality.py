"""A recorded pair and the same pair read from its sources are judged alike, word for word.

``VLLM_COMPAT_SOURCES`` names a folder of unpacked distributions: ``vllm/<release>/vllm`` and
``speculators/<release>/speculators``, with their metadata beside them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vllm_compat.context import Consumer, Context, Settings
from vllm_compat.contracts import (
    consumer_record,
    load_speculators,
    load_vllm,
    record,
    recorded,
    recorded_context,
    releases,
    speculators_releases,
)
from vllm_compat.discovery import find
from vllm_compat.judge import judge
from vllm_compat.probe import SourceTree

FOLDER = Path(os.environ["VLLM_COMPAT_SOURCES"])


@pytest.mark.parametrize("speculators", speculators_releases())
@pytest.mark.parametrize("vllm", releases())
def test_records_are_judged_as_sources_are(vllm: str, speculators: str) -> None:
    home = str(FOLDER / "vllm" / vllm)
    from_sources = Context(
        SourceTree(f"{home}/vllm", "vllm"),
        find("vllm", [home]),
        Consumer(find("speculators", [str(FOLDER / "speculators" / speculators)])),
        Settings(),
    )
    from_records = recorded_context(load_vllm(vllm), load_speculators(speculators))
    assert judge(from_records) == judge(from_sources)


@pytest.mark.parametrize("vllm", releases())
def test_the_record_is_what_would_be_recorded_today(vllm: str) -> None:
    contract, today = load_vllm(vllm).contract, record(FOLDER / "vllm" / vllm / "vllm")
    assert (today.release, today.sha256) == (contract.release, contract.sha256)
    assert {s: f.to_dict() for s, f in today.findings.items()} == {
        s: f.to_dict() for s, f in contract.findings.items()
    }


@pytest.mark.parametrize("speculators", speculators_releases())
def test_the_consumer_is_what_would_be_recorded_today(speculators: str) -> None:
    found = find("speculators", [str(FOLDER / "speculators" / speculators)])
    assert consumer_record(Consumer(found)) == recorded._speculators()[speculators]
