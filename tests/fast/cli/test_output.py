"""The four formats, to the letter."""

from __future__ import annotations

import io
import json
import os
from xml.etree import ElementTree

import pytest

from vllm_compat.cli.output import Outcome, as_json, github, junit, text, wants_colour, write

from .conftest import COVERED, FAULT, MISSING

THREE = Outcome("a on b", (COVERED, FAULT, MISSING), {"vllm": "0.33.0"}, ("A note.",))
NONE = Outcome("a on b", (), {"vllm": "0.33.0"})

TEXT = """\
a on b: 2 changes of vLLM, 1 fault or limits of its own; 1 not covered
A note.

speculators/data_generation/worker.py
   166  moved: vllm.config:CacheConfig
        100% gone, or: moved
        vLLM 0.18.0 (#1, #2); covered by block-size
     -  fault: vllm.v1:Request
        is <odd> & \x00
        covered by x

speculators/other.py
     7  parameter added: vllm.v1.request:Request
        Request: missing required tenant
        NOT COVERED; next step: install another vLLM
"""

GITHUB = """\
::warning file=speculators/data_generation/worker.py,line=166,title=moved::\
vllm.config:CacheConfig: 100%25 gone, or: moved. Since vLLM 0.18.0 (#1, #2). Covered by block-size.
::notice file=speculators/data_generation/worker.py,title=fault::\
vllm.v1:Request: is <odd> & \x00. Covered by x.
::error file=speculators/other.py,line=7,title=parameter added::\
vllm.v1.request:Request: Request: missing required tenant. Not covered. \
Next step: install another vLLM.
::notice title=a on b::2 changes of vLLM, 1 fault or limits of its own; 1 not covered
"""


def test_text() -> None:
    assert text(THREE) == TEXT
    assert text(NONE) == "a on b: nothing found that does not work as it is\n"


def test_text_fits_80_columns_whatever_it_says() -> None:
    long = MISSING._replace(symbol="vllm." + "x" * 200, what="word " * 60, next_step="do " * 60)
    lines = text(Outcome("t " * 100, (long,), {}, ("n " * 100,))).splitlines()
    assert max(map(len, lines)) == 80


def test_colour_marks_what_is_not_covered() -> None:
    lines = text(THREE, colour=True).splitlines()
    assert lines[0].startswith("\x1b[1ma on b")
    shades = [line[:5] for line in lines[1:] if line.startswith("\x1b")]
    assert shades == ["\x1b[33m", "\x1b[34m", "\x1b[31m"]
    plain = "\n".join(lines)
    for code in ("\x1b[1m", "\x1b[33m", "\x1b[34m", "\x1b[31m", "\x1b[0m"):
        plain = plain.replace(code, "")
    assert plain + "\n" == TEXT


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "variables", "colour"),
    [
        (Terminal, {}, True),
        (Terminal, {"NO_COLOR": ""}, True),
        (Terminal, {"NO_COLOR": "1"}, False),
        (Terminal, {"TERM": "dumb"}, False),
        (io.StringIO, {}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(stream, variables, colour, monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    target = stream()
    assert wants_colour(target) is colour
    write(THREE, "text", target)
    assert ("\x1b[" in target.getvalue()) is colour


def test_json() -> None:
    data = json.loads(as_json(THREE))
    assert list(data) == ["schema", "vllm", "summary", "incompatibilities"]
    assert (data["schema"], data["vllm"], data["summary"]) == (1, "0.33.0", THREE.summary)
    assert data["incompatibilities"][0] == {
        "file": "",
        "line": 166,
        "module": "speculators.data_generation.worker",
        "symbol": "vllm.config:CacheConfig",
        "kind": "moved",
        "what": "100% gone, or: moved",
        "covered_by": "block-size",
        "release": "0.18.0",
        "pr": "#1, #2",
        "next_step": "",
        "covered": True,
    }
    assert [one["covered"] for one in data["incompatibilities"]] == [True, True, False]


def test_github() -> None:
    assert github(THREE) == GITHUB
    assert github(NONE) == "::notice title=a on b::nothing found that does not work as it is\n"


def test_github_escapes_what_would_end_a_command() -> None:
    odd = MISSING._replace(file=os.path.abspath("a,b:c%.py"), what="one\r\ntwo")
    (line, _) = github(Outcome("t", (odd,), {})).splitlines()
    assert line.startswith("::error file=a%2Cb%3Ac%25.py,line=7,title=parameter added::")
    assert "one%0D%0Atwo" in line


def test_junit() -> None:
    suites = ElementTree.fromstring(junit(THREE).encode())
    (suite,) = suites
    assert (suites.tag, suite.tag) == ("testsuites", "testsuite")
    assert suite.attrib == {
        "name": "a on b",
        "tests": "3",
        "failures": "1",
        "errors": "0",
        "skipped": "0",
    }
    covered, fault, missing = suite
    assert covered.attrib == {
        "classname": "speculators.data_generation.worker",
        "name": "vllm.config:CacheConfig: 100% gone, or: moved",
        "file": "speculators/data_generation/worker.py",
        "line": "166",
    }
    assert covered.findtext("system-out").endswith("Covered by block-size.")
    assert fault.findtext("system-out") == "vllm.v1:Request: is <odd> & \ufffd. Covered by x."
    (failure,) = missing
    assert failure.attrib == {"type": MISSING.kind, "message": MISSING.what}
    assert failure.text.endswith("Not covered. Next step: install another vLLM.")


def test_junit_of_nothing_is_one_test_that_passed() -> None:
    ((case,),) = ElementTree.fromstring(junit(NONE).encode())
    assert (case.get("name"), len(case)) == ("nothing found that does not work as it is", 0)


def test_files_are_named_below_this_folder_or_below_their_packages(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    inside = MISSING._replace(file=str(tmp_path / "lib" / "speculators" / "other.py"))
    outside = MISSING._replace(file="/site-packages/speculators/other.py")
    package = MISSING._replace(file="/site-packages/p/q/__init__.py", module="p.q")
    outcome = Outcome("t", (inside, outside, package), {})
    assert [line for line in text(outcome).splitlines() if line.endswith(".py")] == [
        "lib/speculators/other.py",
        "speculators/other.py",
        "p/q/__init__.py",
    ]
    assert [line.split(",")[0] for line in github(outcome).splitlines()[:3]] == [
        "::error file=lib/speculators/other.py",
        "::error file=/site-packages/speculators/other.py",
        "::error file=/site-packages/p/q/__init__.py",
    ]
