"""What a run of these tests showed, as a file that the compatibility matrix is made from."""

from __future__ import annotations

import datetime
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path

import pytest

from vllm_compat.discovery import find_speculators, find_vllm
from vllm_compat.matrix import Run
from vllm_compat.session import active_adapters

from .reference import BOUND
from .support import left_out


class Recorder:
    """A pytest plugin: counts the tests, keeps the worst error, writes one file at the end.

    Nothing is written of a run in which a test failed or was left out.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cases: list[str] = []
        self._complete = True
        self._worst = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._cases.append(report.nodeid)
        if not report.passed:
            self._complete = False
        errors = [value for name, value in report.user_properties if name == "worst_error"]
        if report.when == "teardown":
            self._worst = max([self._worst, *errors])

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        selected = session.config.option.keyword or session.config.option.markexpr
        if exitstatus != 0 or not self._complete or selected:
            return
        run = self._run()
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{run.vllm}-{run.runner}-{run.speculators}.json"
        (self._folder / name).write_text(json.dumps(run._asdict(), indent=1) + "\n")

    def _run(self) -> Run:
        vllm, speculators = find_vllm(), find_speculators()
        assert vllm is not None
        assert speculators is not None
        return Run(
            vllm=vllm.release.base_version,
            speculators=speculators.version,
            date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            distribution=f"{vllm.distribution} {vllm.version}",
            device="cpu",
            runner="v2" if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1" else "v1",
            torch=version("torch"),
            transformers=version("transformers"),
            python=platform.python_version(),
            adapters=list(active_adapters()),
            cases=len(self._cases),
            families=sorted(
                case.rpartition("[")[2].rstrip("]")
                for case in self._cases
                if "test_every_layer[" in case
            ),
            worst_error=float(f"{self._worst:.2g}"),
            bound=BOUND,
            left_out=left_out(),
        )
