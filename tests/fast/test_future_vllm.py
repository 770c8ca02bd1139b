"""vLLMs that do not exist yet: the newest recorded one, changed in one place, and judged.

Only what hangs on that place may be judged in another way: adapted where an adapter still fits, and
uncovered, with what was found and what is needed, where none does. Never a traceback.
"""

from __future__ import annotations

import re
import shutil
from functools import cache

import pytest

from vllm_compat.context import Context, Settings
from vllm_compat.contracts import load_speculators, load_vllm, recorded_context
from vllm_compat.contracts.stub import generate
from vllm_compat.discovery import Installed
from vllm_compat.judge import judge
from vllm_compat.probe import SourceTree
from vllm_compat.versions import NEWEST_KNOWN

REQUEST, SCHEDULER = "v1/request", "v1/core/sched/scheduler"
EXECUTOR, UTILS = "v1/executor/multiproc_executor", "v1/core/kv_cache_utils"
PLANNING, HASHING = "v1/core/kv_cache_planning", "utils/hashing"
CONFIG = "config"
# Beside get_kv_cache_config_from_groups, for which an adapter answers anyway.
OLD = "vllm.v1.core.kv_cache_utils"
MOVED = ("_get_kv_cache_groups_uniform_spec", "unify_hybrid_kv_cache_specs")

# Does not parse on any Python: what this one does not know yet looks like this to it.
NEWER_SYNTAX = [
    "def later(x):\n    try:\n        f()\n    except! ValueError, TypeError:\n        pass\n",
    'later = t!"{name}"\n',
    "type! Later = int\n",
    "def later[T!](x: T): ...\n",
    "match! later:\n    case! 1: ...\n",
]


@pytest.fixture
def future(tmp_path):
    """A vLLM made from the newest record, whose files a test then changes."""
    return Future(generate(load_vllm(NEWEST_KNOWN).contract, tmp_path))


@cache
def judged_today(speculators):
    context = recorded_context(load_vllm(NEWEST_KNOWN), load_speculators(speculators))
    report, _ = judge(context)
    return {site.name: site.decision for site in report.call_sites}


class Future:
    def __init__(self, root) -> None:
        self.root = root

    def file(self, module):
        return self.root / module / "__init__.py"

    def change(self, module, old, new, count=1) -> None:
        """Replace ``old`` in a module's text, where it has to occur ``count`` times."""
        text = self.file(module).read_text()
        assert text.count(old) == count
        self.file(module).write_text(text.replace(old, new))

    def judged(self, speculators="0.4.0.1", version="99.0"):
        """What is judged in another way than on the vLLM it was made from, by name."""
        installed = Installed("vllm", "vllm", version, str(self.root), editable=False)
        tree = SourceTree(self.root, "vllm")
        context = Context(tree, installed, load_speculators(speculators), Settings())
        report, _ = judge(context)
        assert report.newer_than_known == (version == "99.0")
        before = judged_today(speculators)
        after = {site.name: site.decision for site in report.call_sites}
        # Of what no adapter puts back any more, the import is judged by itself.
        assert set(before) <= set(after)
        for decision in after.values():
            if decision.state == "uncovered":
                assert decision.found
                assert decision.needed
                assert decision.next_step
        return {name: after[name] for name in after if after[name] != before.get(name)}

    def states(self, speculators="0.4.0.1"):
        return {name: decision.state for name, decision in self.judged(speculators).items()}


@pytest.mark.parametrize("speculators", ["0.3.0", "0.4.0", "0.4.0.1"])
def test_an_unchanged_one_is_judged_as_the_newest(future, speculators) -> None:
    assert future.judged(speculators) == {}


