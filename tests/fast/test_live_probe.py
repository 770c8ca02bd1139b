"""Live objects give the same signatures as their source."""

from __future__ import annotations

import importlib
import sys
from textwrap import dedent

import pytest
import wrapt

from vllm_compat.probe import SourceTree
from vllm_compat.probe.live import probe_live, signature_of

MODULE = """
import abc
import contextlib
import dataclasses
import enum
import functools
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import ClassVar, Generic, NamedTuple, TypeVar, overload

T = TypeVar("T")

def plain(a, b=1, *args, c, d=2, **kwargs): ...

def positional_only(a, b=1, /, c=2): ...

async def coroutine(a, *, b): ...

anonymous = lambda x, y=1: x

alias = plain

VALUE = 3

@functools.lru_cache(maxsize=None)
def cached(a, b=1): ...

@contextlib.contextmanager
def managed(a, *, b=1):
    yield a

@overload
def several(a: int) -> int: ...
@overload
def several(a: str, b: str) -> str: ...
def several(a, b=None): ...

class Empty: ...

class Base:
    def __init__(self, a, b=1): ...
    def method(self, x): ...
    @classmethod
    def create(cls, x, *, y=1): ...
    @staticmethod
    def check(x, y): ...
    @property
    def size(self): ...
    @functools.cached_property
    def slow(self): ...
    @functools.lru_cache
    def kept(self, x): ...
    def loose(*args, **kwargs): ...
    renamed = method
    LIMIT = 5
    class Inner:
        def __init__(self, deep): ...
        def below(self, deeper=1): ...

class Derived(Base):
    def method(self, x, y): ...

class Abstract(abc.ABC):
    @abc.abstractmethod
    def run(self, job): ...

class Box(Generic[T]):
    def __init__(self, item): ...

class Pair(Box[int], Abstract): ...

class Made:
    def __new__(cls, a, b): ...

class Either:
    def __new__(cls, *args, **kwargs): return object.__new__(cls)
    def __init__(self, a, *, b=1): ...

@dataclass
class Data:
    first: int
    temporary: InitVar[int]
    LIMIT: ClassVar[int] = 3
    second: "int" = 2
    spelled: "InitVar[int]" = 3
    const: "ClassVar[int]" = 4
    made: list = field(default_factory=list)
    given: int = field(default=1)
    hidden: int = field(default=0, init=False)
    late: int = field(default=1, kw_only=True)
    _: KW_ONLY
    must: int
    may: int = 1

@dataclass
class More(Data):
    second: int = 9
    extra: int = 5

@dataclasses.dataclass(kw_only=True)
class Only(Base):
    a: int
    b: int = 1

class Through(Only):
    z: int = 3

@dataclass(init=False)
class NoInit(Base):
    a: int = 1

@dataclass
class OwnInit:
    a: int
    def __init__(self, other): ...

class Row(NamedTuple):
    x: int
    y: int = 2
    def shifted(self, by): ...

class Longer(Row): ...

class Colour(enum.Enum):
    RED = 1
    def shade(self, by=1): ...
"""

