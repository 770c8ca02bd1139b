"""The newest recorded vLLM with any one name in it changed: no change passes unseen.

Every recorded symbol and every recorded parameter is renamed in turn, and every callable is given
an argument that it requires, as a vLLM to come may do. Wherever speculators or this package relies
on the name, a call site must come out as uncovered: adapters tell releases apart by what signatures
show, and must not take a newer vLLM for an older one. What may change unseen stands here, each with
the reason.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import vllm_compat
from vllm_compat.adapters import REGISTRY
from vllm_compat.contracts import load_speculators, load_vllm, recorded_context
from vllm_compat.contracts.reached import REACHED
from vllm_compat.contracts.recorded import RecordedTree
from vllm_compat.judge import judge
from vllm_compat.probe import Parameter
from vllm_compat.versions import NEWEST_KNOWN

SPECULATORS = ("0.3.0", "0.4.0", "0.4.0.1")
CONTRACT = load_vllm(NEWEST_KNOWN).contract
FOUND = {symbol: f for symbol, f in CONTRACT.findings.items() if f.status == "found"}
CALLABLE = [symbol for symbol, finding in FOUND.items() if finding.signature is not None]
PARAMETERS = [
    (symbol, parameter.name)
    for symbol in CALLABLE
    for parameter in FOUND[symbol].signature.parameters
    if not parameter.kind.startswith("var_")
]


def renamed(symbol):
    """The findings without ``symbol``, and without what is in it."""
    module, _, path = symbol.partition(":")
    inside = (f"{symbol}.", f"{symbol}:", f"{module}.{path}:" if path else f"{module}.")
    return {
        name: f._replace(status="absent", kind=None, signature=None, location=None)
        if name == symbol or name.startswith(inside)
        else f
        for name, f in CONTRACT.findings.items()
    }


def with_parameters(symbol, change):
    finding = CONTRACT.findings[symbol]
    signature = finding.signature._replace(parameters=tuple(change(finding.signature.parameters)))
    return {**CONTRACT.findings, symbol: finding._replace(signature=signature)}


def with_renamed(symbol, name):
    return with_parameters(
        symbol, lambda all_of: [p._replace(name="other") if p.name == name else p for p in all_of]
    )


def with_required(symbol):
    new = Parameter("other", "keyword_only", True)
    return with_parameters(
        symbol,
        lambda all_of: [
            *(p for p in all_of if p.kind != "var_keyword"),
            new,
            *(p for p in all_of if p.kind == "var_keyword"),
        ],
    )


def uncovered(findings, speculators, release="0.34.0"):
    tree = RecordedTree(CONTRACT._replace(release=release, findings=findings))
    report, _ = judge(recorded_context(tree, load_speculators(speculators)))
    for site in report.uncovered:
        assert site.decision.found
        assert site.decision.needed
    return [site.name for site in report.uncovered]
