"""The compatibility matrix: nothing in it without its source, and nothing stale."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import yaml

from vllm_compat.contracts import NotRecordedError, releases, speculators_releases
from vllm_compat.matrix import (
    BadRunError,
    NoStart,
    Run,
    cell,
    cells,
    in_process_speculators,
    nearest_working,
    recorded_runs,
    row,
)
from vllm_compat.matrix.__main__ import main
from vllm_compat.matrix.runs import read_runs
from vllm_compat.matrix.writing import (
    END,
    START,
    NoMarkersError,
    as_yaml,
    every_cell,
    rendered,
    table,
    with_table,
)
from vllm_compat.report import CallSite, Report

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "src" / "vllm_compat" / "matrix" / "runs"
IN_PROCESS = ("0.3.0", "0.4.0", "0.4.0.1")
NATIVE = speculators_releases()[3:]

RUN = {
    "date": "2026-12-01",
    "vllm": "0.16.0",
    "distribution": "vllm 0.16.0+cpu",
    "runner": "v1",
    "device": "cpu",
    "speculators": "0.4.0.1",
    "torch": "2.10.0",
    "transformers": "4.57.6",
    "python": "3.11.7",
    "adapters": list(cell("0.4.0.1", "0.16.0", ()).adapters),
    "cases": 40,
    "families": ["llama", "qwen3"],
    "left_out": {"kimi_k25": "no model of that name"},
    "worst_error": 1.3e-05,
    "bound": 1e-4,
}
NO_START = {
    "vllm": "0.33.0",
    "speculators": "0.4.0.1",
    "date": "2026-12-01",
    "cannot_start": "there is no CPU build",
}


def made_up(**changes) -> Run:
    return Run(**{**RUN, **changes})


def read_one(folder: Path, data: object) -> Run | NoStart:
    (folder / "one.json").write_text(json.dumps(data))
    (one,) = read_runs(folder)
    return one


def matrix(*evidence: Run | NoStart) -> dict:
    return yaml.safe_load(as_yaml(every_cell(evidence)))


# -- what is written ------------------------------------------------------------------------------


def test_no_file_is_stale() -> None:
    for path, text in rendered(ROOT).items():
        assert path.read_text(encoding="utf-8") == text, "python -m vllm_compat.matrix writes it"


def test_check_fails_until_the_files_are_written(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--check"]) == 2  # no README at all
    Path("README.md").write_text(f"# A\n\n{START}\nold\n{END}\n\n## B\n")
    assert main(["--check"]) == 1
    error = capsys.readouterr().err
    assert "compat_matrix.yaml is stale: python -m vllm_compat.matrix writes it" in error
    assert "README.md is stale" in error
    assert not Path("compat_matrix.yaml").exists()
    assert main([]) == 0
    assert main(["--check"]) == 0
    text = Path("README.md").read_text()
    assert text.startswith(f"# A\n\n{START}\n| vLLM |")
    assert text.endswith(f"{END}\n\n## B\n")
    Path("compat_matrix.yaml").write_text("edited")
    assert main(["--check"]) == 1


@pytest.mark.parametrize("readme", ["", START, f"{END}{START}", f"{START}{END}{START}{END}"])
def test_a_readme_without_one_place_for_the_table_is_refused(readme: str) -> None:
    with pytest.raises(NoMarkersError, match="once and in this order"):
        with_table(readme, "table")


def test_every_cell_is_there() -> None:
    data = matrix(*recorded_runs())
    assert list(data) == [*(f"speculators {name}" for name in IN_PROCESS), "native"]
    written = [(name, vllm) for name in IN_PROCESS for vllm in data[f"speculators {name}"]]
    assert written == [(name, f"vllm {vllm}") for name in IN_PROCESS for vllm in releases()]
    assert len(written) == 105
    native = [
        (name, vllm)
        for one in data["native"]
        for name in one["speculators"]
        for vllm in one["vllm"]
    ]
    assert sorted(native) == sorted((name, vllm) for name in NATIVE for vllm in releases())
    assert len(native) == 350


def test_every_level_in_the_file_has_its_source() -> None:
    data = matrix(*recorded_runs())
    ran = {
        (one.speculators, one.vllm, f"{one.device} run")
        for one in recorded_runs()
        if isinstance(one, Run)
    }
    claimed = set()
    for name in IN_PROCESS:
        for key, entry in data[f"speculators {name}"].items():
            vllm = key.removeprefix("vllm ")
            assert entry["verdict"] == "adapted"
            assert entry["evidence"][:2] == ["contract", "stub"]
            claimed |= {(name, vllm, level) for level in entry["evidence"][2:]}
            assert entry["adapters"] == list(cell(name, vllm).adapters)
    assert claimed == ran
    assert not any("evidence" in one or "runs" in one for one in data["native"])


def test_the_stubs_are_those_that_the_stub_tests_run() -> None:
    tree = ast.parse((ROOT / "tests" / "stub" / "test_generator.py").read_text())
    assigned = {
        ast.unparse(node.targets[0]): ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
    }
    assert ast.literal_eval(assigned["SPECULATORS"]) == cells.STUBBED
    assert assigned["RELEASES"] == "releases()"
    (test,) = (
        node
        for node in tree.body
        if getattr(node, "name", "") == "test_with_adapters_it_gets_to_the_first_step"
    )
    assert {ast.unparse(mark) for mark in test.decorator_list} == {
        "pytest.mark.parametrize('vllm', RELEASES)",
        "pytest.mark.parametrize('speculators', SPECULATORS)",
    }


def test_native_speculators_are_refused_or_not_judged_and_nothing_else() -> None:
    data = matrix()["native"]
    refused, open_question = data
    assert (refused["verdict"], open_question["verdict"]) == ("refused", "not judged")
    assert (refused["vllm"][0], refused["vllm"][-1]) == ("0.11.0", "0.16.0")
    assert (open_question["vllm"][0], open_question["vllm"][-1]) == ("0.17.0", "0.33.0")
    assert refused["nearest"] == "none judged yet; vLLM 0.17.0 is the first with this path"
    for name in NATIVE:
        assert {one.evidence for one in row(name, ())} == {()}
        assert nearest_working(name, "0.16.0") is None


# -- runs -----------------------------------------------------------------------------------------


def test_every_run_that_came_is_good_evidence() -> None:
    files = sorted(RUNS.glob("*.json"))
    assert len(read_runs(RUNS)) == len(files)
    for file, one in zip(files, read_runs(RUNS), strict=True):
        assert file.name.startswith(f"{one.vllm}-")
        assert file.stem.endswith(f"-{one.speculators}")
        if isinstance(one, Run):
            assert 0 < one.worst_error <= one.bound
    every_cell(recorded_runs())


def test_a_run_shows_in_its_cell_and_in_no_other() -> None:
    data = matrix(made_up())
    shown = [
        (name, vllm, entry)
        for name, line in data.items()
        if name != "native"
        for vllm, entry in line.items()
        if "runs" in entry
    ]
    ((name, vllm, entry),) = shown
    assert (name, vllm) == ("speculators 0.4.0.1", "vllm 0.16.0")
    assert entry["evidence"] == ["contract", "stub", "cpu run"]
    assert entry["runs"] == [
        {
            "made": {
                "date": "2026-12-01",
                "device": "cpu",
                "runner": "v1",
                "cases": 40,
                "worst_error": 1.3e-05,
                "bound": 1e-4,
            },
            "with": {
                "distribution": "vllm 0.16.0+cpu",
                "torch": "2.10.0",
                "transformers": "4.57.6",
                "python": "3.11.7",
            },
            "families": ["llama", "qwen3"],
            "left_out": [{"families": ["kimi_k25"], "why": "no model of that name"}],
        }
    ]


def test_a_run_with_other_adapters_says_so() -> None:
    adapters = [*RUN["adapters"][:-1], "transformers-torch"]
    evidence = made_up(adapters=adapters)
    (run,) = matrix(evidence)["speculators 0.4.0.1"]["vllm 0.16.0"]["runs"]
    assert (run["without"], run["besides"]) == (["generate"], ["transformers-torch"])
    text = table(every_cell([evidence]))
    assert "| adapted: contract, stub | adapted: CPU run\\*, 1.3e-05 |\n" in text
    assert text.endswith("\\* runs made before these adapters came: generate.\n")


def test_the_table_joins_neighbours_and_names_runners() -> None:
    evidence = (made_up(), made_up(runner="v2", worst_error=2e-5))
    lines = table(every_cell(evidence)).splitlines()
    same = " | adapted: contract, stub" * 2
    assert lines == [
        "| vLLM | speculators 0.3.0 | speculators 0.4.0 | speculators 0.4.0.1 |",
        "|---|---|---|---|",
        f"| 0.11.0 to 0.15.1{same} | adapted: contract, stub |",
        f"| 0.16.0{same} | adapted: CPU run (V1) and CPU run (V2), 2.0e-05 |",
        f"| 0.17.0 to 0.33.0{same} | adapted: contract, stub |",
    ]


def test_a_gpu_run_is_a_level_of_its_own() -> None:
    evidence = (made_up(device="gpu", runner="v2", worst_error=0.02, bound=0.05), made_up())
    assert cell("0.4.0.1", "0.16.0", evidence).evidence == (
        "contract",
        "stub",
        "cpu run",
        "gpu run",
    )
    assert cell("0.4.0.1", "0.16.0", evidence[:1]).evidence == ("contract", "stub", "gpu run")


def test_a_release_that_cannot_start_says_why(tmp_path: Path) -> None:
    one = read_one(tmp_path, NO_START)
    assert one == NoStart(**NO_START, device="cpu")
    entry = matrix(one)["speculators 0.4.0.1"]["vllm 0.33.0"]
    assert entry["cannot_start"] == "there is no CPU build"
    assert (entry["verdict"], entry["evidence"]) == ("adapted", ["contract", "stub"])
    assert "runs" not in entry
    last = table(every_cell([one])).splitlines()[-1]
    assert last.endswith("| adapted: contract, stub; cannot start |")


def test_a_run_of_a_pair_that_is_refused_stops_everything(monkeypatch, tmp_path: Path) -> None:
    claim = made_up(speculators="0.9.0")
    with pytest.raises(BadRunError, match=r"a run says that speculators 0\.9\.0 on vLLM 0\.16\.0"):
        every_cell([claim])
    with pytest.raises(BadRunError, match="the verdict is not judged: native path"):
        every_cell([made_up(speculators="0.9.0", vllm="0.17.0")])

    refuse_everything(monkeypatch)
    (tmp_path / "README.md").write_text(f"{START}\n{END}\n")
    with pytest.raises(
        BadRunError, match=r"the verdict is refused: Gone is gone: found x, needed y"
    ):
        rendered(tmp_path, [made_up()])


def refuse_everything(monkeypatch, but: tuple[str, ...] = ()) -> None:
    judge = cells.judge
    decision = cells.transformers_torch.Decision("uncovered", "Gone is gone", "x", "y")

    def refuses(context):
        version = context.vllm_installed.version
        if version in but:
            return judge(context)
        site = CallSite("gone", "vllm:Gone", "speculators:1", decision)
        return Report(version, "0.4.0.1", False, (site,)), ()

    monkeypatch.setattr(cells, "judge", refuses)


def test_a_refused_cell_names_the_nearest_that_works(monkeypatch) -> None:
    refuse_everything(monkeypatch, but=("0.15.0", "0.16.0"))
    entry = matrix()["speculators 0.4.0"]["vllm 0.33.0"]
    assert entry == {
        "verdict": "refused",
        "reason": "Gone is gone: found x, needed y",
        "nearest": "0.16.0",
    }
    lines = table(every_cell(())).splitlines()
    assert lines[-1] == "| 0.17.0 to 0.33.0 | refused | refused | refused |"


@pytest.mark.parametrize(
    ("runs", "vllm", "nearest"),
    [
        ((), "0.15.0", "0.15.0"),
        ((), "0.34.0.dev3+g1", "0.33.0"),
        ((), "0.10.2", "0.11.0"),
        # Shown by a run, rather than nearer.
        (("0.12.0", "0.16.0"), "0.33.0", "0.16.0"),
        (("0.12.0", "0.16.0"), "0.11.0", "0.12.0"),
        # 0.13.0, 0.14.0, 0.14.1, 0.15.0, 0.15.1 are between: of two as near, the newer.
        (("0.12.0", "0.16.0"), "0.14.1", "0.16.0"),
        (("0.12.0", "0.16.0"), "0.14.0", "0.12.0"),
        ((), "no version", None),
    ],
)
def test_nearest_working(runs, vllm: str, nearest, monkeypatch) -> None:
    evidence = tuple(made_up(vllm=name, distribution=f"vllm {name}") for name in runs)
    monkeypatch.setattr(cells, "recorded_runs", lambda: evidence)
    assert nearest_working("0.4.0.1", vllm) == nearest


def test_a_release_that_cannot_start_is_no_advice(monkeypatch) -> None:
    monkeypatch.setattr(cells, "recorded_runs", lambda: (NoStart(**NO_START, device="cpu"),))
    assert nearest_working("0.4.0.1", "0.33.0") == "0.32.0"
    assert nearest_working("0.4.0", "0.33.0") == "0.33.0"


def test_an_unrecorded_speculators_has_no_cell() -> None:
    assert nearest_working("0.4.2", "0.16.0") is None
    with pytest.raises(NotRecordedError, match=r"0\.4\.2"):
        cell("0.4.2", "0.16.0")
    with pytest.raises(NotRecordedError, match=r"0\.33\.0rc1"):
        cell("0.4.0", "0.33.0rc1")


def test_a_build_for_another_device_is_the_same_release() -> None:
    assert cell("0.4.0", "0.16.0+cu129") == cell("0.4.0", "0.16.0")


def test_a_cell_says_the_same_to_programs() -> None:
    data = cell("0.4.0.1", "0.16.0", (made_up(),)).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["evidence"] == ["contract", "stub", "cpu run"]
    assert data["runs"] == [RUN]


def test_what_is_installed_here_is_not_in_a_cell(monkeypatch, tmp_path: Path) -> None:
    package = tmp_path / "transformers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "configuration_utils.py").write_text("class A:\n    dtype: torch.dtype\n")
    before = cell("0.4.0.1", "0.32.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cells.transformers_torch.needed(None).state == "adapted"
    assert cell("0.4.0.1", "0.32.0") == before


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"worst_error": 1.1e-4}, "worst error 0.00011, bound 0.0001"),
        ({"worst_error": float("nan")}, "worst error nan"),
        ({"worst_error": 0.0}, "worst error 0.0"),
        ({"worst_error": 0.5, "bound": 1.0}, "worst error 0.5, bound 1.0"),
        ({"device": "gpu", "worst_error": 0.5, "bound": 0.5}, "a gpu run must stay"),
        ({"device": "tpu"}, "device tpu"),
        ({"runner": "v3"}, "runner v3"),
        ({"cases": 0}, "0 cases"),
        ({"families": "llama"}, "no list of names: llama"),
        ({"families": ["kimi_k25"]}, "run and left out: kimi_k25"),
        ({"date": "yesterday"}, "yesterday"),
        ({"torch": 2.1}, "torch is 2.1"),
        ({"vllm": "0.17.0"}, "vllm 0.16.0+cpu is not vLLM 0.17.0"),
        ({"distribution": "vllm 0.16.0rc2"}, "vllm 0.16.0rc2 is not vLLM 0.16.0"),
        ({"distribution": "vllm main"}, "Invalid version"),
        ({"colour": "red"}, "colour"),
        ({"cannot_start": "but it ran"}, "unexpected keyword argument"),
    ],
)
def test_a_file_that_shows_nothing_is_refused(changes: dict, found: str, tmp_path: Path) -> None:
    assert read_one(tmp_path, RUN) == made_up()
    with pytest.raises(BadRunError, match=r"one\.json is no evidence of a run") as error:
        read_one(tmp_path, {**RUN, **changes})
    assert found in error.value.found


@pytest.mark.parametrize("name", sorted(set(RUN) - {"left_out"}))
def test_a_file_without_a_field_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadRunError) as error:
        read_one(tmp_path, {key: value for key, value in RUN.items() if key != name})
    assert f"'{name}'" in error.value.found


@pytest.mark.parametrize(
    "data", [[], "text", {**NO_START, "cannot_start": " "}, {"cannot_start": "x"}]
)
def test_other_files_are_refused(data: object, tmp_path: Path) -> None:
    with pytest.raises(BadRunError):
        read_one(tmp_path, data)


@pytest.mark.parametrize(
    ("evidence", "message"),
    [
        ([made_up(), made_up(date="2026-12-02")], "two files tell of the same run"),
        (
            [made_up(), NoStart(**{**NO_START, "vllm": "0.16.0"}, device="cpu")],
            "ran on a cpu, another that it cannot start",
        ),
        ([made_up(vllm="0.16.1")], "a run is of speculators 0.4.0.1 on vLLM 0.16.1"),
        ([made_up(speculators="0.4.2")], "a run is of speculators 0.4.2 on vLLM 0.16.0"),
    ],
)
def test_evidence_that_contradicts_itself_is_refused(evidence, message: str) -> None:
    with pytest.raises(BadRunError, match=message):
        every_cell(evidence)


def test_the_same_release_on_a_gpu_though_not_on_a_cpu_is_no_contradiction() -> None:
    failed = NoStart(**{**NO_START, "vllm": "0.16.0"}, device="cpu")
    found = cell("0.4.0.1", "0.16.0", (made_up(device="gpu"), failed))
    assert (found.evidence[-1], found.cannot_start) == ("gpu run", "there is no CPU build")


def test_speculators_that_run_in_process() -> None:
    assert in_process_speculators() == IN_PROCESS == cells.STUBBED
