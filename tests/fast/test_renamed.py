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
    """With a default, so that nothing is missing where the old name is no longer passed."""
    new = {"name": "other", "required": False}
    return with_parameters(
        symbol, lambda all_of: [p._replace(**new) if p.name == name else p for p in all_of]
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


# -- what may change unseen, and why ---------------------------------------------------------------

LLAMA, DEEPSEEK = "vllm.model_executor.models.llama", "vllm.model_executor.models.deepseek_v2"
ENGINE, SCHEDULER = "vllm.v1.executor.multiproc_executor", "vllm.v1.core.sched.scheduler:Scheduler"
OUTPUT, CACHE = "vllm.v1.core.sched.output", "vllm.v1.kv_cache_interface"
PLANNING, V2 = "vllm.v1.core.kv_cache_planning", "vllm.v1.worker.gpu"
BLOCKS = "vllm.platforms.interface:Platform.update_block_size_for_backend"

REPLACED = "speculators' own forward calls it, in whose place the model's runs"
COMMAND = "the extraction command's, which runs without speculators"
UNCALLED = {
    f"{LLAMA}:LlamaDecoderLayer.forward": REPLACED,
    f"{LLAMA}:LlamaModel.forward": REPLACED,
    f"{LLAMA}:LlamaModel.embed_input_ids": REPLACED,
    f"{DEEPSEEK}:DeepseekV2DecoderLayer.forward": REPLACED,
    "vllm:LLM": COMMAND,
    "vllm:SamplingParams": COMMAND,
    # It puts the adapters on in each worker; which are on there each is asked at set-up.
    "vllm.plugins:load_general_plugins": "asked for at run time",
}
# What vLLM makes and calls itself, so that what it requires is its own affair.
MADE_BY_VLLM = {
    f"{OUTPUT}:SchedulerOutput",
    f"{OUTPUT}:NewRequestData",
    f"{OUTPUT}:CachedRequestData",
    f"{CACHE}:KVCacheConfig",
    f"{CACHE}:KVCacheGroupSpec",
    f"{CACHE}:FullAttentionSpec",
    f"{V2}.input_batch:InputBatch",
    f"{V2}.model_runner:GPUModelRunner.prepare_inputs",
    BLOCKS,
}
BY_PLACE = {
    ("vllm.distributed:tensor_model_parallel_all_gather", "dim"),
    ("vllm.model_executor.models.interfaces:supports_eagle3", "model"),
    ("vllm.v1.attention.backends.utils:resolve_kv_cache_layout", "vllm_config"),
    ("vllm.v1.attention.backends.utils:resolve_kv_cache_layout", "kv_cache_specs"),
    ("vllm.v1.core.single_type_kv_cache_manager:register_all_kvcache_specs", "vllm_config"),
    ("vllm.v1.worker.worker_base:WorkerBase.execute_model", "scheduler_output"),
    (f"{PLANNING}:_get_kv_cache_groups_uniform_spec", "kv_cache_specs"),
    (f"{PLANNING}:unify_hybrid_kv_cache_specs", "kv_cache_spec"),
    (f"{SCHEDULER}.add_request", "request"),
    (f"{SCHEDULER}.update_from_output", "scheduler_output"),
    (f"{ENGINE}:MultiprocExecutor.collective_rpc", "method"),
    (f"{ENGINE}:MultiprocExecutor.execute_model", "scheduler_output"),
    # vLLM's own calls, which are passed on as they come.
    (BLOCKS, "vllm_config"),
    (f"{V2}.model_runner:GPUModelRunner.prepare_inputs", "scheduler_output"),
}
# Names that stand for something else where this package has them.
HOMONYMS = {
    ("vllm.config:CacheConfig", "sliding_window"),
    ("vllm.config:DeviceConfig", "device"),
    ("vllm.config:LoadConfig", "device"),
    (f"{CACHE}:FullAttentionSpec", "dtype"),
}
# What an adapter reads of vLLMs that are all older than the newest.
OF_OLDER_ONES = {
    # Where specs are rewritten, 0.24 to 0.26; else vLLM itself refuses those that differ.
    (f"{CACHE}:FullAttentionSpec", "sliding_window"),
    # For `kv_cache_specs`, which 0.11 wants.
    (f"{CACHE}:KVCacheGroupSpec", "layer_names"),
}


@cache
def imports(speculators):
    """The symbols that it imports, under old names and new."""
    names = {i.symbol for i in load_speculators(speculators).imports}
    moved = {s for s in FOUND for n in names if s.startswith(PLANNING) and _name(s) == _name(n)}
    return names | moved


def _name(symbol):
    return symbol.rpartition(":")[2]


def is_foreign(symbol, speculators):
    """Whether only another speculators imports it."""
    mine, others = imports(speculators), set().union(*map(imports, SPECULATORS))
    return symbol in others - mine


@cache
def our_names():
    """Every name in the adapters and in what runs in the workers, however it is used there."""
    names = set()
    for folder in ("adapters", "capture"):
        for file in Path(vllm_compat.__file__).parent.joinpath(folder).glob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Attribute):
                    names.add(node.attr)
                elif isinstance(node, ast.keyword) and node.arg:
                    names.add(node.arg)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    names.add(node.value)
    return names