EQUAL = [
    "plain positional_only coroutine anonymous alias VALUE cached managed several",
    "Empty Base Base.method Base.create Base.check Base.size Base.slow Base.kept Base.loose",
    "Base.renamed Base.LIMIT Base.Inner Base.Inner.below Derived Derived.method Derived.create",
    "Derived.renamed Abstract Abstract.run Box Pair Pair.run Made Either Data More Only Through",
    "NoInit OwnInit Row Row.shifted Longer Colour Colour.shade Base.missing missing Row.count.no",
]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write modules of a package ``made_up`` and make it importable."""
    root = tmp_path / "made_up"
    root.mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    def write(**modules):
        for name, text in modules.items():
            (root / f"{name}.py").write_text(dedent(text))
        (root / "__init__.py").touch()
        importlib.invalidate_caches()
        return root

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "made_up"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", " ".join(EQUAL).split())
def test_source_and_live_object_say_the_same(package, name):
    symbol = f"made_up.tricky:{name}"
    source = SourceTree(package(tricky=MODULE), "made_up").probe(symbol)
    live = probe_live(symbol)
    assert (source.status, source.kind, source.signature, source.location) == (
        live.status,
        live.kind,
        live.signature,
        live.location,
    )
    marks = [
        [p.init_only for p in found.signature.parameters] if found.signature else []
        for found in (source, live)
    ]
    assert marks[0] == marks[1]


def test_the_shared_module_is_read_as_it_is_written(package):
    tree = SourceTree(package(tricky=MODULE), "made_up")
    data = tree.probe("made_up.tricky:Data").signature
    assert str(data) == (
        "(first, temporary, second=..., spelled=..., made=..., given=..., *, late=..., must, "
        "may=...)"
    )
    assert [p.name for p in data.parameters if p.init_only] == ["temporary", "spelled"]
    assert [p.default for p in data.parameters] == [
        None, None, "2", "3", "list()", "1", "1", None, "1",
    ]  # fmt: skip


def test_a_wrapped_function_gives_the_wrapped_signature(package):
    package(wrapped=MODULE)
    module = importlib.import_module("made_up.wrapped")

    def passing(wrapped, instance, args, kwargs):
        return wrapped(*args, **kwargs)

    for name in ("plain", "Base.method", "Base.create", "Base.check", "Base.__init__"):
        wrapt.wrap_function_wrapper(module, name, passing)
    shown = {
        name: str(probe_live(f"made_up.wrapped:{name}").signature)
        for name in ("plain", "Base", "Base.method", "Base.create", "Base.check")
    }
    assert shown == {
        "plain": "(a, b=..., *args, c, d=..., **kwargs)",
        "Base": "(a, b=...)",
        "Base.method": "(x)",
        "Base.create": "(x, *, y=...)",
        "Base.check": "(x, y)",
    }
    assert probe_live("made_up.wrapped:plain").kind == "function"


def test_signature_of_drops_what_python_fills(package):
    package(tricky=MODULE)
    module = importlib.import_module("made_up.tricky")
    assert str(signature_of(module.Base)) == "(a, b=...)"
    assert str(signature_of(module.Base.method)) == "(x)"
    assert str(signature_of(module.Base(1).method)) == "(x)"
    assert str(signature_of(module.Base.create)) == "(x, *, y=...)"
    assert str(signature_of(module.Base.check)) == "(x, y)"
    assert str(signature_of(module.plain)) == "(a, b=..., *args, c, d=..., **kwargs)"

    def local(self, x): ...

    assert str(signature_of(local)) == "(self, x)"


def test_what_has_no_signature():
    builtin = probe_live("builtins:iter")
    assert (builtin.status, builtin.kind, builtin.signature) == ("found", "function", None)
    assert "no signature" in builtin.note or "no readable signature" in builtin.note
    with pytest.raises(TypeError, match="no readable signature"):
        signature_of(iter)
    with pytest.raises(TypeError, match="is an enum"):
        signature_of(probe_live.__globals__["enum"].Enum)


def test_moved_absent_and_failing_imports(package):
    package(old="", new="def f(a): ...", broken="raise RuntimeError('boom')")
    moved = probe_live("made_up.old:f", ["made_up.none:f", "made_up.new:f"])
    assert (moved.symbol, moved.status, moved.location) == (
        "made_up.old:f",
        "moved",
        "made_up.new:f",
    )
    absent = probe_live("made_up.old:f")
    assert (absent.status, absent.kind, absent.signature) == ("absent", None, None)
    assert absent.note == "AttributeError: module 'made_up.old' has no attribute 'f'"
    assert probe_live("made_up.broken:f").note == "RuntimeError: boom"
    module = probe_live("made_up.new")
    assert (module.status, module.kind, module.location) == ("found", "module", "made_up.new")
