"""Each known break is found on the first release where it bites, at its lines, and not before.

A row says: speculators; the last release without it (None: there is none in the records); the first
with it; the kind; the release and pull requests that ``check`` names; the adapter; the symbol; the
lines. The lines are those of speculators' source, in its generator or (``worker``, ``config``)
beside it.
"""

# ruff: noqa: E501
from __future__ import annotations

import pytest

from vllm_compat.adapters import REGISTRY
from vllm_compat.checking import check, named_pair
from vllm_compat.checking.incompatibility import Incompatibility
from vllm_compat.context import CONFIG, GENERATOR, WORKER, Consumer, Context
from vllm_compat.contracts import load_speculators, load_vllm, recorded_context, releases
from vllm_compat.contracts.recorded import RecordedTree
from vllm_compat.discovery import find_speculators
from vllm_compat.judge import judge

RELEASES = releases()
THREE, FOUR = "0.3.0", "0.4.0.1"
SPECULATORS = (THREE, "0.4.0", FOUR)
OFFICIAL = [
    (THREE, "0.11.0"),
    *((s, v) for s in ("0.4.0", FOUR) for v in RELEASES[3:10]),
]

UTILS = "vllm.v1.core.kv_cache_utils"
SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
EXECUTOR = "vllm.v1.executor.multiproc_executor:MultiprocExecutor"
RUNNER = "vllm.v1.worker.gpu.model_runner:GPUModelRunner"
LLAMA, DEEPSEEK = "vllm.model_executor.models.llama", "vllm.model_executor.models.deepseek_v2"
V2 = "#39337, #43458, #42667, #44443"
ADDED, REMOVED, REQUIRED = "parameter added", "parameter removed", "parameter became required"
RETURN, BEHAVIOUR = "return changed", "behaviour changed"
G, W, C = GENERATOR, WORKER, CONFIG

