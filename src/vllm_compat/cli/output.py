"""Findings as text, JSON, GitHub workflow commands and JUnit XML."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from textwrap import fill
from typing import Any, NamedTuple, TextIO

from vllm_compat.checking.incompatibility import Incompatibility

SCHEMA = 1
WIDTH = 80
RED, YELLOW, BLUE, BOLD, PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[34m", "\x1b[1m", "\x1b[0m"


class Outcome(NamedTuple):
    """What a command has to say.

    Attributes:
        title: what was looked at.
        incompatibilities: what was found.
        facts: what JSON says beside that.
        notes: lines for a reader.
        nothing: what to say when nothing was found.
    """

    title: str
    incompatibilities: Sequence[Incompatibility]
    facts: dict[str, Any]
    notes: tuple[str, ...] = ()
    nothing: str = "nothing found that does not work as it is"

    @property
    def summary(self) -> str:
        """One line."""
        found = self.incompatibilities
        if not found:
            return self.nothing
        drift = sum(one.is_drift for one in found)
        missing = sum(not one.covered_by for one in found)
        parts = [f"{drift} {'change' if drift == 1 else 'changes'} of vLLM"] if drift else []
        if len(found) > drift:
            other = len(found) - drift
            parts.append(f"{other} {'fault' if other == 1 else 'faults'} or limits of its own")
        return f"{', '.join(parts)}; {f'{missing} not covered' if missing else 'all covered'}"


def write(outcome: Outcome, form: str, stream: TextIO | None = None) -> None:
    """Write it to ``stream``, or to standard output."""
    stream = stream or sys.stdout
    if form == "text":
        stream.write(text(outcome, colour=wants_colour(stream)))
    else:
        stream.write({"json": as_json, "github": github, "junit": junit}[form](outcome))


def wants_colour(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal whose user has not asked for plain text."""
    return (
        stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") != "dumb"
    )


# -- text -----------------------------------------------------------------------------------------


def text(outcome: Outcome, colour: bool = False) -> str:
    """For a reader, in 80 columns."""
    lines = [_coloured(fill(f"{outcome.title}: {outcome.summary}", WIDTH), BOLD, colour)]
    lines += [fill(note, WIDTH) for note in outcome.notes]
    for path, found in groupby(outcome.incompatibilities, _path):
        lines += ["", path]
        for one in found:
            lines += _entry(one, colour)
    return "\n".join(lines) + "\n"


def _entry(one: Incompatibility, colour: bool) -> list[str]:
    indent = " " * 8
    origin = f"vLLM {one.release}" if one.release else ""
    origin += f" ({one.pr})" if one.pr else ""
    coverage = f"covered by {one.covered_by}" if one.covered_by else "NOT COVERED"
    if one.next_step:
        coverage += f"; next step: {one.next_step}"
    last = "; ".join(part for part in (origin, coverage) if part)
    head = f"{one.line or '-':>6}  {one.kind}: {one.symbol}"
    return [
        _coloured(fill(head, WIDTH, subsequent_indent=indent), _shade(one), colour),
        *(
            fill(part, WIDTH, initial_indent=indent, subsequent_indent=indent)
            for part in (one.what, last)
        ),
    ]


def _shade(one: Incompatibility) -> str:
    if not one.covered_by:
        return RED
    return YELLOW if one.is_drift else BLUE


def _coloured(part: str, shade: str, colour: bool) -> str:
    return f"{shade}{part}{PLAIN}" if colour else part


def _path(one: Incompatibility) -> str:
    """The file as short as it is clear: below this folder, or below where packages are."""
    file = _file(one)
    if not os.path.isabs(file):
        return file
    parts = file.split(os.sep)
    depth = len(one.module.split(".")) + (parts[-1] == "__init__.py")
    return "/".join(parts[-depth:])


def _file(one: Incompatibility) -> str:
    """The file as other programs find it: below this folder if it is there, else in full."""
    if not one.file:
        return one.module.replace(".", "/") + ".py"
    below = os.path.relpath(one.file)
    return one.file if below.startswith(os.pardir) else below


# -- JSON -----------------------------------------------------------------------------------------


def as_json(outcome: Outcome) -> str:
    """For programs; ``schema`` changes when what stands here does."""
    data = {
        "schema": SCHEMA,
        **outcome.facts,
        "summary": outcome.summary,
        "incompatibilities": [one.to_dict() for one in outcome.incompatibilities],
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


# -- GitHub ---------------------------------------------------------------------------------------


def github(outcome: Outcome) -> str:
    """Workflow commands: an error for what is not covered, a warning for a change that is, a notice
    for the rest."""
    lines = [_command(one) for one in outcome.incompatibilities]
    lines.append(f"::notice title={_property(outcome.title)}::{_data(outcome.summary)}")
    return "\n".join(lines) + "\n"


def _command(one: Incompatibility) -> str:
    level = ("warning" if one.is_drift else "notice") if one.covered_by else "error"
    place = {"file": _file(one), "line": str(one.line) if one.line else "", "title": one.kind}
    properties = ",".join(f"{name}={_property(value)}" for name, value in place.items() if value)
    return f"::{level} {properties}::{_data(' '.join(_message(one)))}"


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")


def _message(one: Incompatibility) -> Iterable[str]:
    """What a format without fields of its own says."""
    yield f"{one.symbol}: {one.what}."
    if one.release:
        yield f"Since vLLM {one.release}" + (f" ({one.pr})." if one.pr else ".")
    yield f"Covered by {one.covered_by}." if one.covered_by else "Not covered."
    if one.next_step:
        yield f"Next step: {one.next_step}."


# -- JUnit ----------------------------------------------------------------------------------------

# What XML 1.0 cannot hold.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(outcome: Outcome) -> str:
    """A test case for each finding, failed where it is not covered; one that passed for none."""
    from xml.etree.ElementTree import Element, SubElement, indent, tostring

    found = outcome.incompatibilities
    failures = sum(not one.covered_by for one in found)
    suite = Element(
        "testsuite",
        name=_clean(outcome.title),
        tests=str(len(found) or 1),
        failures=str(failures),
        errors="0",
        skipped="0",
    )
    if not found:
        SubElement(suite, "testcase", classname="vllm_compat", name=_clean(outcome.summary))
    for one in found:
        case = SubElement(
            suite,
            "testcase",
            classname=_clean(one.module),
            name=_clean(f"{one.symbol}: {one.what}"),
            file=_clean(_file(one)),
            line=str(one.line),
        )
        message = _clean(" ".join(_message(one)))
        if one.covered_by:
            SubElement(case, "system-out").text = message
        else:
            SubElement(case, "failure", type=one.kind, message=_clean(one.what)).text = message
    suites = Element("testsuites")
    suites.append(suite)
    indent(suites)
    return f"<?xml version='1.0' encoding='UTF-8'?>\n{tostring(suites, encoding='unicode')}\n"


def _clean(value: str) -> str:
    return _NOT_XML.sub("\ufffd", value)
