"""The known changes of vLLM, each found on the first release with it, not on the one before."""

from __future__ import annotations

import pytest

from vllm_compat.contracts import load_speculators, load_vllm, recorded_context, releases
from vllm_compat.judge import judge
from vllm_compat.probe import Finding

RELEASES = releases()


def accepts(name: str):
    return lambda f: f.signature is not None and f.signature.accepts(name)


def requires(name: str):
    return lambda f: f.signature is not None and f.signature.requires(name)


def there(f: Finding) -> bool:
    return f.status == "found"


def default(name: str, text: str):
    return lambda f: next(p for p in f.signature.parameters if p.name == name).default == text


def position(name: str, place: int):
    return lambda f: f.signature is not None and f.signature.names[place] == name


def no(check):
    return lambda f: not check(f)


UTILS, PLANNING = "vllm.v1.core.kv_cache_utils", "vllm.v1.core.kv_cache_planning"
SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
EXECUTOR = "vllm.v1.executor.multiproc_executor:MultiprocExecutor"
REQUEST = "vllm.v1.request:Request"

CHANGES = [
    ("vllm.config:SchedulerConfig", accepts("is_encoder_decoder"), "0.11.0", "0.11.1"),
    ("vllm.config:SchedulerConfig", requires("is_encoder_decoder"), "0.11.2", "0.12.0"),
    ("vllm.config:SchedulerConfig", requires("max_model_len"), "0.11.2", "0.12.0"),
    ("vllm.config:SchedulerConfig", default("async_scheduling", "None"), "0.13.0", "0.14.0"),
    (f"{UTILS}:get_kv_cache_config_from_groups", no(accepts("kv_cache_specs")), "0.11.2", "0.12.0"),
    (f"{UTILS}:_get_kv_cache_groups_uniform_spec", no(there), "0.32.0", "0.33.0"),
    (f"{UTILS}:get_kv_cache_config_from_groups", no(there), "0.32.0", "0.33.0"),
    (f"{UTILS}:unify_hybrid_kv_cache_specs", no(there), "0.32.0", "0.33.0"),
    (f"{PLANNING}:_get_kv_cache_groups_uniform_spec", there, "0.32.0", "0.33.0"),
    (f"{PLANNING}:get_kv_cache_config_from_groups", there, "0.32.0", "0.33.0"),
    (f"{PLANNING}:unify_hybrid_kv_cache_specs", there, "0.32.0", "0.33.0"),
    (SCHEDULER, requires("block_size"), "0.11.0", "0.11.1"),
    (SCHEDULER, position("block_size", 3), "0.11.0", "0.11.1"),
    (SCHEDULER, accepts("hash_block_size"), "0.19.1", "0.20.0"),
    (SCHEDULER, position("hash_block_size", 4), "0.19.1", "0.20.0"),
    (f"{SCHEDULER}.schedule", accepts("throttle_prefills"), "0.23.0", "0.24.0"),
    ("vllm.v1.executor.abstract:Executor.set_kv_cache_layout", there, "0.28.0", "0.29.0"),
    ("vllm.v1.attention.backends.utils:resolve_kv_cache_layout", there, "0.28.0", "0.29.0"),
    (REQUEST, no(accepts("eos_token_id")), "0.16.0", "0.17.0"),
    (REQUEST, accepts("prompt_is_token_ids"), "0.20.2", "0.21.0"),
    (REQUEST, accepts("session_id"), "0.27.1", "0.28.0"),
    (REQUEST, accepts("kv_hints"), "0.30.0", "0.31.0"),
    ("vllm.utils.hashing:get_hash_fn_by_name", there, "0.11.0", "0.11.1"),
    ("vllm.utils:get_hash_fn_by_name", no(there), "0.11.0", "0.11.1"),
    (f"{UTILS}:get_request_block_hasher", accepts("hash_block_size"), "0.23.0", "0.24.0"),
    (f"{UTILS}:get_request_block_hasher", no(accepts("block_size")), "0.23.0", "0.24.0"),
    (f"{UTILS}:get_request_block_hasher", accepts("num_hash_lookahead_tokens"), "0.32.0", "0.33.0"),
    (f"{EXECUTOR}.sample_tokens", there, "0.11.0", "0.11.1"),
    (f"{EXECUTOR}.collective_rpc", accepts("kv_output_aggregator"), "0.11.0", "0.11.1"),
    (f"{EXECUTOR}.collective_rpc", accepts("ec_output_aggregator"), "0.27.1", "0.28.0"),
    ("vllm.sequence:IntermediateTensors", no(accepts("kv_connector_output")), "0.22.1", "0.23.0"),
]


