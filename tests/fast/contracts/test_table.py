"""Contracts as runs of releases that agree, and back."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_compat.contracts import (
    Contract,
    NotRecordedError,
    dump,
    load_speculators,
    load_vllm,
    recorded,
    releases,
    speculators_releases,
    update,
    vllm_table,
)
from vllm_compat.contracts.recording import symbols_asked
from vllm_compat.contracts.table import decode, encode
from vllm_compat.contracts.table import releases as releases_of
from vllm_compat.probe import Finding, Parameter, Signature

KINDS = [
    "positional_only", "positional_or_keyword", "var_positional", "keyword_only", "var_keyword"
]  # fmt: skip
TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
PARAMETERS = st.builds(
    Parameter,
    TEXT,
    st.sampled_from(KINDS),
    st.booleans(),
    st.none() | TEXT,
    st.booleans(),
)
SIGNATURES = st.none() | st.lists(PARAMETERS, max_size=3).map(lambda ps: Signature(tuple(ps)))
FINDINGS = st.builds(
    Finding,
    symbol=st.just(""),
    status=st.sampled_from(["found", "absent"]),
    kind=st.sampled_from([None, "function", "class", "module", "value"]),
    signature=SIGNATURES,
    location=st.none() | st.just("vllm.a:f"),
    file=st.none() | st.just("a.py"),
    line=st.none() | st.integers(1, 3),
    note=st.sampled_from(["", "because"]),
)
VERSIONS = ["0.9.2", "0.11.0", "0.11.0.post1", "0.12.0rc1", "0.12.0", "0.100.0"]


@st.composite
def contract_sets(draw):
    pool = draw(st.lists(FINDINGS, min_size=1, max_size=3))
    chosen = draw(st.lists(st.sampled_from(VERSIONS), unique=True, min_size=1))
    return [
        Contract(
            release,
            draw(TEXT),
            draw(TEXT),
            {
                symbol: draw(st.sampled_from(pool))._replace(symbol=symbol)
                for symbol in draw(st.sets(st.sampled_from(["vllm.a:f", "vllm.a:g", "vllm.b"])))
            },
        )
        for release in chosen
    ]


def plain(contract: Contract):
    """Everything in it: signatures compare without their defaults, their data does not."""
    return {
        **contract._asdict(),
        "findings": {symbol: f.to_dict() for symbol, f in contract.findings.items()},
    }


@given(contract_sets())
@settings(deadline=None)
def test_what_goes_in_comes_out(contracts) -> None:
    table = json.loads(dump(encode(contracts)))
    assert sorted(releases_of(table)) == sorted(c.release for c in contracts)
    for contract in contracts:
        assert plain(decode(table, contract.release)) == plain(contract)


@given(contract_sets())
@settings(deadline=None)
def test_runs_are_as_long_as_they_can_be(contracts) -> None:
    table = encode(contracts)
    order = releases_of(table)
    assert order == tuple(v for v in VERSIONS if v in order)
    for symbol, runs in table["symbols"].items():
        covered = []
        for run in runs:
            covered += order[order.index(run["from"]) : order.index(run["to"]) + 1]
        having = {c.release for c in contracts if symbol in c.findings}
        assert covered == [release for release in order if release in having]
        for run, following in pairwise(runs):
            adjacent = order.index(run["to"]) + 1 == order.index(following["from"])
            assert not adjacent or run["finding"] != following["finding"]


@given(contract_sets(), st.randoms())
@settings(deadline=None)
def test_the_order_of_updates_does_not_matter(contracts, random) -> None:
    shuffled = random.sample(contracts, len(contracts))
    table = encode(shuffled[:1])
    for contract in [*shuffled[1:], *random.sample(shuffled, 1)]:
        table = update(table, contract)
    assert dump(table) == dump(encode(contracts))


def test_a_changed_default_starts_a_run_and_a_moved_line_does_not() -> None:
    def contract(release: str, default: str, line: int) -> Contract:
        signature = Signature((Parameter("a", "keyword_only", False, default),))
        finding = Finding("vllm.a:f", "found", "function", signature, line=line)
        return Contract(release, "o", "s", {"vllm.a:f": finding})

    table = encode([contract("1", "0", 5), contract("2", "0", 6), contract("3", "1", 6)])
    told = {"status": "found", "kind": "function"}
    assert table["symbols"]["vllm.a:f"] == [
        {
            "from": "1",
            "to": "2",
            "finding": {**told, "signature": [["a", 3, False, "0"]]},
            "lines": {"1": 5, "2": 6},
        },
        {
            "from": "3",
            "to": "3",
            "finding": {**told, "signature": [["a", 3, False, "1"]]},
            "lines": {"3": 6},
        },
    ]
    assert dump({"b": {"y": [1, {"c": 2}], "x": 1}, "a": []}, 2) == (
        '{\n "a": [],\n "b": {\n  "x": 1,\n  "y": [1,{"c":2}]\n }\n}\n'
    )


# -- the tables that come with the package --------------------------------------------------------


def committed(name: str) -> str:
    return (recorded.files("vllm_compat.contracts") / "data" / name).read_text(encoding="utf-8")


def test_the_committed_tables_are_the_bytes_that_would_be_written_today() -> None:
    table = vllm_table()
    assert dump(encode(decode(table, release) for release in releases())) == committed("vllm.json")
    assert len(committed("vllm.json")) < 400_000
    text = committed("speculators.json")
    assert dump(json.loads(text)) == text


def test_the_symbols_of_the_table_are_those_asked_for_today() -> None:
    consumers = [load_speculators(release) for release in speculators_releases()]
    for release in releases():
        tree = load_vllm(release)
        assert symbols_asked(tree, consumers) == set(tree.contract.findings), release
    assert {f.symbol for f in tree.contract.findings.values()} == set(vllm_table()["symbols"])


def test_the_releases_are_all_there_are() -> None:
    assert " ".join(releases()) == (
        "0.11.0 0.11.1 0.11.2 0.12.0 0.13.0 0.14.0 0.14.1 0.15.0 0.15.1 0.16.0 0.17.0 0.17.1 0.18.0"
        " 0.18.1 0.19.0 0.19.1 0.20.0 0.20.1 0.20.2 0.21.0 0.22.0 0.22.1 0.23.0 0.24.0 0.25.0"
        " 0.25.1 0.26.0 0.27.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0"
    )
    assert " ".join(speculators_releases()) == (
        "0.3.0 0.4.0 0.4.0.1 0.5.0 0.6.0 0.6.0.1 0.6.0.2 0.7.0 0.7.0.1 0.7.0.2 0.8.0 0.8.1 0.9.0"
    )
    origins = {release: vllm_table()["releases"][release]["origin"] for release in releases()}
    assert all(o.startswith(f"vllm-{r}-") and o.endswith(".whl") for r, o in origins.items())
    hashes = [vllm_table()["releases"][release]["sha256"] for release in releases()]
    assert {len(text) for text in hashes} == {64}
    assert len(set(hashes)) == 31  # four patch releases changed none of the files


def test_what_is_not_recorded_is_said() -> None:
    with pytest.raises(NotRecordedError, match=r"no record of vLLM 0.10.2") as error:
        load_vllm("0.10.2")
    assert error.value.found == "35 releases, 0.11.0 to 0.33.0"
    with pytest.raises(NotRecordedError, match=r"no record of speculators 0.2.0"):
        load_speculators("0.2.0")
    with pytest.raises(
        NotRecordedError, match=r"vLLM 0.33.0 does not say what vllm:PoolingParams is"
    ):
        load_vllm("0.33.0").probe("vllm:PoolingParams")


def test_a_recorded_tree_answers_candidates_as_a_source_tree_does() -> None:
    old, new = (
        f"vllm.v1.core.kv_cache_{m}:unify_hybrid_kv_cache_specs" for m in ("utils", "planning")
    )
    moved = load_vllm("0.33.0").probe(old, (new,))
    assert (moved.symbol, moved.status, moved.location) == (old, "moved", new)
    assert load_vllm("0.32.0").probe(old, (new,)).status == "found"
    assert load_vllm("0.33.0").probe(old).status == "absent"
    assert moved.line is not None
