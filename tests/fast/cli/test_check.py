"""``vllm-compat check``: exit codes, pairs, and what it says when it cannot look."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest

import vllm_compat
from vllm_compat.checking import check, named_pair
from vllm_compat.checking.incompatibility import Incompatibility
from vllm_compat.cli import main
from vllm_compat.matrix import cell

PAIR = ["check", "--vllm", "0.33.0", "--speculators", "0.4.0.1"]


def test_a_covered_pair_is_fine(capsys) -> None:
    assert main(PAIR) == 0
    out, err = capsys.readouterr()
    assert out.startswith("speculators 0.4.0.1 on vLLM 0.33.0: ")
    assert "all covered" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out
    assert err == ""


def test_json_holds_what_the_function_returns(capsys) -> None:
    assert main([*PAIR, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    expected = check(named_pair("0.33.0", "0.4.0.1"))
    assert data["incompatibilities"] == [one.to_dict() for one in expected]
    head = {key: data[key] for key in ("schema", "vllm", "speculators", "newer_than_known")}
    assert head == {
        "schema": 1,
        "vllm": "0.33.0",
        "speculators": "0.4.0.1",
        "newer_than_known": False,
    }


def test_github_and_junit_have_a_line_and_a_case_for_each(capsys) -> None:
    count = len(check(named_pair("0.33.0", "0.4.0.1")))
    assert main([*PAIR, "--format", "github"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == count + 1
    assert {line.split(" ")[0] for line in lines} == {"::warning", "::notice"}
    assert main([*PAIR, "--format", "junit"]) == 0
    (suite,) = ElementTree.fromstring(capsys.readouterr().out.encode())
    assert (len(suite), suite.get("failures")) == (count, "0")


def test_strict_fails_for_drift_that_is_covered_and_for_nothing_else(capsys) -> None:
    assert main([*PAIR, "--strict"]) == 1
    assert main(["check", "--vllm", "0.16.0", "--speculators", "0.4.0.1", "--strict"]) == 0
    assert main(["check", "--vllm", "0.11.0", "--speculators", "0.3.0", "--strict"]) == 0


def test_a_version_may_be_spelled_otherwise(capsys) -> None:
    assert main(["check", "--vllm", "v0.33", "--speculators", "0.3"]) == 0
    assert capsys.readouterr().out.startswith("speculators 0.3.0 on vLLM 0.33.0: ")


def test_speculators_that_talks_to_a_server_is_said_in_one_line(capsys) -> None:
    assert main(["check", "--vllm", "0.33.0", "--speculators", "0.9.0"]) == 0
    assert capsys.readouterr().out.split("\n") == [
        "speculators 0.9.0 on vLLM 0.33.0: it imports nothing from vLLM, it talks to a",
        "server",
        "",
    ]


UNKNOWN = [
    (["--vllm", "0.99", "--speculators", "0.3.0"], "vLLM 0.99", "35 releases, 0.11.0 to 0.33.0"),
    (["--vllm", "0.33", "--speculators", "0.2"], "speculators 0.2", "13 releases, 0.3.0 to 0.9.0"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "what", "known"), UNKNOWN)
def test_a_release_that_is_not_recorded_cannot_be_looked_at(options, what, known, capsys) -> None:
    assert main(["check", *options]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"vllm-compat: no record of {what} came with this package",
        f"  found: {known}",
        f"  needed: {what.split()[1]}",
        "  next step: name one of these, or record the release: vllm-compat record",
    ]


USAGE = [
    ([], "the following arguments are required: COMMAND"),
    (["chek"], "invalid choice: 'chek'"),
    (["check", "--vllm", "newest"], "argument --vllm: 'newest' is no version such as 0.32.0"),
    (["check", "--format", "yaml"], "argument --format: invalid choice: 'yaml'"),
    (["check", "--speculators", "0.3.0", "--package", "p"], "not allowed with argument"),
    (["record", "--version", "0.16.0", "--folder", "x"], "not allowed with argument"),
    (["diff", "0.16.0"], "the following arguments are required: AFTER"),
]


@pytest.mark.parametrize(("arguments", "says"), USAGE)
def test_wrong_usage(arguments, says, capsys) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err


# -- what is installed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "options", "missing"),
    [
        ((), [], "speculators"),
        (("speculators",), [], "vllm"),
        (("speculators",), ["--speculators", "0.3.0"], "vllm"),
        (("vllm",), ["--vllm", "0.33.0"], "speculators"),
        (("script.py",), ["--package", "script.py"], "vllm"),
    ],
)
def test_what_is_not_installed_is_named(there, options, missing, site, capsys) -> None:
    site(*there)
    assert main(["check", *options]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == f"vllm-compat: {missing} is not installed"
    assert err.splitlines()[-1].startswith(f"  next step: install {missing} in")


def test_the_installed_pair_is_read_and_not_covered(site, capsys) -> None:
    folder = site("vllm", "speculators")
    assert main(["check", "--format", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["vllm"], data["speculators"]) == ("0.34.0", "0.4.1")
    assert data["newer_than_known"] is True
    generator = "speculators/data_generation/vllm_hidden_states_generator.py"
    gone = next(one for one in data["incompatibilities"] if one["symbol"] == "vllm.config:gone")
    assert gone == {
        "file": str(folder / generator),
        "line": 1,
        "module": "speculators.data_generation.vllm_hidden_states_generator",
        "symbol": "vllm.config:gone",
        "kind": "gone",
        "what": "vllm.config has no gone",
        "covered_by": "",
        "release": "",
        "pr": "",
        "next_step": "install a vLLM release listed as working, or report this one to vllm_compat",
        "covered": False,
    }
    assert main(["check"]) == 1
    out = capsys.readouterr().out
    assert out.count(f"\n\n{generator}\n") == 1
    assert "\n     1  gone: vllm.config:gone\n        vllm.config has no gone\n" in out
    assert "newer than any that the adapters were tested with" in " ".join(out.split())
    assert main(["check", "--format", "github"]) == 1
    assert f"::error file={generator},line=1,title=gone::" in capsys.readouterr().out


def test_installed_speculators_on_a_recorded_vllm(site, capsys) -> None:
    folder = site("speculators")
    assert main(["check", "--vllm", "0.33.0"]) == 3
    assert "0.33.0 does not say what vllm.config:gone is" in capsys.readouterr().err
    file = folder / "speculators/data_generation/vllm_hidden_states_generator.py"
    file.write_text(file.read_text().replace(", gone", ""))
    assert main(["check", "--vllm", "0.33.0", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["vllm"], data["speculators"]) == ("0.33.0", "0.4.1")
    assert [(one["file"], one["line"], one["kind"]) for one in data["incompatibilities"]] == [
        (str(file), 3, "behaviour changed"),
        (str(file), 3, "fault"),
        (str(file), 3, "behaviour changed"),
    ]


def test_a_recorded_speculators_on_the_installed_vllm(site, capsys) -> None:
    site("vllm")
    assert main(["check", "--speculators", "0.3.0", "--format", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["vllm"], data["speculators"]) == ("0.34.0", "0.3.0")
    (lost,) = [one for one in data["incompatibilities"] if "SamplingParams" in one["symbol"]]
    assert (lost["kind"], lost["file"], lost["line"]) == ("gone", "", 14)


def test_a_source_that_does_not_parse_cannot_be_looked_at(site, capsys) -> None:
    folder = site("vllm", "speculators")
    file = folder / "speculators/data_generation/vllm_hidden_states_generator.py"
    file.write_text("def (:\n")
    assert main(["check"]) == 3
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "vllm-compat: a source file could not be read"
    assert "vllm_hidden_states_generator.py" in err[1]
    assert err[-1].startswith("  next step: ")


def test_another_package(site, capsys) -> None:
    site("vllm", "script.py")
    assert main(["check", "--package", "script.py"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("script.py on vLLM 0.34.0: 1 change of vLLM; 1 not covered\n")
    assert "2 uses of vLLM were looked at, 0 not judged." in out
    assert "\nscript.py\n     3  parameter removed: vllm.config:CacheConfig\n" in out
    assert main(["check", "--package", "nowhere"]) == 3
    assert "there is no nowhere to be judged" in capsys.readouterr().err
    assert main(["check", "--package", "script.py", "--vllm", "0.33.0", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["vllm"], data["package"], data["incompatibilities"]) == ("0.33.0", "script.py", [])


# -- the process ----------------------------------------------------------------------------------


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    hidden = "import sys; sys.modules.update(dict.fromkeys(['torch', 'vllm', 'speculators']));"
    code = f"{hidden} from vllm_compat.cli import main; sys.exit(main())"
    environment = {**os.environ, "COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_nothing_heavy_need_be_importable() -> None:
    shown = run("--version")
    assert (shown.returncode, shown.stdout) == (0, f"vllm-compat {vllm_compat.__version__}\n")
    helped = run("--help")
    assert (helped.returncode, helped.stdout.splitlines()[0]) == (
        0,
        "usage: vllm-compat [-h] [--version] COMMAND ...",
    )
    checked = run(*PAIR, "--format", "json")
    assert (checked.returncode, checked.stderr) == (0, "")
    found = json.loads(checked.stdout)["incompatibilities"]
    assert len(found) == len(check(named_pair("0.33.0", "0.4.0.1")))


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vllm_compat", "check", "--vllm", "1.0.0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")


def test_an_incompatibility_says_whether_it_is_drift() -> None:
    kinds = ["moved", "gone", "behaviour changed", "fault", "environment"]
    drift = [Incompatibility("", 1, "m", "s", kind, "w").is_drift for kind in kinds]
    assert drift == [True, True, True, False, False]


def test_the_evidence_for_a_recorded_pair_is_said(capsys):
    assert main(["check", "--vllm", "0.26.0", "--speculators", "0.4.0.1", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["evidence"] == list(cell("0.4.0.1", "0.26.0").evidence)
    assert said["evidence"][:2] == ["contract", "stub"]
    assert main(["check", "--vllm", "0.33.0", "--speculators", "0.4.0"]) == 0
    assert "Evidence: contract, stub." in capsys.readouterr().out
