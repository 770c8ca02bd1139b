"""The workflows ask nox for sessions that there are, and run the Pythons that are promised."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
NOXFILE = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))


def assigned(name: str) -> ast.expr:
    (value,) = (
        node.value
        for node in NOXFILE.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )
    return value


def sessions() -> set[str]:
    """What `nox -l` lists, read from the noxfile."""
    names = {
        node.name
        for node in NOXFILE.body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(mark) == "nox.session" for mark in node.decorator_list)
    }
    lanes = assigned("LANES")
    assert isinstance(lanes, ast.Dict)
    releases = [ast.literal_eval(key) for key in lanes.keys if key is not None]
    return names - {"real"} | {
        f"real(vllm='{vllm}', speculators='{speculators}')"
        for vllm in releases
        for speculators in ast.literal_eval(assigned("SPECULATORS"))
    }


def expanded(job: dict) -> list[str]:
    """Each command of a job, with each combination of its matrix put in."""
    matrix = job.get("strategy", {}).get("matrix", {})
    return [
        filled(step.get("run", ""), dict(zip(matrix, values, strict=True)))
        for values in itertools.product(*matrix.values())
        for step in job["steps"]
    ]


def filled(command: str, chosen: dict[str, str]) -> str:
    return re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda found: chosen[found[1]], command)


def asked_for(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    commands = "\n".join(itertools.chain.from_iterable(map(expanded, jobs.values())))
    return [name.strip('"') for name in re.findall(r'nox -s ("[^"]+"|\S+)', commands)]


def test_there_are_two() -> None:
    assert [file.name for file in WORKFLOWS] == ["ci.yml", "nightly.yml"]


def test_changes_run_every_kind_of_session() -> None:
    pinned, newest = (ast.literal_eval(value) for value in assigned_pair("PINNED", "NEWEST"))
    oldest = min(
        (name for name in sessions() if name.startswith("real(")),
        key=lambda name: [int(part) for part in re.findall(r"\d+", name)],
    )
    asked = asked_for(ROOT / ".github" / "workflows" / "ci.yml")
    assert set(asked) <= sessions()
    assert oldest == "real(vllm='0.11.0', speculators='0.3.0')"
    assert sorted(asked) == sorted(
        [
            *["fast"] * 4,
            "lint",
            "stub",
            "ablation",
            *(
                f"real(vllm='{vllm}', speculators='{speculators}')"
                for vllm in ("0.11.0", pinned, newest)
                for speculators in ("0.3.0", "0.4.0.1")
            ),
        ]
    )


def assigned_pair(*names: str) -> tuple[ast.expr, ...]:
    """The values of ``a, b = x, y``."""
    value = assigned(f"({', '.join(names)})")
    assert isinstance(value, ast.Tuple)
    return tuple(value.elts)


def test_the_fast_suite_runs_on_each_python_of_the_metadata() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    promised = re.findall(
        r"Programming Language :: Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text()
    )
    assert jobs["fast"]["strategy"]["matrix"]["python"] == promised
    assert promised == ["3.10", "3.11", "3.12", "3.13"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.stem)
def test_no_workflow_may_write(workflow: Path) -> None:
    text = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert text["permissions"] == {"contents": "read"}
    assert text["concurrency"]["cancel-in-progress"] is True


def test_a_session_that_is_not_there_would_be_seen(tmp_path: Path) -> None:
    workflow = tmp_path / "w.yml"
    workflow.write_text(
        "jobs:\n  a:\n    strategy: {matrix: {v: ['0.16.0', '0.1.0']}}\n    steps:\n"
        "      - run: nox -s \"real(vllm='${{ matrix.v }}', speculators='0.3.0')\"\n"
    )
    assert [name in sessions() for name in asked_for(workflow)] == [True, False]