# What adapters tell releases apart by, or work on: the module, the text that names it there, the
# adapter that misses it, what it is in, and the first release that has it.
LAYOUT, BLOCKS = "v1/executor/abstract", "platforms/interface"
MANAGER, INTERFACE = "v1/core/single_type_kv_cache_manager", "v1/kv_cache_interface"
OUTPUT, WORKER = "v1/core/sched/output", "v1/worker/worker_base"
V2_RUNNER, V2_BATCH = "v1/worker/gpu/model_runner", "v1/worker/gpu/input_batch"
RENAMED = [
    (CONFIG, "async_scheduling", "scheduler-config", "SchedulerConfig", "0.11.0"),
    (CONFIG, "enable_chunked_prefill", "scheduler-config", "SchedulerConfig", "0.11.0"),
    (LAYOUT, "def set_kv_cache_layout", "kv-cache-layout", "Executor", "0.29.0"),
    (WORKER, "def get_supported_kv_cache_layouts", "kv-cache-layout", "WorkerBase", "0.29.0"),
    (CONFIG, ", cp_kv_cache_interleave_size", "kv-cache-layout", "ParallelConfig", "0.33.0"),
    (MANAGER, "def register_all_kvcache_specs", "scheduler", "", "0.23.0"),
    (INTERFACE, "kv_cache_spec,", "scheduler", "KVCacheGroupSpec", "0.11.0"),
    (INTERFACE, "kv_cache_groups", "scheduler", "KVCacheConfig", "0.11.0"),
    (EXECUTOR, "kv_output_aggregator", "rpc-reply", "MultiprocExecutor.collective_rpc", "0.11.1"),
    (EXECUTOR, "def sample_tokens", "engine-steps", "MultiprocExecutor", "0.11.1"),
    (EXECUTOR, "def initialize_from_config", "engine-steps", "MultiprocExecutor", "0.11.0"),
    (EXECUTOR, "def shutdown", "engine-steps", "MultiprocExecutor", "0.11.0"),
    (SCHEDULER, "def add_request", "engine-steps", "Scheduler", "0.11.0"),
    (SCHEDULER, "def update_from_output", "engine-steps", "Scheduler", "0.11.0"),
    (BLOCKS, "def update_block_size_for_backend", "block-size", "Platform", "0.18.0"),
    (V2_RUNNER, "def prepare_inputs", "worker-capture", "GPUModelRunner", "0.12.0"),
    (V2_BATCH, "class InputBatch", "worker-capture", "", "0.12.0"),
    (V2_BATCH, "positions", "worker-capture", "InputBatch", "0.12.0"),
    (OUTPUT, "scheduled_cached_reqs", "worker-capture", "SchedulerOutput", "0.11.0"),
    (WORKER, "def execute_model", "worker-capture", "WorkerBase", "0.11.0"),
    ("distributed", "def tensor_model_parallel_all_gather", "worker-capture", "", "0.11.0"),
    ("platforms", "current_platform =", "device-memory", "", "0.11.0"),
    (REQUEST, "FINISHED_ABORTED =", "generate", "RequestStatus", "0.11.0"),
]


# Of the last two versions nobody can say how old their vLLM is: a fork's, a build without tags.
@pytest.mark.parametrize("version", ["99.0", None, "0.1.dev1+g0123456"])
@pytest.mark.parametrize("speculators", ["0.3.0", "0.4.0.1"])
@pytest.mark.parametrize("row", RENAMED, ids=lambda row: f"{row[2]}-{row[1].split()[-1]}")
def test_a_marker_that_is_renamed(future, row, speculators, version) -> None:
    module, text, adapter, owner, since = row
    before, name, after = re.match(r"(\W*(?:\w+ )?)(\w+)(.*)", text).groups(default="")
    future.change(module, text, f"{before}renamed{after}")
    judged = future.judged(speculators, version)
    assert [n for n, decision in judged.items() if decision.state != "uncovered"] == []
    decision = judged[adapter]
    symbol = f"vllm.{module.replace('/', '.')}:{owner}"
    is_defined = before.strip(", ") or after.strip(", ")
    if not is_defined:
        assert f"{symbol} has no {name}" in decision.found
        needed = rf"{symbol}\(.*\b{name}\b.*\), as in vLLM from {since} on"
    else:
        symbol = f"{symbol}.{name}".replace(":.", ":")
        assert f"{symbol} is absent" in decision.found
        needed = rf"{symbol}\b.* as in vLLM from {since} on"
    assert re.search(needed, decision.needed)


