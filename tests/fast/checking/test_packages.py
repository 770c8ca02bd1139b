"""Made-up packages judged against made-up vLLMs, from sources alone."""

from __future__ import annotations

import json
import sys
from textwrap import dedent

import pytest

from vllm_compat.checking import judge_package
from vllm_compat.contracts import load_vllm
from vllm_compat.errors import NotInstalledError
from vllm_compat.probe import SourceTree

VLLM = {
    "__init__": """
        import typing
        MODULE_ATTRS = {"LLM": ".entrypoints.llm:LLM"}
        if typing.TYPE_CHECKING:
            from vllm.entrypoints.llm import LLM
        else:
            def __getattr__(name):
                from importlib import import_module
                if name in MODULE_ATTRS:
                    return find(MODULE_ATTRS[name])
                else:
                    raise AttributeError(f"no {name}")
    """,
    "entrypoints___llm": """
        class LLM:
            def __init__(self, model, *, dtype="auto", seed=None): ...
            def generate(self, prompts, params=None): ...
            @classmethod
            def build(cls, model): ...
            @staticmethod
            def check(model): ...
    """,
    "utils___network_utils": """
        from functools import wraps
        def get_ip(): ...
        def get_port(start): ...
        def twisted(f): ...
        @twisted
        def decorated(a): ...
        @wraps(get_ip)
        def wrapped(a): ...
        partial = lambda a: a
        made = partial(1)
    """,
    "config": """
        from dataclasses import dataclass
        from torch import nn
        @dataclass
        class CacheConfig:
            block_size: int
            swap_space: int = 4
        class Layer(nn.Module):
            def forward(self, x): ...
    """,
    "v1___sched": """
        from abc import ABC, abstractmethod
        class Base(ABC):
            @abstractmethod
            def pick(self, queue): ...
        class Scheduler(Base):
            def __init__(self, config, block_size): ...
            def schedule(self, throttle=False): ...
            def finish(self, ids, *, status): ...
            def update(self, *args, **kwargs): ...
            @property
            def size(self): ...
    """,
    "foreign": "from torch import *",
    "open": "def __getattr__(name):\n    return find(name)",
    "envs": """
        environment_variables: dict[str, object] = {"VLLM_PORT": lambda: 1}
        def __getattr__(name: str):
            'Read lazily.'
            if name in environment_variables:
                return environment_variables[name]()
            raise AttributeError(name)
    """,
    "one___cdiv": "def cdiv(a, b): ...",
    "two___cdiv": "def cdiv(a, b): ...",
    "other___deep___place": "class Worker: ...\nasync def serve(): ...\nLIMIT: int = 3",
}


def write(root, files) -> None:
    for name, text in {"__init__": "", **files}.items():
        path = root / f"{name if name == '__init__' else name.replace('___', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else dedent(text).encode())


@pytest.fixture
def vllm(tmp_path):
    write(tmp_path / "vllm", VLLM)
    return SourceTree(tmp_path / "vllm", "vllm")


@pytest.fixture
def judge(tmp_path, vllm):
    """Judges a package ``mine`` of the files given, or of one."""

    def judged(text="", **files):
        write(tmp_path / "mine", {"a": text, **files} if text else files)
        return judge_package(str(tmp_path / "mine"), vllm)

    return judged


def shown(report):
    return [(i.line, i.symbol, i.kind) for i in report.incompatibilities]


def reasons(report):
    return [(n.line, n.symbol, n.reason) for n in report.not_judged]


def test_what_fits_is_no_finding(judge) -> None:
    report = judge(
        """
        import vllm
        from vllm import LLM
        from vllm.config import CacheConfig as Cache
        from vllm.utils import network_utils
        from vllm.v1.sched import Scheduler

        class Mine(Scheduler):
            def __init__(self, config):
                super().__init__(config, block_size=16)
            def schedule(self, throttle=False):
                return super().schedule(throttle)
            def finish(self, requests, *, status): ...
            def update(self, only): ...
            def extra(self, own): ...

        def run(*args, **more):
            LLM("m", dtype="half")
            LLM(*args, **more)
            LLM.generate(LLM("m"), ["a"], None)
            LLM.build("m"), LLM.check("m")
            Cache(16, swap_space=1)
            network_utils.get_port(start=1)
            vllm.entrypoints.llm.LLM(model="m")
        """
    )
    assert shown(report) == []
    assert reasons(report) == []
    # 5 imports, 9 calls, 1 base, 3 overrides of what the base has, 2 calls of super().
    assert report.looked_at == 20


