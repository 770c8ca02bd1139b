"""What changed between two vLLM releases: the known changes as the oracle, and made-up ones."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from vllm_compat.checking.difference import difference
from vllm_compat.contracts import load_vllm, releases
from vllm_compat.contracts.table import Contract
from vllm_compat.probe import Finding, Parameter, Signature, SourceTree

RELEASES = releases()
UTILS, PLANNING = "vllm.v1.core.kv_cache_utils", "vllm.v1.core.kv_cache_planning"
SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
EXECUTOR = "vllm.v1.executor.multiproc_executor:MultiprocExecutor"
REQUEST = "vllm.v1.request:Request"
CONFIG = "vllm.config:SchedulerConfig"

BREAKING, BEHAVIOURAL, ADDED = "breaking", "behavioural", "added"

# The table of test_breaks.py, as changes: the release, the symbol, group, kind, old and new.
KNOWN = [
    ("0.11.1", CONFIG, BREAKING, "parameter added", "none -> is_encoder_decoder=False"),
    ("0.12.0", CONFIG, BREAKING, "parameter became required", "=False -> is_encoder_decoder"),
    ("0.12.0", CONFIG, BREAKING, "parameter became required", "=8192 -> max_model_len"),
    ("0.14.0", CONFIG, BEHAVIOURAL, "behaviour changed", "=False -> async_scheduling=None"),
    ("0.14.0", CONFIG, BEHAVIOURAL, "behaviour changed", "means on where possible"),
    (
        "0.12.0",
        f"{UTILS}:get_kv_cache_config_from_groups",
        BREAKING,
        "parameter removed",
        "kv_cache_specs -> none",
    ),
    *(
        ("0.33.0", f"{home}:{name}", group, kind, what)
        for name in (
            "_get_kv_cache_groups_uniform_spec",
            "get_kv_cache_config_from_groups",
            "unify_hybrid_kv_cache_specs",
        )
        for home, group, kind, what in (
            (UTILS, BREAKING, "moved", f"{UTILS}:{name} -> {PLANNING}:{name}"),
            (PLANNING, ADDED, "appeared", "absent -> a function"),
        )
    ),
    ("0.11.1", SCHEDULER, BREAKING, "parameter added", "none -> block_size, in front of mm_reg"),
    ("0.20.0", SCHEDULER, BREAKING, "parameter added", "hash_block_size=None, in front of mm_reg"),
    ("0.23.0", SCHEDULER, BEHAVIOURAL, "behaviour changed", "register_all_kvcache_specs must"),
    ("0.24.0", f"{SCHEDULER}.schedule", ADDED, "parameter added", "none -> throttle_prefills=F"),
    (
        "0.29.0",
        "vllm.v1.executor.abstract:Executor.set_kv_cache_layout",
        ADDED,
        "appeared",
        "absent -> a function",
    ),
    (
        "0.29.0",
        "vllm.v1.attention.backends.utils:resolve_kv_cache_layout",
        ADDED,
        "appeared",
        "absent -> a function",
    ),
    ("0.17.0", REQUEST, BREAKING, "parameter removed", "eos_token_id -> none"),
    ("0.21.0", REQUEST, BREAKING, "parameter added", "prompt_is_token_ids=None, in front of"),
    ("0.28.0", REQUEST, BREAKING, "parameter added", "none -> session_id=None, in front of"),
    ("0.31.0", REQUEST, ADDED, "parameter added", "none -> kv_hints=None"),
    (
        "0.11.1",
        "vllm.utils:get_hash_fn_by_name",
        BREAKING,
        "moved",
        "-> vllm.utils.hashing:get_hash_fn_by_name",
    ),
    (
        "0.24.0",
        f"{UTILS}:get_request_block_hasher",
        BREAKING,
        "parameter renamed",
        "block_size -> hash_block_size",
    ),
    (
        "0.33.0",
        f"{UTILS}:get_request_block_hasher",
        ADDED,
        "parameter added",
        "none -> num_hash_lookahead_tokens=0",
    ),
    ("0.11.1", f"{EXECUTOR}.sample_tokens", ADDED, "appeared", "absent -> a function"),
    ("0.11.1", f"{EXECUTOR}.execute_model", BEHAVIOURAL, "return changed", "returns None"),
    ("0.11.1", f"{EXECUTOR}.collective_rpc", BEHAVIOURAL, "return changed", "the bare value"),
    ("0.11.1", f"{EXECUTOR}.collective_rpc", ADDED, "parameter added", "kv_output_aggregator=N"),
    ("0.28.0", f"{EXECUTOR}.collective_rpc", ADDED, "parameter added", "ec_output_aggregator=N"),
    (
        "0.23.0",
        "vllm.sequence:IntermediateTensors",
        BREAKING,
        "parameter removed",
        "kv_connector_output=None -> none",
    ),
]


def step(first: str):
    return difference(load_vllm(RELEASES[RELEASES.index(first) - 1]), load_vllm(first))


@pytest.mark.parametrize(("first", "symbol", "group", "kind", "what"), KNOWN)
def test_a_known_change_is_in_its_step_and_group(first, symbol, group, kind, what) -> None:
    found = [
        change
        for change in step(first).changes
        if (change.symbol, change.kind) == (symbol, kind) and what in change.what
    ]
    assert [change.group for change in found] == [group]


def test_a_step_without_changes_says_so() -> None:
    still = difference(load_vllm("0.33.0"), load_vllm("0.33.0"))
    assert (still.before, still.after, still.changes) == ("0.33.0", "0.33.0", ())
    assert still.unchanged == tuple(sorted(load_vllm("0.33.0").contract.findings))


def test_every_symbol_is_accounted_for_once() -> None:
    for before, after in pairwise(RELEASES):
        found = difference(load_vllm(before), load_vllm(after))
        old, new = (set(load_vllm(release).contract.findings) for release in (before, after))
        changed = {change.symbol for change in found.changes}
        assert set(found.unchanged) == (old & new) - changed
        assert set(found.not_compared) == old ^ new


def test_declared_changes_count_once_and_faults_of_others_do_not() -> None:
    all_in_one = difference(load_vllm("0.11.0"), load_vllm("0.33.0"))
    told = [c.what for c in all_in_one.changes if c.symbol == f"{EXECUTOR}.execute_model"]
    assert told == ["execute_model returns None: sample_tokens must follow"]
    kinds = {change.kind for change in all_in_one.changes}
    assert not kinds & {"fault", "environment"}
    backwards = difference(load_vllm("0.33.0"), load_vllm("0.11.0"))
    assert not [c for c in backwards.changes if c.kind == "return changed"]


def test_it_is_ready_for_json() -> None:
    data = step("0.24.0").to_dict()
    assert json.loads(json.dumps(data)) == data
    assert (data["before"], data["after"]) == ("0.23.0", "0.24.0")
    assert {
        "symbol": f"{SCHEDULER}.schedule",
        "group": "added",
        "kind": "parameter added",
        "what": "none -> throttle_prefills=False",
        "pr": "",
    } in data["added"]


def signature(text: str) -> Signature:
    """`a b=1 /c *d=2`: a slash in front is by place only, a star by keyword only."""
    parameters = []
    for part in text.split():
        name, _, default = part.lstrip("/*").partition("=")
        kind = {"/": "positional_only", "*": "keyword_only"}.get(part[0], "positional_or_keyword")
        if part.startswith("**"):
            kind = "var_keyword"
        required = not default and kind != "var_keyword"
        parameters.append(Parameter(name, kind, required, default or None))
    return Signature(tuple(parameters))


def changes(before: str | Finding, after: str | Finding):
    contracts = []
    for release, given in (("1", before), ("2", after)):
        finding = given
        if isinstance(given, str):
            finding = Finding("m:f", "found", "function", signature(given), "m:f")
        contracts.append(Contract(release, "", "", {"m:f": finding}))
    return [(c.group, c.kind, c.what) for c in difference(*contracts).changes]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("a b", "a b", []),
        ("a", "a b", [(BREAKING, "parameter added", "none -> b")]),
        ("a", "a b=1", [(ADDED, "parameter added", "none -> b=1")]),
        ("a", "a *b", [(BREAKING, "parameter added", "none -> b")]),
        ("a", "a *b=1", [(ADDED, "parameter added", "none -> b=1")]),
        ("a", "a **more", [(ADDED, "parameter added", "none -> **more")]),
        ("a **more", "a", [(BREAKING, "parameter removed", "**more -> none")]),
        ("a b", "a", [(BREAKING, "parameter removed", "b -> none")]),
        ("a b c", "a x c", [(BREAKING, "parameter renamed", "b -> x")]),
        ("a *b=1", "a *x=1", [(BREAKING, "parameter renamed", "b -> x")]),
        (
            "a b=1",
            "a x=2",
            [
                (BREAKING, "parameter removed", "b=1 -> none"),
                (ADDED, "parameter added", "none -> x=2"),
            ],
        ),
        ("a b=1", "a b", [(BREAKING, "parameter became required", "b=1 -> b")]),
        ("a b", "a b=1", [(ADDED, "behaviour changed", "b -> b=1")]),
        ("a=1", "a=2", [(BEHAVIOURAL, "behaviour changed", "a=1 -> a=2")]),
        ("a b c", "a c b", [(BREAKING, "behaviour changed", "order: b, c -> c, b")]),
        ("*a *b", "*b *a", [(BEHAVIOURAL, "behaviour changed", "order: a, b -> b, a")]),
        ("a b", "a *b", [(BREAKING, "behaviour changed", "b is no longer given by place")]),
        ("a", "/a", [(BREAKING, "behaviour changed", "a is no longer given by name")]),
        ("a=1", "b=1 a=1", [(BREAKING, "parameter added", "none -> b=1, in front of a")]),
    ],
)
def test_each_sort_of_change_of_a_signature(before, after, expected) -> None:
    assert changes(before, after) == expected


def test_a_symbol_that_goes_comes_or_becomes_something_else() -> None:
    absent = Finding("m:f", "absent")
    as_class = Finding("m:f", "found", "class", signature("a"), "m:f")
    value = Finding("m:f", "found", "value", None, "m:f")
    assert changes("a", absent) == [(BREAKING, "gone", "a function -> absent")]
    assert changes(absent, as_class) == [(ADDED, "appeared", "absent -> a class")]
    assert changes("a", as_class) == [(BREAKING, "behaviour changed", "a function -> a class")]
    assert changes("a", value) == [(BREAKING, "behaviour changed", "a function -> a value")]
    assert changes(absent, absent) == []


def test_what_moves_and_changes_tells_both() -> None:
    def contract(release, old, new):
        found = {
            symbol: Finding(symbol, "found", "function", signature(text), symbol)
            if text
            else Finding(symbol, "absent")
            for symbol, text in (("m:f", old), ("n:f", new))
        }
        return Contract(release, "", "", found)

    found = difference(contract("1", "a", ""), contract("2", "", "a b"))
    assert [change[:4] for change in found.changes] == [
        ("m:f", BREAKING, "moved", "m:f -> n:f"),
        ("m:f", BREAKING, "parameter added", "none -> b"),
        ("n:f", ADDED, "appeared", "absent -> a function"),
    ]


def test_sources_are_recorded_first(tmp_path) -> None:
    trees = []
    for release, parameters in (("90.0", "a"), ("91.0", "a, b")):
        root = tmp_path / release / "vllm"
        (root / "utils").mkdir(parents=True)
        (root / "__init__.py").write_text("")
        (root / "_version.py").write_text(f"version = '{release}'")
        (root / "utils" / "__init__.py").write_text("")
        hashing = f"def get_hash_fn_by_name({parameters}): ..."
        (root / "utils" / "hashing.py").write_text(hashing)
        trees.append(SourceTree(root, "vllm"))
    found = difference(*trees)
    assert (found.before, found.after) == ("90.0", "91.0")
    assert [change[:4] for change in found.changes] == [
        ("vllm.utils.hashing:get_hash_fn_by_name", BREAKING, "parameter added", "none -> b")
    ]