def test_prefix_caching_that_cannot_be_switched_off(future) -> None:
    future.change(CONFIG, "enable_prefix_caching", "reuse_prefixes")
    decision = future.judged("0.3.0")["prefix-caching"]
    assert (decision.state, decision.found, decision.needed) == (
        "uncovered",
        "vllm.config:CacheConfig has no enable_prefix_caching",
        "vllm.config:CacheConfig(enable_prefix_caching), as in vLLM from 0.11.0 on",
    )


@pytest.mark.parametrize("speculators", ["0.3.0", "0.4.0.1"])
def test_a_layout_that_leaves_out_the_interleave_size(future, speculators) -> None:
    future.change(LAYOUT, "cp_kv_cache_interleave_size", "interleave=1")
    assert future.states(speculators) == {"kv-cache-layout": "uncovered"}


@pytest.mark.parametrize(
    ("module", "old", "name"),
    [
        (HASHING, "hash_fn_name", "hash-function"),
        (PLANNING, "def unify_hybrid_kv_cache_specs(kv_cache_spec", "kv-cache-functions"),
        (MANAGER, "vllm_config", "scheduler"),
    ],
)
def test_a_new_required_argument_of_what_is_not_called_by_its_own_name(
    future, module, old, name
) -> None:
    future.change(module, old, f"{old}, tenant")
    judged = future.judged()
    assert {decision.state for decision in judged.values()} == {"uncovered"}
    assert "missing required tenant" in judged[name].found + judged[name].needed


def test_functions_whose_old_module_is_gone(future) -> None:
    shutil.rmtree(future.root / UTILS)
    judged = future.judged("0.3.0")
    assert {name: decision.state for name, decision in judged.items()} == {
        "kv-cache-functions": "uncovered",
        **{f"{OLD}:{name}": "uncovered" for name in MOVED},
    }
    assert judged["kv-cache-functions"].found.startswith(f"{OLD} is absent")


def test_an_older_vllm_without_the_marker_is_adapted_as_ever(future) -> None:
    future.change(LAYOUT, "def set_kv_cache_layout", "def renamed")
    assert future.judged(version="0.28.0")["kv-cache-layout"].state == "fits"
    assert future.judged(version="0.28.1.dev7+g0123456")["kv-cache-layout"].state == "fits"
    # A pre-release may have it already; that it has not is taken for a change.
    assert future.judged(version="0.29.0rc1")["kv-cache-layout"].state == "uncovered"


def test_a_renamed_parameter(future) -> None:
    future.change(REQUEST, "prompt_token_ids", "prompt_ids")
    assert list(judged := future.judged()) == ["request"]
    assert judged["request"].state == "uncovered"
    assert "Request(request_id, prompt_ids, " in judged["request"].found
    assert judged["request"].needed == (
        "unexpected keyword prompt_token_ids; missing required prompt_ids"
    )


def test_a_renamed_parameter_that_is_given_by_place_still_fits(future) -> None:
    future.change(UTILS, "hash_block_size", "size_of_hash_block")
    assert future.judged() == {}


def test_a_parameter_that_moves_to_another_place(future) -> None:
    future.change(
        REQUEST,
        "request_id, prompt_token_ids, sampling_params, pooling_params, ",
        "*, pooling_params, sampling_params, prompt_token_ids, request_id, ",
    )
    assert future.judged() == {}


