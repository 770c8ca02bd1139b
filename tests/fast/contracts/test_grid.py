"""Every speculators that runs in process, on every vLLM release, call site by call site.

Out of the records alone. Whether a call binds is asked of Python's own ``inspect.Signature``, not
of the code that the judge decides with.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from types import SimpleNamespace

import pytest

from vllm_compat.adapters.arguments import Rewrite
from vllm_compat.context import Call, Settings
from vllm_compat.contracts import load_speculators, load_vllm, recorded_context, releases
from vllm_compat.judge import judge
from vllm_compat.patching import Add, AddModule, Wrap
from vllm_compat.probe import Signature

RELEASES = releases()
SPECULATORS = ("0.3.0", "0.4.0", "0.4.0.1")
FOUR = ("0.4.0", "0.4.0.1")
GRID = [(speculators, vllm) for speculators in SPECULATORS for vllm in RELEASES]

CONFIG = "vllm.config:SchedulerConfig"
SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
PLAN = "vllm.v1.core.kv_cache_utils:get_kv_cache_config_from_groups"
SPECS = "vllm.v1.core.kv_cache_utils:unify_hybrid_kv_cache_specs"
GROUPS = "vllm.v1.core.kv_cache_utils:_get_kv_cache_groups_uniform_spec"
REQUEST = "vllm.v1.request:Request"
HASH = "vllm.utils.hashing:get_hash_fn_by_name"

# Without an adapter, what does not import or does not bind: from which release to which, and why.
RAW_BREAKS = [
    ("0.3.0", CONFIG, "0.12.0", "0.33.0", "missing a required argument: 'is_encoder_decoder'"),
    ("0.3.0", SCHEDULER, "0.11.1", "0.33.0", "missing a required argument: 'block_size'"),
    ("0.3.0", PLAN, "0.12.0", "0.32.0", "got an unexpected keyword argument 'kv_cache_specs'"),
    ("0.3.0", REQUEST, "0.17.0", "0.33.0", "got an unexpected keyword argument 'eos_token_id'"),
    *(
        (s, name, "0.33.0", "0.33.0", "absent")
        for s in SPECULATORS
        for name in (PLAN, SPECS, GROUPS)
    ),
    *(
        (s, *row)
        for s in FOUR
        for row in [
            (HASH, "0.11.0", "0.11.0", "absent"),
            (CONFIG, "0.11.0", "0.11.0", "got an unexpected keyword argument 'is_encoder_decoder'"),
            (SCHEDULER, "0.11.0", "0.11.0", "got an unexpected keyword argument 'block_size'"),
            (PLAN, "0.11.0", "0.11.2", "missing a required argument: 'kv_cache_specs'"),
            (REQUEST, "0.17.0", "0.33.0", "got an unexpected keyword argument 'eos_token_id'"),
        ]
    ),
]
# What speculators was released for: there nothing is broken.
OFFICIAL = [
    ("0.3.0", "0.11.0"),
    *(
        (s, v)
        for s in FOUR
        for v in RELEASES[RELEASES.index("0.12.0") : RELEASES.index("0.16.0") + 1]
    ),
]
# The adapters that are on everywhere: for what speculators does, not for a signature of vLLM's.
ALWAYS = {
    "tokenizer",
    "scheduler-config",
    "worker-processes",
    "device-memory",
    "engine-steps",
    "worker-capture",
    "transport",
    "generate",
}


def pair(speculators: str, vllm: str):
    return recorded_context(load_vllm(vllm), load_speculators(speculators), Settings())


def python_signature(signature: Signature) -> inspect.Signature:
    parameter = inspect.Parameter
    return inspect.Signature(
        [
            parameter(
                p.name,
                getattr(parameter, p.kind.upper()),
                default=parameter.empty if p.required or p.kind.startswith("var_") else None,
            )
            for p in signature.parameters
        ]
    )


def why_not(signature: Signature, call: Call, keywords=None) -> str:
    """Why the call does not bind, in Python's words; empty when it does."""
    names = call.keywords if keywords is None else keywords
    try:
        python_signature(signature).bind(*[None] * call.positional, **dict.fromkeys(names))
    except TypeError as error:
        return str(error)
    return ""


def imported_calls(context):
    """Each vLLM name that speculators imports: its symbol, and its calls."""
    for imported in context.consumer.imports:
        yield imported.symbol, context.consumer.calls(imported.symbol.partition(":")[2])


def raw_breaks(context) -> dict[str, str]:
    broken = {}
    for symbol, calls in imported_calls(context):
        finding = context.probe(symbol)
        if finding.status == "absent":
            broken[symbol] = "absent"
        elif finding.signature is not None:
            reasons = {reason for call in calls if (reason := why_not(finding.signature, call))}
            if reasons:
                (broken[symbol],) = reasons
    return broken


def test_the_grid_is_what_it_says() -> None:
    assert len(RELEASES) == 35
    assert (RELEASES[0], RELEASES[-1]) == ("0.11.0", "0.33.0")
    assert len(GRID) == 105
    for speculators in SPECULATORS:
        symbols = {symbol for symbol, calls in imported_calls(pair(speculators, "0.16.0")) if calls}
        assert {CONFIG, SCHEDULER, PLAN, SPECS, GROUPS, REQUEST} <= symbols


