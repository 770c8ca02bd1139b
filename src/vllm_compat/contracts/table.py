"""The contracts of many releases as one table: for each symbol, runs of releases that agree.

Most symbols change a few times in thirty releases, so a run is written once, from its first to its
last release. Two findings agree when all that is recorded of them does, the texts of defaults
included; only the line, which moves with every release, stands beside the run, release by release.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.version import Version

from vllm_compat.probe import Finding, Parameter, Signature

if TYPE_CHECKING:
    from vllm_compat.probe.signature import Kind

Table = dict[str, Any]

# A kind of parameter is written as its place here, which halves the table.
KINDS: tuple[Kind, ...] = (
    "positional_only",
    "positional_or_keyword",
    "var_positional",
    "keyword_only",
    "var_keyword",
)


class Contract(NamedTuple):
    """What one release of vLLM has under every symbol that speculators relies on.

    Attributes:
        release: its version.
        origin: the file, or the metadata folder, of the distribution it was read from;
            ``"installed"`` for an environment's.
        sha256: over the files that the findings were read from.
        findings: symbol -> what is there. Old and new homes of a symbol are symbols of their own.
    """

    release: str
    origin: str
    sha256: str
    findings: Mapping[str, Finding]


def releases(table: Table) -> tuple[str, ...]:
    """The releases of a table, oldest first."""
    return tuple(sorted(table["releases"], key=Version))


def encode(contracts: Iterable[Contract]) -> Table:
    """The table of ``contracts``, one a release."""
    ordered = sorted(contracts, key=lambda contract: Version(contract.release))
    runs: dict[str, list[dict[str, Any]]] = {}
    last: Contract | None = None
    for contract in ordered:
        for symbol, finding in contract.findings.items():
            known = runs.setdefault(symbol, [])
            told = _told(finding)
            if known and last and known[-1]["to"] == last.release and known[-1]["finding"] == told:
                known[-1]["to"] = contract.release
            else:
                run = {"from": contract.release, "to": contract.release, "finding": told}
                known.append(run)
            if finding.line is not None:
                known[-1].setdefault("lines", {})[contract.release] = finding.line
        last = contract
    return {
        "releases": {c.release: {"origin": c.origin, "sha256": c.sha256} for c in ordered},
        "symbols": runs,
    }


def decode(table: Table, release: str) -> Contract:
    """The contract of one release.

    Raises:
        KeyError: the table does not have it.
    """
    origin = table["releases"][release]
    order = releases(table)
    here = order.index(release)
    findings = {}
    for symbol, runs in table["symbols"].items():
        for run in runs:
            if order.index(run["from"]) <= here <= order.index(run["to"]):
                line = run.get("lines", {}).get(release)
                findings[symbol] = _finding(symbol, run["finding"], line)
    return Contract(release, origin["origin"], origin["sha256"], findings)


def findings(table: Table, symbol: str) -> dict[str, Finding]:
    """What each release has under one symbol, oldest first; empty where none was recorded."""
    order = releases(table)
    return {
        release: _finding(symbol, run["finding"], run.get("lines", {}).get(release))
        for run in table["symbols"].get(symbol, ())
        for release in order[order.index(run["from"]) : order.index(run["to"]) + 1]
    }


def update(table: Table, contract: Contract) -> Table:
    """A table with ``contract`` in it, in place of what it had for that release."""
    others = [decode(table, release) for release in releases(table) if release != contract.release]
    return encode([*others, contract])


def dump(table: Mapping[str, Any], levels: int = 3) -> str:
    """The one text of a table: sorted, and a line for each run, so that a change reads as one.

    ``levels`` says how deep a nesting is spread over lines.
    """
    return _text(table, levels, "") + "\n"


def _text(value: Any, levels: int, indent: str) -> str:
    if not levels or not value or not isinstance(value, (dict, list)):
        return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    deeper = indent + " "
    if isinstance(value, dict):
        items = [
            f"{json.dumps(key)}: {_text(value[key], levels - 1, deeper)}" for key in sorted(value)
        ]
        opening, closing = "{", "}"
    else:
        items = [_text(item, levels - 1, deeper) for item in value]
        opening, closing = "[", "]"
    inside = f",\n{deeper}".join(items)
    return f"{opening}\n{deeper}{inside}\n{indent}{closing}"


def _told(finding: Finding) -> dict[str, Any]:
    """A finding without its symbol and its line; what is empty is left out."""
    told = {
        key: value
        for key, value in finding._asdict().items()
        if key not in ("symbol", "line", "signature") and value
    }
    if finding.signature is not None:
        told["signature"] = [_short(parameter) for parameter in finding.signature.parameters]
    return told


def _finding(symbol: str, told: Mapping[str, Any], line: int | None) -> Finding:
    signature = None
    if "signature" in told:
        signature = Signature(
            tuple(Parameter(name, KINDS[kind], *rest) for name, kind, *rest in told["signature"])
        )
    return Finding(symbol, **{**told, "signature": signature, "line": line})


def _short(parameter: Parameter) -> list[Any]:
    """A parameter's fields, without those at the end that are as they usually are."""
    name, kind, required, default, init_only = parameter
    row = [name, KINDS.index(kind), required, default, init_only]
    for usual in (False, None):  # init_only, default
        if row[-1] is not usual:
            break
        row.pop()
    return row