@pytest.mark.parametrize("speculators", ["0.3.0", "0.4.0.1"])
def test_new_required_arguments(future, speculators) -> None:
    future.change(SCHEDULER, "kv_cache_config, structured", "kv_cache_config, tenant, structured")
    future.change(REQUEST, "pooling_params, ", "pooling_params, quota, ")
    future.change(EXECUTOR, "execute_model(self, ", "execute_model(self, deadline, ")
    future.change(CONFIG, "class LoadConfig(_stub.Class):", CLASS_WITH_REGION)
    judged = future.judged(speculators)
    assert {name: (d.state, d.needed) for name, d in judged.items()} == {
        "scheduler": ("uncovered", "missing required tenant"),
        "request": ("uncovered", "missing required quota"),
        "engine-steps": ("uncovered", judged["engine-steps"].needed),
        "vllm.config:LoadConfig": ("uncovered", "missing required region"),
    }
    assert judged["engine-steps"].found == (
        "vllm.v1.executor.multiproc_executor:MultiprocExecutor.execute_model:"
        " missing required scheduler_output"
    )


CLASS_WITH_REGION = """
class LoadConfig:
    def __init__(self, region, **more): ...
class Old(_stub.Class):
"""


def test_new_optional_arguments_change_nothing(future) -> None:
    future.change(SCHEDULER, "log_stats=...", "log_stats=..., tenant=None, *, quota=1, **more")
    future.change(REQUEST, "kv_hints=...", "kv_hints=..., quota=1")
    future.change(EXECUTOR, "execute_model(self, scheduler_output", "execute_model(self, x, y=1")
    assert set(future.states()) <= {"scheduler"}


def test_functions_that_move_once_more(future) -> None:
    shutil.move(future.root / PLANNING, future.root / "v1/core/kv_planner")
    judged = future.judged()
    decision = judged["kv-cache-functions"]
    assert decision.state == "uncovered"
    assert decision.found == (
        "no _get_kv_cache_groups_uniform_spec, get_kv_cache_config_from_groups,"
        " unify_hybrid_kv_cache_specs"
    )
    # No adapter puts the names back any more, so each import is judged by itself.
    assert {name: d.state for name, d in judged.items()} == {
        "kv-cache-functions": "uncovered",
        "kv-cache-config": "uncovered",
        **{f"{OLD}:{name}": "uncovered" for name in MOVED},
    }


def test_functions_that_move_back(future) -> None:
    text = future.file(PLANNING).read_text()
    with future.file(UTILS).open("a") as file:
        file.write(text)
    shutil.rmtree(future.root / PLANNING)
    assert future.states() == {
        "kv-cache-functions": "fits",
        **{f"{OLD}:{name}": "fits" for name in MOVED},
    }


def test_functions_that_move_on_and_are_left_behind_as_imports(future) -> None:
    shutil.move(future.root / PLANNING, future.root / "v1/core/kv_planner")
    names = "_get_kv_cache_groups_uniform_spec, unify_hybrid_kv_cache_specs"
    shim = f"from ..kv_planner import {names}\nfrom ..kv_planner import *\n"
    (future.root / PLANNING).mkdir()
    future.file(PLANNING).write_text(shim)
    assert future.judged() == {}


def test_a_function_that_moves_without_a_trace(future) -> None:
    shutil.move(future.root / HASHING, future.root / "utils/digests")
    judged = future.judged()
    assert list(judged) == ["hash-function"]
    assert judged["hash-function"].state == "uncovered"
    assert judged["hash-function"].found == "no module vllm.utils.hashing"
    assert judged["hash-function"].needed == "vllm.utils.hashing:get_hash_fn_by_name"


def test_a_function_that_becomes_a_class(future) -> None:
    name = "get_request_block_hasher"
    body = "\n    def __init__(self, hash_block_size, caching_hash_fn): ...\nclass Old:\n    def f"
    future.change(UTILS, f"def {name}(", f"class {name}:{body}(self, ")
    assert future.judged() == {}
    future.change(UTILS, "caching_hash_fn): ...", "caching_hash_fn, *, context): ...")
    judged = future.judged()
    assert {n: (d.state, d.needed) for n, d in judged.items()} == {
        f"vllm.v1.core.kv_cache_utils:{name}": ("uncovered", "missing required context")
    }