# fmt: off
DRIFT = [
    # what vLLM changed after the release that this speculators was written for
    (THREE, "0.11.2", "0.12.0", REQUIRED, "0.12.0", "#29859", "scheduler-config", "vllm.config:SchedulerConfig", "missing required is_encoder_decoder", [(G, 194)]),
    (THREE, "0.13.0", "0.14.0", BEHAVIOUR, "0.14.0", "#34292", "scheduler-config", "vllm.config:SchedulerConfig", "async_scheduling", [(G, 194)]),
    (FOUR, "0.16.0", "0.17.0", BEHAVIOUR, "0.14.0", "#34292", "scheduler-config", "vllm.config:SchedulerConfig", "async_scheduling", [(G, 215)]),
    (THREE, "0.11.2", "0.12.0", REMOVED, "0.12.0", "#29143", "kv-cache-config", f"{UTILS}:get_kv_cache_config_from_groups", "unexpected keyword kv_cache_specs", [(G, 136)]),
    *(
        (s, "0.32.0", "0.33.0", "moved", "0.33.0", "#53558", "kv-cache-functions", f"{UTILS}:{name}", "it is in vllm.v1.core.kv_cache_planning", [(G, line)])
        for s, line in ((THREE, 15), (FOUR, 16))
        for name in ("_get_kv_cache_groups_uniform_spec", "get_kv_cache_config_from_groups", "unify_hybrid_kv_cache_specs")
    ),
    (THREE, "0.11.0", "0.11.1", ADDED, "0.11.1", "#26296", "scheduler", SCHEDULER, "missing required block_size", [(G, 148)]),
    (THREE, "0.22.1", "0.23.0", BEHAVIOUR, "0.23.0", "", "scheduler", SCHEDULER, "register_all_kvcache_specs", [(G, 148)]),
    (FOUR, "0.22.1", "0.23.0", BEHAVIOUR, "0.23.0", "", "scheduler", SCHEDULER, "register_all_kvcache_specs", [(G, 154)]),
    (THREE, "0.28.0", "0.29.0", BEHAVIOUR, "0.29.0", "", "kv-cache-layout", "vllm.v1.executor.abstract:Executor.set_kv_cache_layout", "told the layout", [(G, 156)]),
    (FOUR, "0.28.0", "0.29.0", BEHAVIOUR, "0.29.0", "", "kv-cache-layout", "vllm.v1.executor.abstract:Executor.set_kv_cache_layout", "told the layout", [(G, 163)]),
    (THREE, "0.16.0", "0.17.0", REMOVED, "0.17.0", "#34435", "request", "vllm.v1.request:Request", "unexpected keyword eos_token_id", [(G, 234)]),
    (FOUR, "0.16.0", "0.17.0", REMOVED, "0.17.0", "#34435", "request", "vllm.v1.request:Request", "unexpected keyword eos_token_id", [(G, 264)]),
    (THREE, "0.11.0", "0.11.1", RETURN, "0.11.1", "#26866", "engine-steps", f"{EXECUTOR}.execute_model", "execute_model returns None", [(G, 261)]),
    (THREE, "0.11.0", "0.11.1", RETURN, "0.11.1", "#27142", "rpc-reply", f"{EXECUTOR}.collective_rpc", "replies the bare value", [(G, 267)]),
    (THREE, "0.11.0", "0.11.1", "moved", "0.11.1", "#27583", "worker-capture", f"{LLAMA}:LlamaModel.get_input_embeddings", "it is called LlamaModel.embed_input_ids", [(W, 30)]),
    (THREE, "0.11.2", "0.12.0", ADDED, "0.12.0", "", "worker-capture", f"{DEEPSEEK}:DeepseekV2DecoderLayer.forward", "llama_4_scaling", [(W, 45)]),
    (THREE, "0.14.1", "0.15.0", ADDED, "0.15.0", "", "worker-capture", f"{LLAMA}:LlamaModel.forward", "keywords for its layers", [(W, 45)]),
    (FOUR, "0.16.0", "0.17.0", ADDED, "0.15.0", "", "worker-capture", f"{LLAMA}:LlamaModel.forward", "keywords for its layers", [(W, 53)]),
    (THREE, "0.21.0", "0.22.0", BEHAVIOUR, "0.22.0", V2, "worker-capture", RUNNER, "sorts its batch", [(W, 62)]),
    (FOUR, "0.21.0", "0.22.0", BEHAVIOUR, "0.22.0", V2, "worker-capture", RUNNER, "no input_batch", [(W, 106)]),
    (THREE, "0.24.0", "0.25.0", BEHAVIOUR, "0.25.0", "#46635", "worker-capture", f"{DEEPSEEK}:DeepseekV2Model.forward", "sharded over TP ranks", [(W, 41)]),
    (FOUR, "0.24.0", "0.25.0", BEHAVIOUR, "0.25.0", "#46635", "worker-capture", f"{DEEPSEEK}:DeepseekV2Model.forward", "sharded over TP ranks", [(W, 49)]),
    (THREE, "0.17.1", "0.18.0", BEHAVIOUR, "0.18.0", "", "block-size", "vllm.config:CacheConfig", "choice of attention backend", [(G, 166)]),
    (FOUR, "0.17.1", "0.18.0", BEHAVIOUR, "0.18.0", "", "block-size", "vllm.config:CacheConfig", "choice of attention backend", [(G, 186)]),
    (THREE, "0.28.0", "0.29.0", BEHAVIOUR, "0.29.0", "", "block-size", "vllm.config:CacheConfig", "multiples of 32", [(G, 166)]),
    (FOUR, "0.28.0", "0.29.0", BEHAVIOUR, "0.29.0", "", "block-size", "vllm.config:CacheConfig", "multiples of 32", [(G, 186)]),
    (THREE, "0.23.0", "0.24.0", BEHAVIOUR, "0.24.0", "", "hybrid-kv-cache", f"{UTILS}:unify_hybrid_kv_cache_specs", "sliding-window layers come to differ", [(G, 130)]),
    (FOUR, "0.23.0", "0.24.0", BEHAVIOUR, "0.24.0", "", "hybrid-kv-cache", f"{UTILS}:unify_hybrid_kv_cache_specs", "sliding-window layers come to differ", [(G, 137)]),
    # what is not vLLM's doing
    (THREE, "0.23.0", "0.24.0", "environment", "0.24.0", "", "transformers-torch", "transformers.configuration_utils:torch", "transformers 5", [(C, 160)]),
    (FOUR, "0.23.0", "0.24.0", "environment", "0.24.0", "", "transformers-torch", "transformers.configuration_utils:torch", "transformers 5", [(C, 160)]),
    # inside the range that speculators 0.4 is released for, so a fault of its own
    (FOUR, "0.13.0", "0.14.0", "fault", "0.14.0", "#34292", "scheduler-config", "vllm.config:SchedulerConfig", "async_scheduling", [(G, 215)]),
    (FOUR, "0.14.1", "0.15.0", "fault", "0.15.0", "#33131", "worker-capture", "vllm.model_executor.models.kimi_k25:KimiK25ForConditionalGeneration", "bare DeepseekV2Model", [(W, 122)]),
    (FOUR, "0.14.1", "0.15.0", "fault", "0.15.0", "", "worker-capture", f"{LLAMA}:LlamaModel.forward", "keywords for its layers", [(W, 53)]),
    (FOUR, "0.11.2", "0.12.0", "fault", "", "", "worker-capture", f"{DEEPSEEK}:DeepseekV2DecoderLayer.forward", "llama_4_scaling", [(W, 53)]),
]
# The same changes from the other side: speculators 0.4 on a vLLM older than it was written for.
# Here the releases are the last with the break, and the first without.
BEFORE = [
    (FOUR, "0.11.1", "0.11.0", ADDED, "0.11.1", "#25075, #28733", "scheduler-config", "vllm.config:SchedulerConfig", "unexpected keyword is_encoder_decoder", [(G, 215)]),
    (FOUR, "0.12.0", "0.11.2", REMOVED, "0.12.0", "#29143", "kv-cache-config", f"{UTILS}:get_kv_cache_config_from_groups", "missing required kv_cache_specs", [(G, 143)]),
    (FOUR, "0.11.1", "0.11.0", ADDED, "0.11.1", "#26296", "scheduler", SCHEDULER, "unexpected keyword block_size", [(G, 154)]),
    (FOUR, "0.11.1", "0.11.0", "moved", "0.11.1", "#27151", "hash-function", "vllm.utils.hashing:get_hash_fn_by_name", "it is in vllm.utils", [(G, 15)]),
    (FOUR, "0.11.1", "0.11.0", RETURN, "0.11.1", "#26866", "engine-steps", f"{EXECUTOR}.execute_model", "not yet: execute_model returns None", [(G, 314)]),
    (FOUR, "0.11.1", "0.11.0", "gone", "0.11.1", "#26866", "engine-steps", f"{EXECUTOR}.sample_tokens", "has no MultiprocExecutor.sample_tokens", [(G, 315)]),
    (FOUR, "0.11.1", "0.11.0", RETURN, "0.11.1", "#27142", "rpc-reply", f"{EXECUTOR}.collective_rpc", "not yet: replies the bare value", [(G, 323)]),
    (FOUR, "0.11.1", "0.11.0", "moved", "0.11.1", "#27583", "worker-capture", f"{LLAMA}:LlamaModel.embed_input_ids", "it is called LlamaModel.get_input_embeddings", [(W, 38)]),
]
# Faults of speculators itself, on every vLLM: which of 0.3 and 0.4, adapter, line, what.
FAULTS = [
    (THREE, "prefix-caching", (G, 166), "leaves prefix caching on"),
    (THREE, "engine-steps", (G, 264), "aborts requests in the middle of their prompt"),
    (FOUR, "generate", (G, 335), "results in the order of request ids as text"),
    (FOUR, "engine-steps", (G, 318), "of more prompts than max_num_seqs (32), the rest is not found"),
    (THREE, "engine-steps", (G, 253), "the states of a request that was preempted come back short"),
    (FOUR, "engine-steps", (G, 288), "the states of a request that was preempted come back short"),
    (THREE, "worker-capture", (W, 52), "in the order of the layers, not of layer_ids"),
    (FOUR, "worker-capture", (W, 60), "in the order of the layers, not of layer_ids"),
    (THREE, "worker-capture", (W, 45), "reads each residual as Llama's"),
    (FOUR, "worker-capture", (W, 53), "reads each residual as Llama's"),
    (THREE, "worker-capture", (W, 102), "takes only models that vLLM lists for EAGLE-3"),
    (FOUR, "worker-capture", (W, 128), "no GPT-NeoX, no OPT"),
    (THREE, "generate", (G, 244), "a failed call leaves its requests in the scheduler"),
    (FOUR, "generate", (G, 275), "a failed call leaves its requests in the scheduler"),
    (THREE, "tokenizer", (G, 84), "never passes trust_remote_code"),
    (FOUR, "tokenizer", (G, 90), "never passes trust_remote_code"),
    (THREE, "device-memory", (G, 133), "asks CUDA for free memory"),
    (FOUR, "device-memory", (G, 140), "free memory is taken for 0 bytes"),
]
# Changes of a signature that no call of speculators feels: it passes keywords, leaves out what has
# a default, or does not read the reply. Symbol, the parameter that came, first release with it.
HARMLESS = [
    (SCHEDULER, "hash_block_size", "0.20.0"),
    (f"{SCHEDULER}.schedule", "throttle_prefills", "0.24.0"),
    ("vllm.v1.request:Request", "prompt_is_token_ids", "0.21.0"),
    ("vllm.v1.request:Request", "session_id", "0.28.0"),
    ("vllm.v1.request:Request", "kv_hints", "0.31.0"),
    (f"{UTILS}:get_request_block_hasher", "hash_block_size", "0.24.0"),
    (f"{UTILS}:get_request_block_hasher", "num_hash_lookahead_tokens", "0.33.0"),
    (f"{EXECUTOR}.collective_rpc", "kv_output_aggregator", "0.11.1"),
    (f"{EXECUTOR}.collective_rpc", "ec_output_aggregator", "0.28.0"),
]
# fmt: on