def test_what_is_gone_has_moved_or_takes_other_arguments(judge, tmp_path) -> None:
    report = judge(
        """
        import vllm.worker
        from vllm.utils import get_ip
        from vllm.utils.network_utils import get_port, get_host
        from vllm.executor import Worker
        from vllm.math import cdiv
        from vllm import LLM
        LLM("m", swap_space=4)
        LLM()
        LLM("m", "half")
        LLM("m", model="n")
        LLM.stop()
        LLM.generate(1)
        get_ip(1)
        """
    )
    assert shown(report) == [
        (2, "vllm.worker", "gone"),
        (3, "vllm.utils:get_ip", "moved"),
        (4, "vllm.utils.network_utils:get_host", "gone"),
        (5, "vllm.executor:Worker", "moved"),
        (6, "vllm.math:cdiv", "gone"),
        (8, "vllm:LLM", "parameter removed"),
        (9, "vllm:LLM", "parameter became required"),
        (10, "vllm:LLM", "parameter removed"),
        (11, "vllm:LLM", "parameter added"),
        (12, "vllm:LLM.stop", "gone"),
        (13, "vllm:LLM.generate", "parameter became required"),
        (14, "vllm.utils.network_utils:get_ip", "parameter removed"),
    ]
    texts = {i.line: (i.what, i.next_step) for i in report.incompatibilities}
    assert texts[3] == (
        "vLLM has no vllm.utils.get_ip; there is vllm.utils.network_utils:get_ip",
        "take it from vllm.utils.network_utils where that is there",
    )
    assert texts[5][0] == "vLLM has no vllm.executor; there is vllm.other.deep.place:Worker"
    assert texts[6][0] == "vLLM has no vllm.math; a cdiv is in vllm.one.cdiv, vllm.two.cdiv"
    what, next_step = texts[8]
    assert what == (
        "LLM() is given the keyword swap_space, which it does not take;"
        " it takes (model, *, dtype=..., seed=...)"
    )
    assert next_step == "drop swap_space, or pass it only where it is taken"
    first = report.incompatibilities[0]
    assert (first.file, first.module) == (str(tmp_path / "mine" / "a.py"), "mine.a")
    assert first.is_drift


def test_subclasses_and_overrides(judge) -> None:
    report = judge(
        """
        from vllm.v1.sched import Scheduler, Base
        from vllm import gone

        class Mine(Scheduler):
            def __init__(self, config):
                super().__init__(config)
            def schedule(self): ...
            def finish(self, ids): ...
            def pick(self, queue, more): ...
            def update(self, a, b): ...
            def size(self, other): ...
            def go(self):
                super().stop()
                super().schedule(slow=True)

        class Generic(Base[int]):
            def pick(self, *queues): ...

        class Loose(Base):
            def pick(self): ...
            async def other(self): ...

        class Nothing(gone.Base):
            def pick(self): ...
        """
    )
    assert shown(report) == [
        (3, "vllm:gone", "gone"),
        (7, "vllm.v1.sched:Scheduler.__init__", "parameter became required"),
        (8, "vllm.v1.sched:Scheduler.schedule", "parameter added"),
        (9, "vllm.v1.sched:Scheduler.finish", "parameter added"),
        (10, "vllm.v1.sched:Scheduler.pick", "parameter removed"),
        (14, "vllm.v1.sched:Scheduler.stop", "gone"),
        (15, "vllm.v1.sched:Scheduler.schedule", "parameter removed"),
        (21, "vllm.v1.sched:Base.pick", "parameter added"),
    ]
    texts = {i.line: i.what for i in report.incompatibilities}
    assert texts[8] == (
        "schedule() overrides one that takes (throttle=...): it does not take throttle"
    )
    assert texts[10] == (
        "pick() overrides one that takes (queue): it requires more, which is not passed"
    )