def test_a_class_that_becomes_a_function(future) -> None:
    text = future.file(REQUEST).read_text()
    parameters = re.search(r"def __init__\(self, (.*)\):", text)[1]
    future.change(REQUEST, "class Request(_stub.Class)", "class _Request(_stub.Class)")
    with future.file(REQUEST).open("a") as file:
        file.write(f"def Request({parameters}):\n    return _Request(...)\n")
    assert future.judged() == {}
    # One that takes anything could not be told from one that takes the call.
    future.change(REQUEST, f"def Request({parameters})", "def Request(spec)")
    assert future.states() == {"request": "uncovered"}


def test_a_class_that_becomes_a_value(future) -> None:
    future.change(REQUEST, "class Request(_stub.Class)", "class _Request(_stub.Class)")
    with future.file(REQUEST).open("a") as file:
        file.write("Request = functools.partial(_Request, tenant=1)\n")
    judged = future.judged()
    assert {name: decision.state for name, decision in judged.items()} == {"request": "uncovered"}


@pytest.mark.parametrize("decorator", ["property", "functools.cached_property"])
def test_a_method_that_becomes_a_property(future, decorator) -> None:
    future.change(SCHEDULER, "    def schedule(", f"    @{decorator}\n    def schedule(")
    judged = future.judged()
    assert {name: decision.state for name, decision in judged.items()} == {
        "engine-steps": "uncovered"
    }
    assert "Scheduler.schedule is " in judged["engine-steps"].found


def test_a_method_that_moves_into_a_base(future) -> None:
    future.change(SCHEDULER, "class Scheduler(_stub.Class):", "class Base(_stub.Class):")
    with future.file(SCHEDULER).open("a") as file:
        file.write("class Scheduler(Base):\n    pass\n")
    assert future.judged() == {}


def test_packages_that_become_modules(future) -> None:
    for module in (REQUEST, SCHEDULER, EXECUTOR, UTILS, PLANNING):
        future.file(module).rename((future.root / module).with_suffix(".py"))
        (future.root / module).rmdir()
    assert future.judged() == {}


def test_modules_that_become_packages_of_parts(future) -> None:
    for module in (REQUEST, SCHEDULER, UTILS, PLANNING):
        future.file(module).rename(future.root / module / "_parts.py")
        names = re.findall(
            r"^(?:class|def) (\w+)", (future.root / module / "_parts.py").read_text(), re.M
        )
        lines = [f"from ._parts import {name} as {name}" for name in names]
        future.file(module).write_text("\n".join(lines))
    assert future.judged() == {}


def test_symbols_behind_a_lazy_getattr(future) -> None:
    future.file(REQUEST).rename(future.root / REQUEST / "_request.py")
    future.file(REQUEST).write_text(
        '_LAZY = {"Request": "._request:Request", "RequestStatus": "._request:RequestStatus"}\n'
        "def __getattr__(name):\n    return find(_LAZY[name])\n"
    )
    assert future.judged() == {}
    # What is found by reckoning cannot be read.
    future.file(REQUEST).write_text(
        "def __getattr__(name):\n    return getattr(parts[hash(name)], name)\n"
    )
    judged = future.judged()
    assert {name: (d.state, d.found) for name, d in judged.items()} == {
        name: ("uncovered", f"vllm.v1.request has a __getattr__ which may know {symbol}")
        for name, symbol in (
            ("request", "Request"),
            ("vllm.v1.request:RequestStatus", "RequestStatus"),
        )
    } | {"generate": ("uncovered", judged["generate"].found)}
    assert judged["generate"].found == (
        "vllm.v1.request:RequestStatus.FINISHED_ABORTED is absent"
        " (vllm.v1.request has a __getattr__ which may know RequestStatus)"
    )