def is_named(symbol, name, speculators):
    """Whether this package or a call by speculators says the parameter's name."""
    spelled = {_name(symbol)} | {s for s, method in REACHED.items() if method.symbol == symbol}
    consumer = load_speculators(speculators)
    return name in our_names() or any(
        name in call.keywords for spelling in spelled for call in consumer.calls(spelling)
    )


# -- the sweep -------------------------------------------------------------------------------------


def test_the_sweep_is_over_everything() -> None:
    assert (len(FOUND), len(CALLABLE), len(PARAMETERS)) == (59, 53, 556)
    assert uncovered(dict(CONTRACT.findings), "0.3.0") == []
    relied = {premise.symbol for adapter in REGISTRY for premise in adapter.premises}
    assert relied <= set(FOUND)


@pytest.mark.parametrize("release", ["0.34.0", "", "0.1.dev1"])
@pytest.mark.parametrize("speculators", SPECULATORS)
def test_no_symbol_goes_unseen(speculators, release) -> None:
    unseen = {s for s in FOUND if not uncovered(renamed(s), speculators, release)}
    assert {s for s in unseen if not is_foreign(s, speculators)} == set(UNCALLED)


@pytest.mark.parametrize("speculators", SPECULATORS)
def test_no_new_requirement_goes_unseen(speculators) -> None:
    unseen = {s for s in CALLABLE if not uncovered(with_required(s), speculators)}
    not_called = set(UNCALLED) | MADE_BY_VLLM
    assert {s for s in unseen if not is_foreign(s, speculators)} == not_called


@pytest.mark.parametrize("release", ["0.34.0", "", "0.1.dev1"])
@pytest.mark.parametrize("speculators", SPECULATORS)
def test_no_parameter_goes_unseen(speculators, release) -> None:
    relied = [
        (symbol, name)
        for symbol, name in PARAMETERS
        if symbol not in UNCALLED
        and not is_foreign(symbol, speculators)
        and is_named(symbol, name, speculators)
    ]
    unseen = {r for r in relied if not uncovered(with_renamed(*r), speculators, release)}
    expected = BY_PLACE | HOMONYMS | OF_OLDER_ONES
    assert unseen == {r for r in expected if not is_foreign(r[0], speculators)}


def test_what_is_given_by_place_is_given_so() -> None:
    for symbol, name in BY_PLACE:
        places = [p.name for p in FOUND[symbol].signature.parameters if p.kind != "keyword_only"]
        spelled = {_name(symbol)} | {s for s, method in REACHED.items() if method.symbol == symbol}
        for speculators in SPECULATORS:
            consumer = load_speculators(speculators)
            for call in (call for spelling in spelled for call in consumer.calls(spelling)):
                assert places.index(name) < call.positional
        for premise in (p for adapter in REGISTRY for p in adapter.premises):
            if premise.symbol == symbol and premise.positional is not None:
                assert places.index(name) < premise.positional