@pytest.mark.parametrize(("symbol", "check", "before", "first"), CHANGES)
def test_a_change_is_recorded_where_it_came_in(symbol, check, before, first) -> None:
    at = RELEASES.index(first)
    assert RELEASES[at - 1] == before
    assert not check(load_vllm(before).probe(symbol))
    assert all(check(load_vllm(release).probe(symbol)) for release in RELEASES[at:])


# speculators, adapter, release before, first with it: what is decided on the two.
DECISIONS = [
    ("0.3.0", "scheduler", "0.11.0", "0.11.1", ("fits", "adapted")),
    ("0.3.0", "scheduler-config", "0.11.2", "0.12.0", ("adapted", "adapted")),
    ("0.3.0", "kv-cache-config", "0.11.2", "0.12.0", ("fits", "adapted")),
    ("0.4.0.1", "kv-cache-config", "0.11.2", "0.12.0", ("adapted", "fits")),
    ("0.3.0", "kv-cache-functions", "0.32.0", "0.33.0", ("fits", "adapted")),
    ("0.4.0.1", "kv-cache-functions", "0.32.0", "0.33.0", ("fits", "adapted")),
    ("0.3.0", "kv-cache-layout", "0.28.0", "0.29.0", ("fits", "adapted")),
    ("0.4.0.1", "kv-cache-layout", "0.28.0", "0.29.0", ("fits", "adapted")),
    ("0.3.0", "request", "0.16.0", "0.17.0", ("fits", "adapted")),
    ("0.4.0.1", "request", "0.16.0", "0.17.0", ("fits", "adapted")),
    ("0.4.0.1", "hash-function", "0.11.0", "0.11.1", ("adapted", "fits")),
    ("0.3.0", "rpc-reply", "0.11.0", "0.11.1", ("fits", "adapted")),
    ("0.4.0.1", "rpc-reply", "0.11.0", "0.11.1", ("adapted", "fits")),
    ("0.3.0", "block-size", "0.17.1", "0.18.0", ("fits", "adapted")),
    ("0.4.0.1", "block-size", "0.17.1", "0.18.0", ("fits", "adapted")),
]


def decision(speculators: str, adapter: str, vllm: str):
    report, _ = judge(recorded_context(load_vllm(vllm), load_speculators(speculators)))
    (found,) = (site.decision for site in report.call_sites if site.name == adapter)
    return found


@pytest.mark.parametrize(("speculators", "adapter", "before", "first", "states"), DECISIONS)
def test_the_judge_turns_at_that_release(speculators, adapter, before, first, states) -> None:
    at = RELEASES.index(first)
    assert RELEASES[at - 1] == before
    decided = [decision(speculators, adapter, release) for release in RELEASES]
    assert {d.state for d in decided[:at]} == {states[0]}
    assert (decided[at - 1].state, decided[at].state) == states
    assert {d.state for d in decided[at:]} == {states[1]}


def test_scheduler_config_is_told_what_each_release_takes() -> None:
    reasons = {v: decision("0.3.0", "scheduler-config", v).reason for v in RELEASES}
    assert [v for v, text in reasons.items() if "is_encoder_decoder" not in text] == ["0.11.0"]
    assert all("supplies async_scheduling" in text for text in reasons.values())


def test_a_newer_release_is_called_so() -> None:
    tree = load_vllm("0.33.0")
    newer = tree.contract._replace(release="0.34.0")
    report, _ = judge(recorded_context(type(tree)(newer), load_speculators("0.4.0.1")))
    assert (report.vllm, report.newer_than_known) == ("0.34.0", True)
    report, _ = judge(recorded_context(tree, load_speculators("0.4.0.1")))
    assert (report.vllm, report.newer_than_known) == ("0.33.0", False)