def test_lazy_modules_are_believed_where_they_only_read_a_table(judge) -> None:
    report = judge(
        """
        from vllm import LLM, Gone
        from vllm.envs import VLLM_PORT, VLLM_USE_V1
        from vllm.open import anything
        """
    )
    assert shown(report) == [(2, "vllm:Gone", "gone"), (3, "vllm.envs:VLLM_USE_V1", "gone")]
    assert reasons(report) == [
        (3, "vllm.envs:VLLM_PORT", "vllm.envs has a __getattr__ which may know VLLM_PORT"),
        (4, "vllm.open:anything", "vllm.open has a __getattr__ which may know anything"),
    ]


def test_calls_of_what_moved_are_judged_where_it_is_now(judge) -> None:
    report = judge("from vllm.utils import get_ip\nget_ip(here=1)")
    assert shown(report) == [
        (1, "vllm.utils:get_ip", "moved"),
        (2, "vllm.utils.network_utils:get_ip", "parameter removed"),
    ]


def test_what_the_package_is_ready_for_is_no_finding(judge) -> None:
    report = judge(
        """
        import vllm
        from packaging import version
        try:
            from vllm.new import Thing
        except ImportError:
            from vllm.entrypoints.llm import LLM as Thing
        try:
            from vllm import LLM
        except ImportError:
            from vllm.old import LLM
        try:
            from vllm.newer import Other
            HAS_OTHER = True
        except (ImportError, RuntimeError):
            HAS_OTHER = False
        if HAS_OTHER:
            from vllm.newest import more
        else:
            from vllm import LLM as more
        NEW = version.parse(vllm.__version__) >= version.parse("0.20")
        if NEW:
            from vllm.v2 import engine
        def f():
            if not NEW:
                return
            from vllm.v2 import other
            LLM("m", late=True)
        def g():
            only_new() if NEW else None
        def only_new():
            LLM("m", newest=True)
        try:
            LLM("m", maybe=1)
        except TypeError:
            LLM("m")
        if hasattr(vllm, "v3"):
            import vllm.v3
        """
    )
    assert shown(report) == []
    assert [(line, reason.rpartition("; ")[2]) for line, _, reason in reasons(report)] == [
        (5, "inside a try that catches ImportError"),
        (11, "a fallback for line 9, which works"),
        (13, "inside a try that catches ImportError"),
        (18, "only where `HAS_OTHER`"),
        (23, "only where `NEW`"),
        (27, "only where not `not NEW`"),
        (28, "only where not `not NEW`"),
        (32, "only where `NEW`"),
        (34, "inside a try that catches TypeError"),
        (38, "only where `hasattr(vllm, 'v3')`"),
    ]


def test_being_ready_for_one_thing_excuses_no_other(judge) -> None:
    report = judge(
        """
        try:
            from vllm import LLM
            HAS_VLLM = True
        except ImportError:
            HAS_VLLM = False
        try:
            from vllm.v4 import a
        except ValueError:
            a = None
        try:
            from vllm.old import b
        except ImportError:
            from vllm.older import b
        if HAS_VLLM:
            LLM("m", gone=True)
        else:
            LLM("m", never=True)
        def f(on_gpu):
            if not HAS_VLLM:
                raise RuntimeError
            if on_gpu:
                LLM("m", gone=True)
        try:
            LLM("m", gone=True)
        except ImportError:
            pass
        """
    )
    assert shown(report) == [
        (8, "vllm.v4:a", "gone"),
        (14, "vllm.older:b", "gone"),
        (16, "vllm:LLM", "parameter removed"),
        (23, "vllm:LLM", "parameter removed"),
        (25, "vllm:LLM", "parameter removed"),
    ]
    assert [line for line, *_ in reasons(report)] == [12, 18]