def found(speculators: str, vllm: str, symbol: str, what: str) -> list[Incompatibility]:
    everything = check(named_pair(vllm, speculators))
    return [one for one in everything if one.symbol == symbol and what in one.what]


@pytest.mark.parametrize("row", DRIFT + BEFORE, ids=lambda row: f"{row[0]}-{row[2]}-{row[8][:30]}")
def test_a_break_is_found_where_it_begins(row) -> None:
    speculators, without, first, kind, release, pr, adapter, symbol, what, places = row
    assert abs(RELEASES.index(first) - RELEASES.index(without)) == 1
    here = found(speculators, first, symbol, what)
    assert [(one.module, one.line) for one in here] == places
    assert {(one.kind, one.release, one.pr, one.covered_by, one.next_step) for one in here} == {
        (kind, release, pr, adapter, "")
    }
    before = found(speculators, without, symbol, what)
    assert [one for one in before if one.kind == kind] == []


@pytest.mark.parametrize(
    ("speculators", "what", "first", "last"),
    [
        (FOUR, "bare DeepseekV2Model", "0.15.0", "0.15.1"),
        (THREE, "sliding-window layers come to differ", "0.24.0", "0.26.0"),
        (FOUR, "sliding-window layers come to differ", "0.24.0", "0.26.0"),
    ],
)
def test_what_was_taken_back_is_found_no_longer(speculators, what, first, last) -> None:
    bitten = [
        vllm
        for vllm in RELEASES
        if any(what in one.what for one in check(named_pair(vllm, speculators)))
    ]
    assert tuple(bitten) == RELEASES[RELEASES.index(first) : RELEASES.index(last) + 1]


