"""Each adapter is needed: the battery passes with all of them and fails without any one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vllm_compat

HERE = Path(__file__).parent
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


def adapters_of_the_installed_pair() -> list[str]:
    report = vllm_compat.apply()
    vllm_compat.revert()
    return [site.name for site in report.adapted]


def run_without(adapter: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / "run.py"), str(folder)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            **ENVIRONMENT,
            "ABLATION_WITHOUT": adapter,
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        },
        check=False,
    )


def test_the_battery_passes_with_every_adapter(tmp_path: Path) -> None:
    ran = run_without("", tmp_path)
    assert ran.returncode == 0, ran.stderr[-4000:]


@pytest.mark.parametrize("adapter", adapters_of_the_installed_pair())
def test_the_battery_fails_without(adapter: str, tmp_path: Path) -> None:
    ran = run_without(adapter, tmp_path)
    assert ran.returncode == 1, ran.stderr[-4000:]