@pytest.mark.parametrize("syntax", NEWER_SYNTAX)
@pytest.mark.parametrize("behind", [True, False])
def test_syntax_newer_than_this_python_beside_the_symbol(future, syntax, behind) -> None:
    for module in (REQUEST, SCHEDULER, UTILS, PLANNING):
        text = future.file(module).read_text()
        future.file(module).write_text(text + syntax if behind else syntax + text)
    assert future.judged() == {}


def test_syntax_newer_than_this_python_in_the_symbol_itself(future) -> None:
    future.change(REQUEST, "def __init__(self, ", "def __init__[T!](self, ")
    future.change(UTILS, "def get_request_block_hasher(", "def get_request_block_hasher[T!](")
    future.change(PLANNING, "def unify_hybrid_kv_cache_specs(", "def unify_hybrid![T](")
    judged = future.judged()
    assert {name: decision.state for name, decision in judged.items()} == {
        "kv-cache-functions": "uncovered",
        **{f"{OLD}:{name}": "uncovered" for name in MOVED},
        "request": "uncovered",
        f"{OLD}:get_request_block_hasher": "uncovered",
    }
    assert judged["kv-cache-functions"].found == (
        "no get_request_block_hasher, unify_hybrid_kv_cache_specs"
    )
    last = judged[f"{OLD}:get_request_block_hasher"]
    assert "could not be read" in last.found


CONFLICT = "<<<<<<< HEAD\n{}\n=======\n{}\n>>>>>>> other\n"


def test_merge_conflict_markers(future) -> None:
    text = future.file(UTILS).read_text()
    future.file(UTILS).write_text(text + CONFLICT.format("x = 1", "x = 2"))
    assert future.judged() == {}
    # Around the header of what is wanted nobody can say which holds.
    line = next(line for line in text.splitlines() if line.startswith("def init_none_hash"))
    future.change(UTILS, line, CONFLICT.format(line, line.replace("hash_fn", "fn, x")).strip())
    judged = future.judged()
    assert judged["kv-cache-functions"].found == "no init_none_hash"
    assert judged[f"{OLD}:init_none_hash"].state == "uncovered"


@pytest.mark.parametrize("content", [b"\0", b"\xff\xfe", b"# coding: nonsense\n", b"def", b""])
def test_files_that_are_no_python(future, content) -> None:
    future.file(REQUEST).write_bytes(content)
    judged = future.judged()
    assert {name: decision.state for name, decision in judged.items()} == {
        "request": "uncovered",
        "vllm.v1.request:RequestStatus": "uncovered",
        "generate": "uncovered",
    }


def test_missing_modules(future) -> None:
    shutil.rmtree(future.root / SCHEDULER)
    judged = future.judged()
    assert {name: decision.state for name, decision in judged.items()} == {
        "scheduler": "uncovered",
        "engine-steps": "uncovered",
    }
    assert judged["scheduler"].found == "no module vllm.v1.core.sched.scheduler"


@pytest.mark.parametrize("speculators", ["0.3.0", "0.4.0.1"])
def test_an_empty_vllm(future, speculators) -> None:
    shutil.rmtree(future.root)
    future.root.mkdir()
    (future.root / "__init__.py").touch()
    judged = future.judged(speculators)
    imports = {i.symbol for i in load_speculators(speculators).imports}
    assert {name for name in judged if ":" in name} <= imports
    uncovered = {name for name, decision in judged.items() if decision.state == "uncovered"}
    assert {name for name in judged if ":" in name} <= uncovered
    assert {"kv-cache-functions", "scheduler", "request", "engine-steps"} <= uncovered


def test_a_vllm_that_is_there_in_name_only(tmp_path) -> None:
    installed = Installed("vllm", None, None, str(tmp_path / "vllm"), editable=False)
    tree = SourceTree(tmp_path / "vllm", "vllm")
    report, _ = judge(Context(tree, installed, load_speculators("0.4.0.1"), Settings()))
    assert report.vllm == "unknown"
    assert not report.newer_than_known
    assert len(report.uncovered) > 15