@pytest.mark.parametrize(("speculators", "adapter", "place", "what"), FAULTS)
def test_a_fault_is_found_on_every_release(speculators, adapter, place, what) -> None:
    kind = "environment" if adapter == "device-memory" else "fault"
    for vllm in RELEASES:
        (one,) = [one for one in check(named_pair(vllm, speculators)) if what in one.what]
        assert (one.module, one.line, one.covered_by) == (*place, adapter)
        assert (one.kind, one.release, one.pr, one.is_drift) == (kind, "", "", False)


@pytest.mark.parametrize(("speculators", "vllm"), OFFICIAL)
def test_what_speculators_was_released_for_raises_no_false_alarm(speculators, vllm) -> None:
    everything = check(named_pair(vllm, speculators))
    assert [one for one in everything if one.is_drift] == []
    # Not by calling drift a fault: whatever a signature shows is drift, wherever it is.
    by_declaration = {change.what for adapter in REGISTRY for change in adapter.broke}
    assert {one.what for one in everything} <= by_declaration


def test_the_official_pairs_are_those() -> None:
    assert OFFICIAL[0] == (THREE, "0.11.0")
    assert [v for s, v in OFFICIAL if s == FOUR] == [
        "0.12.0", "0.13.0", "0.14.0", "0.14.1", "0.15.0", "0.15.1", "0.16.0",
    ]  # fmt: skip