def test_what_cannot_be_told_is_listed_with_the_reason(judge, tmp_path) -> None:
    report = judge(
        """
        from vllm import *
        from vllm.foreign import softmax
        from vllm.config import Layer
        from vllm.utils.network_utils import decorated, wrapped, made
        decorated(1, 2)
        wrapped(1, 2)
        made(1)
        Layer.cuda()
        """,
        broken="from vllm import LLM\ndef f(:",
        latin=b"vllm = '\xff'",
        nul=b"import vllm\0",
        fine="import other; other.x(",
    )
    assert shown(report) == [
        (7, "vllm.utils.network_utils:wrapped", "parameter removed"),
    ]
    told = [(n.file.rpartition("/")[2], n.line, n.symbol, n.reason) for n in report.not_judged]
    assert told[:5] == [
        ("a.py", 2, "vllm:*", "a star import: which names it is for is not read"),
        ("a.py", 3, "vllm.foreign:softmax", "the star import of torch may bring softmax"),
        (
            "a.py",
            6,
            "vllm.utils.network_utils:decorated",
            "its decorator twisted may change how it is called",
        ),
        ("a.py", 8, "vllm.utils.network_utils:made", "what it takes is not written down: a value"),
        ("a.py", 9, "vllm.config:Layer.cuda", "not all that Layer has can be read"),
    ]
    assert [entry[:3] for entry in told[5:]] == [
        ("broken.py", 0, ""),
        ("latin.py", 0, ""),
        ("nul.py", 0, ""),
    ]
    assert all(entry[3].startswith("cannot be parsed: ") for entry in told[5:])


def test_a_name_that_may_stand_for_something_else_is_not_followed(judge) -> None:
    report = judge(
        """
        from vllm import LLM
        from vllm.config import CacheConfig
        import vllm.utils as tools
        LLM = remote(LLM)
        LLM("m", num_gpus=1)
        def f(CacheConfig):
            CacheConfig(wrong=1)
        def g():
            from vllm.v1 import sched as tools
            tools.get_ip()
        """
    )
    assert shown(report) == []
    assert report.looked_at == 4


def test_targets_a_file_a_folder_a_package_a_module(tmp_path, vllm, monkeypatch) -> None:
    text = "from vllm import LLM\nLLM(1, 2)\n"
    write(tmp_path / "mine", {"sub___deep": text})
    write(tmp_path / "mine", {".hidden___a": text, "env___lib": text})
    (tmp_path / "mine" / "env" / "pyvenv.cfg").touch()
    (tmp_path / "single.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    targets = {
        str(tmp_path / "single.py"): ("single.py", "single"),
        str(tmp_path / "mine"): ("mine/sub/deep.py", "mine.sub.deep"),
        "mine": ("mine/sub/deep.py", "mine.sub.deep"),
        "mine.sub": ("mine/sub/deep.py", "mine.sub.deep"),
        "mine.sub.deep": ("mine/sub/deep.py", "mine.sub.deep"),
        "single": ("single.py", "single"),
    }
    for target, (file, module) in targets.items():
        report = judge_package(target, vllm)
        (found,) = report.incompatibilities
        assert (found.file, found.module) == (str(tmp_path / file), module), target
        assert (report.target, found.line, report.looked_at) == (target, 2, 2)
    assert not {"mine", "single", "vllm"} & set(sys.modules)
    for target in ("no_such_package", "mine.nothing", str(tmp_path / "no.py"), "a-b", ""):
        with pytest.raises(NotInstalledError, match="to be judged"):
            judge_package(target, vllm)


def test_a_relative_target_gives_files_that_can_be_opened(tmp_path, vllm, monkeypatch) -> None:
    (tmp_path / "script.py").write_text("import vllm.gone")
    monkeypatch.chdir(tmp_path)
    (found,) = judge_package("script.py", vllm).incompatibilities
    assert found.file == str(tmp_path / "script.py")


def test_against_a_record_what_is_not_recorded_is_not_judged(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        dedent(
            """
            from vllm import PoolingParams
            from vllm.v1.core.kv_cache_utils import unify_hybrid_kv_cache_specs
            from vllm.v1.request import Request
            Request("r", [1], eos_token_id=2)
            """
        )
    )
    report = judge_package(str(script), load_vllm("0.33.0"))
    assert shown(report) == [
        (3, "vllm.v1.core.kv_cache_utils:unify_hybrid_kv_cache_specs", "moved"),
        (5, "vllm.v1.request:Request", "parameter became required"),
        (5, "vllm.v1.request:Request", "parameter became required"),
        (5, "vllm.v1.request:Request", "parameter removed"),
    ]
    assert reasons(report) == [(2, "vllm:PoolingParams", "the record of this vLLM does not say")]
    data = report.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert (data["looked_at"], data["not_judged"][0]["line"]) == (4, 2)
    assert data["incompatibilities"][0]["covered"] is False
