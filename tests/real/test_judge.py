"""Verdicts on the installed pair, and on vLLMs that do not exist yet: it, changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import vllm_compat
from vllm_compat.adapters import REGISTRY
from vllm_compat.context import Consumer, Context, Settings
from vllm_compat.discovery import find_speculators, find_vllm
from vllm_compat.judge import installed_context, judge
from vllm_compat.probe import SourceTree
from vllm_compat.report import Report


def test_the_installed_pair_is_covered_call_site_by_call_site() -> None:
    report = vllm_compat.status()
    assert report is not None
    assert report.uncovered == ()
    assert report.to_dict()["vllm"] == report.vllm == find_vllm().version
    by_name = {site.name: site.decision.state for site in report.call_sites}
    assert set(REGISTRY.names()) <= set(by_name)
    assert by_name["worker-capture"] == by_name["generate"] == by_name["engine-steps"] == "adapted"
    assert by_name["vllm.sampling_params:SamplingParams"] == "fits"
    assert "not covered" in report.summary()
    assert len(report.summary().splitlines()) == 1
    assert all(name in str(report) for name in ("worker-capture", report.vllm))


@pytest.fixture
def future(tmp_path: Path):
    """Judges the installed vLLM with some of its files changed."""
    installed = find_vllm()
    root = tmp_path / "vllm"
    shutil.copytree(
        installed.root,
        root,
        copy_function=os.link,
        ignore=lambda _, names: [
            name for name in names if "." in name and not name.endswith(".py")
        ],
    )

    def judged(changes: dict[str, tuple[str, str]]) -> Report:
        for file, (old, new) in changes.items():
            text = (root / file).read_text()
            assert old in text, f"{file} has no {old!r}"
            (root / file).unlink()  # a link to the installed file
            (root / file).write_text(text.replace(old, new))
        context = installed_context(Settings())
        changed = Context(
            SourceTree(root, "vllm"), installed, Consumer(find_speculators()), Settings()
        )
        assert judge(context)[0].uncovered == ()
        return judge(changed)[0]

    return judged


def test_an_unchanged_copy_gets_the_same_verdicts(future) -> None:
    assert future({}) == judge(installed_context(Settings()))[0]


def test_every_break_is_named_at_once(future) -> None:
    report = future(
        {
            "v1/request.py": ("sampling_params:", "sampling:"),
            "v1/core/sched/scheduler.py": ("structured_output_manager:", "grammar_manager:"),
            "v1/structured_output/__init__.py": ("class StructuredOutputManager", "class Renamed"),
        }
    )
    assert {site.name for site in report.uncovered} == {
        "request",
        "scheduler",
        "vllm.v1.structured_output:StructuredOutputManager",
    }
    offence = next(site.offence() for site in report.uncovered if site.name == "request")
    assert "missing" in offence
    assert "sampling" in offence
    for label in ("found:", "needed:", "next step:"):
        assert label in offence


def test_a_new_required_argument_is_refused(future) -> None:
    report = future({"v1/request.py": ("request_id: str,", "request_id: str, tenant: str,")})
    assert [site.name for site in report.uncovered] == ["request"]
    assert "tenant" in report.uncovered[0].decision.needed


def test_a_new_optional_argument_fits(future) -> None:
    report = future(
        {
            "v1/request.py": (
                "arrival_time: float | None = None,",
                "arrival_time: float | None = None, tenant: str = '',",
            )
        }
    )
    assert report.uncovered == ()


def test_a_step_driven_otherwise_is_refused(future) -> None:
    executor = "v1/executor/multiproc_executor.py"
    report = future(
        {
            executor: (
                "SchedulerOutput, non_block: bool",
                "SchedulerOutput, lane: int, non_block: bool",
            )
        }
    )
    assert [site.name for site in report.uncovered] == ["engine-steps"]
    assert "lane" in report.uncovered[0].decision.found


def test_a_step_described_otherwise_is_refused(future) -> None:
    report = future({"v1/core/sched/output.py": ("num_computed_tokens: int", "computed: int")})
    assert [site.name for site in report.uncovered] == ["worker-capture"]
    assert "NewRequestData has no num_computed_tokens" in report.uncovered[0].decision.found


def test_syntax_newer_than_this_python_elsewhere_in_a_file_does_no_harm(future) -> None:
    report = future(
        {
            "v1/request.py": (
                "class RequestStatus(",
                "type X = lambda: (yield from\n\nclass RequestStatus(",
            )
        }
    )
    assert all("Traceback" not in site.offence() for site in report.uncovered)
    assert "request" not in {site.name for site in report.uncovered}


def test_refusal_raises_with_every_offence(future, monkeypatch: pytest.MonkeyPatch) -> None:
    report = future({"v1/request.py": ("sampling_params:", "sampling:")})
    monkeypatch.setattr("vllm_compat.session.judge", lambda _: (report, ()))
    vllm_compat.revert()
    try:
        with pytest.raises(vllm_compat.IncompatibleVllmError) as error:
            vllm_compat.apply()
        assert len(error.value.offences) == 1
        assert vllm_compat.status() is None
        with pytest.warns(UserWarning, match="cannot run on vLLM"):
            vllm_compat.apply(strict=False)
    finally:
        monkeypatch.undo()
        vllm_compat.revert()
        vllm_compat.apply()