@pytest.mark.parametrize("row", HARMLESS, ids=lambda row: f"{row[1]}-{row[2]}")
def test_what_no_call_feels_is_no_finding(row) -> None:
    symbol, parameter, first = row
    before, there = (load_vllm(v).probe(symbol).signature for v in RELEASES if v_is(v, first))
    assert not before.accepts(parameter)
    assert there.accepts(parameter)
    for speculators in SPECULATORS:
        everything = check(named_pair(first, speculators))
        assert [one for one in everything if parameter in one.what] == []


def v_is(release: str, first: str) -> bool:
    return RELEASES.index(first) - RELEASES.index(release) in (0, 1)


def test_nothing_is_found_twice_and_all_is_covered() -> None:
    for speculators in SPECULATORS:
        for vllm in RELEASES:
            everything = check(named_pair(vllm, speculators))
            assert len({(*one,) for one in everything}) == len(everything)
            assert [one for one in everything if not one.covered_by] == []
            order = [(one.module, one.line) for one in everything]
            assert order == sorted(order)
            assert all(line > 0 for _, line in order)


def test_what_is_declared_with_a_kind_bites_somewhere() -> None:
    declared = {
        (adapter.name, change.what)
        for adapter in REGISTRY
        for change in adapter.broke
        if change.kind
    }
    seen = {
        (one.covered_by, one.what.removeprefix("not yet: "))
        for speculators in SPECULATORS
        for vllm in RELEASES
        for one in check(named_pair(vllm, speculators))
    }
    assert declared - seen == set()


def test_the_server_line_of_speculators_has_nothing_to_check() -> None:
    assert check(named_pair("0.33.0", "0.9.0")) == ()


# -- a vLLM that no adapter knows -----------------------------------------------------------------


def changed(vllm: str, speculators: str, release: str, **findings) -> Context:
    """A record with other findings, by the symbols that speculators imports or calls."""
    contract = load_vllm(vllm).contract
    new = dict(contract.findings)
    for name, change in findings.items():
        imports = {i.symbol for i in load_speculators(speculators).imports}
        (symbol,) = [s for s in new if s.endswith(f":{name}") and (s in imports or "." in name)]
        new[symbol] = change(new[symbol])
    tree = RecordedTree(contract._replace(release=release, findings=new))
    return recorded_context(tree, load_speculators(speculators))


def with_parameter(name: str):
    """Adds a parameter that must be passed."""

    def change(finding):
        first = finding.signature.parameters[0]
        new = first._replace(name=name, required=True, kind="keyword_only", default=None)
        signature = finding.signature._replace(parameters=(*finding.signature.parameters, new))
        return finding._replace(signature=signature)

    return change


def renamed(old: str, new: str):
    def change(finding):
        parameters = tuple(
            p._replace(name=new) if p.name == old else p for p in finding.signature.parameters
        )
        return finding._replace(signature=finding.signature._replace(parameters=parameters))

    return change