def test_without_adapters_exactly_these_calls_break() -> None:
    expected = defaultdict(dict)
    for speculators, symbol, first, last, reason in RAW_BREAKS:
        for vllm in RELEASES[RELEASES.index(first) : RELEASES.index(last) + 1]:
            expected[speculators, vllm][symbol] = reason
    assert {cell: broken for cell in GRID if (broken := raw_breaks(pair(*cell)))} == expected


@pytest.mark.parametrize(("speculators", "vllm"), GRID)
def test_with_adapters_every_call_binds(speculators: str, vllm: str) -> None:
    context = pair(speculators, vllm)
    report, adapters = judge(context)
    assert report.uncovered == ()
    patches = [patch for adapter in adapters for patch in adapter.patches(context)]
    provided = {f"{p.module}:{p.path}" for p in patches if isinstance(p, Add)}
    modules = {f"{p.module}.{p.path}" for p in patches if isinstance(p, AddModule)}
    rewrites = defaultdict(list)
    for patch in patches:
        if isinstance(patch, Wrap) and isinstance(patch.wrapper, Rewrite):
            rewrites[patch.path].append(patch.wrapper)

    called = 0
    for symbol, calls in imported_calls(context):
        module, _, name = symbol.partition(":")
        moved = f"vllm.v1.core.kv_cache_planning:{name}"
        finding = context.probe(symbol, moved) if symbol in provided else context.probe(symbol)
        if module in modules:
            finding = context.probe(symbol, f"vllm.utils:{name}")
        assert finding.status != "absent", symbol
        for call in calls:
            called += 1
            if finding.signature is None:
                continue
            keywords = frozenset(call.keywords)
            for rewrite in rewrites[name]:
                keywords = rewrite.keywords(
                    Call(call.module, call.line, call.positional, tuple(keywords))
                )
            assert not why_not(finding.signature, call, keywords), symbol
    assert called >= 14


@pytest.mark.parametrize(("speculators", "vllm"), GRID)
def test_a_rewrite_passes_the_keywords_it_says(speculators: str, vllm: str) -> None:
    context = pair(speculators, vllm)
    _, adapters = judge(context)
    seen = []
    for adapter in adapters:
        for patch in adapter.patches(context):
            rewrite = getattr(patch, "wrapper", None)
            # The scheduler's asks vLLM itself for the block size.
            if not isinstance(rewrite, Rewrite) or rewrite.force:
                continue
            for call in context.consumer.calls(patch.path):
                kwargs = dict.fromkeys(call.keywords)
                if "kv_cache_groups" in kwargs:
                    kwargs["kv_cache_groups"] = [
                        SimpleNamespace(layer_names=["a"], kv_cache_spec=1)
                    ]
                passed = rewrite(lambda *args, **kw: (args, kw), None, (), kwargs)
                assert passed[0] == ()
                assert frozenset(passed[1]) == rewrite.keywords(call)
                if "kv_cache_specs" in rewrite.supply and "kv_cache_specs" not in call.keywords:
                    assert passed[1]["kv_cache_specs"] == {"a": 1}
                seen.append(adapter.name)
    assert "scheduler-config" in seen


@pytest.mark.parametrize(("speculators", "vllm"), OFFICIAL)
def test_what_speculators_was_released_for_shows_no_drift(speculators: str, vllm: str) -> None:
    context = pair(speculators, vllm)
    assert raw_breaks(context) == {}
    report, _ = judge(context)
    adapted = {site.name for site in report.adapted}
    # 0.3.0 leaves prefix caching on, 0.4 names a block size of its own to the scheduler.
    own = {"prefix-caching"} if speculators == "0.3.0" else {"scheduler"}
    assert adapted == ALWAYS | own
    assert report.uncovered == ()


def test_the_adapters_own_imports_are_there_wherever_they_are_used() -> None:
    for vllm in RELEASES:
        tree = load_vllm(vllm)
        assert tree.probe("vllm.distributed:get_tp_group").status == "found"
        assert tree.probe("vllm.distributed:tensor_model_parallel_all_gather").status == "found"
        assert tree.probe("vllm.platforms:current_platform").status == "found"
        assert tree.probe("vllm.v1.core:single_type_kv_cache_manager").kind == "module"
        assert tree.probe("vllm.v1.request:RequestStatus").kind == "class"
        resolve = tree.probe("vllm.v1.attention.backends.utils:resolve_kv_cache_layout")
        assert (resolve.status == "found") is (RELEASES.index(vllm) >= RELEASES.index("0.29.0"))


@pytest.mark.parametrize("speculators", ["0.5.0", "0.6.0", "0.7.0", "0.8.0", "0.9.0"])
def test_later_speculators_take_nothing_from_vllm(speculators: str) -> None:
    consumer = load_speculators(speculators)
    assert (consumer.in_process, consumer.imports, consumer.uses) == (False, (), ())
    report, adapters = judge(recorded_context(load_vllm("0.33.0"), consumer))
    assert (report.call_sites, adapters) == ((), ())