def absent(finding):
    return finding._replace(status="absent", kind=None, signature=None, location=None)


FUTURE = [
    ("SamplingParams", with_parameter("seed_source"), ADDED, "missing required seed_source", 267),
    ("SamplingParams", renamed("max_tokens", "limit"), "parameter renamed",
     "unexpected keyword max_tokens, which is called limit now", 267),
    ("StructuredOutputManager", absent, "gone", "vllm.v1.structured_output has no", 26),
    ("Request", with_parameter("tenant"), ADDED, "missing required tenant", 264),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "kind", "what", "line"), FUTURE)
def test_a_change_nobody_knows_is_not_covered(name, change, kind, what, line) -> None:
    context = changed("0.33.0", FOUR, "0.34.0", **{name: change})
    missing = [one for one in check(context) if not one.covered_by]
    mine = [one for one in missing if what in one.what]
    assert [(one.kind, one.line, one.release, one.pr) for one in mine] == [(kind, line, "", "")]
    assert all(one.next_step.startswith("install a vLLM release listed") for one in missing)
    # It is not covered by apply() either, and that refuses nothing else.
    assert {one.symbol for one in missing} == {site.symbol for site in judge(context)[0].uncovered}


def test_what_only_an_adapter_needs_is_reported_too() -> None:
    context = changed("0.33.0", FOUR, "0.34.0", **{"Scheduler.update_from_output": absent})
    missing = [one for one in check(context) if not one.covered_by]
    assert {(one.symbol.partition(":")[2], one.kind) for one in missing} >= {
        ("MultiprocExecutor.execute_model", "behaviour changed")
    }
    assert {site.name for site in judge(context)[0].uncovered} == {"engine-steps"}


@pytest.mark.parametrize(
    ("name", "change", "kind", "what"),
    [
        ("SchedulerConfig", renamed("async_scheduling", "overlap"), BEHAVIOUR,
         "has no async_scheduling"),
        ("MultiprocExecutor.collective_rpc", renamed("kv_output_aggregator", "kv"), BEHAVIOUR,
         "has no kv_output_aggregator"),
        ("Executor.set_kv_cache_layout", absent, "gone", "set_kv_cache_layout is absent"),
    ],
)  # fmt: skip
def test_a_marker_that_is_gone_is_told_as_that(name, change, kind, what) -> None:
    context = changed("0.33.0", FOUR, "0.34.0", **{name: change})
    missing = [one for one in check(context) if not one.covered_by]
    mine = [one for one in missing if what in one.what]
    assert [(one.kind, one.symbol.partition(":")[2]) for one in mine] == [(kind, name)]
    assert [one.what for one in missing if one.what.startswith("not yet")] == []


def test_a_version_that_is_between_releases_is_compared_by_what_it_shows() -> None:
    # A nightly after 0.16.0 that already has the change of 0.17.0.
    context = changed("0.17.0", FOUR, "0.16.1.dev7+gabc")
    (one,) = [one for one in check(context) if "eos_token_id" in one.what]
    assert (one.kind, one.release, one.covered_by) == (REMOVED, "", "request")


def test_lines_are_those_of_the_source(tmp_path) -> None:
    source = "import a\n\n\nclass T:\n    def f(self):\n        self.model_runner.input_batch\n"
    (tmp_path / "speculators" / "data_generation").mkdir(parents=True)
    (tmp_path / "speculators" / "__init__.py").write_text("")
    (tmp_path / "speculators" / "data_generation" / "custom_worker.py").write_text(source)
    (tmp_path / "speculators" / "config.py").write_text("class A(B, PretrainedConfig):\n    pass\n")
    consumer = Consumer(find_speculators([str(tmp_path)]))
    assert consumer.mentions == {
        "self.model_runner.input_batch": [(WORKER, 6)],
        "PretrainedConfig": [(CONFIG, 1)],
    }
    assert consumer.file(WORKER) == str(
        tmp_path / "speculators" / "data_generation" / "custom_worker.py"
    )
    assert load_speculators(FOUR).file(WORKER) == ""
