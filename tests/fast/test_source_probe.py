"""Symbols found in source, over made-up packages."""

from __future__ import annotations

import ast
import subprocess
import sys
from textwrap import dedent

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_compat.probe import Finding, SourceTree

SETTINGS = settings(
    max_examples=150,
    deadline=2000,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def tree(folder, /, **files):
    """A source tree of the package ``p``; ``a__b`` stands for the file a/b.py."""
    root = folder / "p"
    files.setdefault("__init__", "")
    for name, text in files.items():
        path = root / f"{name if name == '__init__' else name.replace('___', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, bytes):
            path.write_bytes(text)
        else:
            path.write_text(dedent(text), encoding="utf-8")
    return SourceTree(root, "p")


def shown(finding: Finding) -> tuple[object, ...]:
    signature = None if finding.signature is None else str(finding.signature)
    return (finding.status, finding.kind, signature, finding.location)


# Long bodies, so that the reader cuts the text instead of parsing it whole.
LONG = "\n".join(f"    {name}_{i}: int = {i}" for name in ("pad", "fill") for i in range(120))

TRICKY = (
    '''
    """A docstring that looks like code:
    class Fake:
        def __init__(self, wrong): ...
    def fake(wrong): ...
    """
    import functools
    import p.other as other
    from typing import TYPE_CHECKING, overload
    from .other import exported as taken, Parent
    from p import other as again

    QUOTED = "class Fake: # \\"\\"\\" no string starts here"
    TEXT = r\'\'\'
    def fake(wrong): ...
    \'\'\'
    # """ nor here

    if TYPE_CHECKING:
        from .other import only_types
        def guarded(wrong): ...
    else:
        def guarded(right): ...

    if not TYPE_CHECKING:
        def negated(right): ...
    else:
        def negated(wrong): ...

    if 0:
        def never(wrong): ...

    try:
        from .missing import fallback
    except ImportError:
        from .other import exported as fallback

    try:
        from .other import preferred
    except ImportError:
        def preferred(wrong): ...

    def twice(wrong): ...
    def twice(right): ...

    def gone(wrong): ...
    del gone

    @overload
    def several(a: int) -> int: ...
    @overload
    def several(a: str, b: str) -> str: ...
    def several(a, b=None, *, c: "dict[str, int]" = {"x": 1}): ...

    @functools.wraps(
        taken,
        assigned=(),
    )
    @functools.cache
    async def decorated(
        a: int,  # a comment with a colon:
        b: "list[int]" = [
            1,
        ],
        /,
        *args: int,
        c=lambda x: {x: 1},
        **kwargs: int,
    ) -> dict[str, int]:  # another:
        """Text.
    def fake(wrong): ...
        """

    Alias = Parent
    Dotted = other.Parent
    anonymous = lambda x, y=1: x
    first, (second, *third) = 1, (2, 3)
    called = functools.partial(taken, 1)
    annotated: int = 1
    unbound: int
    with open("x") as handle: number = 1

    class Child(Parent):
        b = Parent.method
    '''
    + "\n".join(["", *(f"    {line}" for line in LONG.splitlines())])
    + '''
        text = """
        def fake(self, wrong): ...
    def fake(wrong): ...
    """
        def __init__(self, x, *, y=1):
            def nested(self, wrong): ...
            class Nested: ...

        if TYPE_CHECKING:
            def choose(self, wrong): ...
        else:
            def choose(self, right): ...

        @property
        def size(self): ...
        @size.setter
        def size(self, value): ...
        @functools.cached_property
        def slow(self): ...
        @staticmethod
        def static(x, y=1): ...
        @classmethod
        def create(cls, x): ...
        @functools.lru_cache(maxsize=None)
        def kept(self, x): ...
        async def wait(self, *, timeout=None): ...
        def loose(*args): ...
        assigned = kept
        imported = taken
        class Inner(Parent):
            def deep(self, z): ...
    class Small(Child): pass
    class Cyclic(Cyclic2): ...
    class Cyclic2(Cyclic): ...
    class Outside(functools.partial): ...
    class Unfinished(Parent, functools.partial):
        def own(self): ...
    def after(q): ...
    '''
)
OTHER = """
    from functools import partial as foreign
    def exported(e, f=1): ...
    def preferred(right): ...
    def only_types(t): ...
    class Parent:
        def __init__(self, parent): ...
        def method(self, m, n=2): ...
        LIMIT = 3
"""

M = "p.tricky:"
EXPECTED = {
    "fake": ("absent", None, None, None),
    "Fake": ("absent", None, None, None),
    "nested": ("absent", None, None, None),
    "wrong": ("absent", None, None, None),
    "taken": ("found", "function", "(e, f=...)", "p.other:exported"),
    "again": ("found", "module", None, "p.other"),
    "other": ("found", "module", None, "p.other"),
    "other.exported": ("found", "function", "(e, f=...)", "p.other:exported"),
    "other.foreign": ("found", None, None, "functools.partial"),
    "functools": ("found", None, None, "functools"),
    "only_types": ("absent", None, None, None),
    "guarded": ("found", "function", "(right)", M + "guarded"),
    "negated": ("found", "function", "(right)", M + "negated"),
    "never": ("absent", None, None, None),
    "fallback": ("found", "function", "(e, f=...)", "p.other:exported"),
    "preferred": ("found", "function", "(right)", "p.other:preferred"),
    "twice": ("found", "function", "(right)", M + "twice"),
    "gone": ("absent", None, None, None),
    "several": ("found", "function", "(a, b=..., *, c=...)", M + "several"),
    "decorated": ("found", "function", "(a, b=..., /, *args, c=..., **kwargs)", M + "decorated"),
    "Alias": ("found", "class", "(parent)", "p.other:Parent"),
    "Dotted": ("found", "class", "(parent)", "p.other:Parent"),
    "anonymous": ("found", "function", "(x, y=...)", M + "anonymous"),
    "first": ("found", "value", None, M + "first"),
    "third": ("found", "value", None, M + "third"),
    "called": ("found", "value", None, M + "called"),
    "annotated": ("found", "value", None, M + "annotated"),
    "unbound": ("absent", None, None, None),
    "handle": ("found", "value", None, M + "handle"),
    "number": ("found", "value", None, M + "number"),
    "QUOTED": ("found", "value", None, M + "QUOTED"),
    "Child": ("found", "class", "(x, *, y=...)", M + "Child"),
    "Child.__init__": ("found", "function", "(x, *, y=...)", M + "Child.__init__"),
    "Child.b": ("found", "function", "(m, n=...)", "p.other:Parent.method"),
    "Child.method": ("found", "function", "(m, n=...)", "p.other:Parent.method"),
    "Child.LIMIT": ("found", "value", None, "p.other:Parent.LIMIT"),
    "Child.fake": ("absent", None, None, None),
    "Child.nested": ("absent", None, None, None),
    "Child.choose": ("found", "function", "(right)", M + "Child.choose"),
    "Child.pad_7": ("found", "value", None, M + "Child.pad_7"),
    "Child.size": ("found", "value", None, M + "Child.size"),
    "Child.slow": ("found", "value", None, M + "Child.slow"),
    "Child.static": ("found", "function", "(x, y=...)", M + "Child.static"),
    "Child.create": ("found", "function", "(x)", M + "Child.create"),
    "Child.kept": ("found", "function", "(x)", M + "Child.kept"),
    "Child.wait": ("found", "function", "(*, timeout=...)", M + "Child.wait"),
    "Child.loose": ("found", "function", "(*args)", M + "Child.loose"),
    "Child.assigned": ("found", "function", "(x)", M + "Child.kept"),
    "Child.imported": ("found", "function", "(f=...)", "p.other:exported"),
    "Child.Inner": ("found", "class", "(parent)", M + "Child.Inner"),
    "Child.Inner.deep": ("found", "function", "(z)", M + "Child.Inner.deep"),
    "Child.Inner.method": ("found", "function", "(m, n=...)", "p.other:Parent.method"),
    "Child.size.fget": ("absent", None, None, None),
    "Small": ("found", "class", "(x, *, y=...)", M + "Small"),
    "Small.kept": ("found", "function", "(x)", M + "Child.kept"),
    "Cyclic": ("found", "class", None, M + "Cyclic"),
    "Cyclic.kept": ("absent", None, None, None),
    "Outside": ("found", "class", None, M + "Outside"),
    "Outside.func": ("absent", None, None, None),
    "Unfinished": ("found", "class", "(parent)", M + "Unfinished"),
    "Unfinished.own": ("found", "function", "()", M + "Unfinished.own"),
    "after": ("found", "function", "(q)", M + "after"),
}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("way", ["by pieces", "as a whole"])
def test_tricky_constructs(tmp_path, name, way):
    source = tree(tmp_path, tricky=TRICKY, other=OTHER)
    if way == "as a whole":
        for module in ("p.tricky", "p.other"):
            source.module(module).source.parse_whole()
    assert shown(source.probe(M + name)) == EXPECTED[name]


def test_reading_by_pieces_needs_no_whole_parse(tmp_path, monkeypatch):
    source = tree(tmp_path, tricky=TRICKY, other=OTHER)
    lengths = []
    parse = ast.parse
    monkeypatch.setattr(ast, "parse", lambda code: lengths.append(len(code)) or parse(code))
    for name in EXPECTED:
        source.probe(M + name)
    assert max(lengths) < 3200 < len(TRICKY)


def test_place_and_notes(tmp_path):
    source = tree(tmp_path, tricky=TRICKY, other=OTHER)
    lines = dedent(TRICKY).splitlines()
    kept = source.probe(M + "Child.kept")
    assert (kept.file, lines[kept.line - 1]) == ("tricky.py", "    def kept(self, x): ...")
    several = source.probe(M + "several")
    assert lines[several.line - 1].startswith("def several(a, b=None, *")
    child = source.probe(M + "Child")
    assert lines[child.line - 1] == "class Child(Parent):"
    assert (child.symbol, child.note, several.note) == (M + "Child", "", "")
    assert [p.default for p in several.signature.parameters] == [None, "None", "{'x': 1}"]
    notes = {
        "only_types": "p.tricky:only_types is there for type checkers only",
        "twice": "p.tricky:twice is bound more than once",
        "other.foreign": "defined outside the tree",
        "fallback": "p.tricky:fallback is bound more than once; no module p.missing",
        "Child.size.fget": "p.tricky:Child.size is a value, its attributes are not readable",
        "Outside": "constructor unknown: base functools.partial of p.tricky:Outside is outside "
        "the tree",
        "Outside.func": "a base of p.tricky:Outside is not readable: functools.partial",
        "Cyclic": "constructor unknown: p.tricky:Cyclic inherits from itself",
    }
    assert {name: source.probe(M + name).note for name in notes} == notes


FIELDS = """
    import dataclasses as dc
    import msgspec
    import typing as t
    from dataclasses import KW_ONLY, InitVar, dataclass, field
    from enum import Enum
    from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
    from pydantic import Field as Specified
    from pydantic.dataclasses import dataclass as checked
    from .marks import config, plain
    from .elsewhere import Far

    @dataclass
    class Data:
        a: int
        b: InitVar[int]
        c: t.ClassVar[int] = 3
        d: "int" = 2
        e: "InitVar[int]" = 3
        f: "t.ClassVar[int]" = 4
        g: list = field(default_factory=list)
        h: int = field(default=1)
        i: int = field(default=0, init=False)
        j: int = dc.field(default=1, kw_only=True)
        unannotated = 5
        _: KW_ONLY
        k: int
        l: int = 1

    @config
    class Marked:
        a: int
        b: InitVar[int]
        c: int = Field(default=1, ge=1)
        d: int = Field(ge=1)
        e: int = Field(...)
        f: int = Specified(default=None)
        g: int = Specified(init=False)
        h: int = Field(default_factory=lambda *a: 3)
        i: int = Field(default=1, alias="eye")
        j: int = Field(1)
        _private: int = 3

    @config(config=ConfigDict(extra="forbid"), kw_only=True)
    class Called:
        a: int
        b: int = field(default=1, kw_only=False)

    @config
    @checked(config=ConfigDict(arbitrary_types_allowed=True))
    class Doubly:
        a: int = 1

    @plain
    class Unmarked:
        a: int

    class Undecorated(Data):
        z: int = 1

    @dataclass
    class Derived(Undecorated, Far):
        d: int = 9
        far: t.ClassVar[int] = 1
        new: int = 3

    @dc.dataclass(init=False)
    class NoInit(Far):
        a: int

    @dataclass
    class OwnInit:
        a: int
        def __init__(self, other): ...

    @dataclass
    class Foreign(Enum):
        a: int

    class Model(BaseModel):
        model_config = ConfigDict(frozen=True)
        LIMIT: t.ClassVar[int] = 3
        a: int
        b: int = 1
        c: int = Field(default=1, alias="sea")
        _hidden: int = PrivateAttr(default=3)

    class Wider(Model):
        model_config = ConfigDict(extra="allow")
        d: int

    class Initialised(BaseModel):
        a: int
        def __init__(self, *, other): ...

    class Mixin:
        no_field: int = 1

    class Struct(Mixin, msgspec.Struct, omit_defaults=True, dict=True):
        a: int
        b: int = 1
        c: list = msgspec.field(default_factory=list)
        _d: int = 2
        LIMIT: t.ClassVar[int] = 3

    class Late(Struct, kw_only=True):
        e: int
        f: int = 1

    class Row(t.NamedTuple):
        x: int
        y: int = 2

    class Longer(Row):
        z: int = 3

    class Colour(Enum):
        RED = 1

    class Single(type):
        def __call__(cls, *args): ...

    class Built(metaclass=Single):
        def __init__(self, a): ...

    class Loose:
        def __new__(cls, *args, **kwargs): ...
        def __init__(self, a): ...

    class Strict:
        def __new__(cls, a, b): ...
        def __init__(self, *args): ...

    class Assigned:
        def build(self, a): ...
        __init__ = build
"""
MARKS = """
    from typing import overload
    from typing_extensions import dataclass_transform
    @overload
    @dataclass_transform(field_specifiers=())
    def config(cls): ...
    @overload
    def config(*, config=None): ...
    def config(cls=None, *, config=None): ...
    def plain(cls): return cls
"""
ELSEWHERE = """
    from dataclasses import dataclass
    @dataclass
    class Far:
        far: int
        away: int = 1
"""
CONSTRUCTORS = {
    "Data": "(a, b, d=..., e=..., g=..., h=..., *, j=..., k, l=...)",
    "Marked": "(a, b, c=..., d, e, f=..., h=..., eye=..., j=..., _private=...)",
    "Called": "(b=..., *, a)",
    "Doubly": "(a=...)",
    "Unmarked": "()",
    "Undecorated": "(a, b, d=..., e=..., g=..., h=..., *, j=..., k, l=...)",
    "Derived": "(away=..., a, b, d=..., e=..., g=..., h=..., new=..., *, j=..., k, l=...)",
    "NoInit": "(far, away=...)",
    "OwnInit": "(other)",
    "Foreign": None,
    "Model": "(*, a, b=..., sea=...)",
    "Wider": "(*, a, b=..., sea=..., d, **extra_data)",
    "Initialised": "(*, other)",
    "Struct": "(a, b=..., c=..., _d=...)",
    "Late": "(a, b=..., c=..., _d=..., *, e, f=...)",
    "Row": "(x, y=...)",
    "Longer": "(x, y=...)",
    "Colour": None,
    "Built": None,
    "Loose": "(a)",
    "Strict": "(a, b)",
    "Assigned": "(a)",
}


@pytest.mark.parametrize("padding", ["", LONG])
@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_constructors(tmp_path, name, padding):
    # The methods make the classes too large to be parsed at once, without adding fields.
    body = "\n".join(f"        def m{i}(self, x): return x  # {'-' * 60}" for i in range(40))
    fields = FIELDS.replace("class Data:", f"class Data:\n{body if padding else ''}")
    source = tree(tmp_path, fields=fields, marks=MARKS, elsewhere=ELSEWHERE)
    finding = source.probe(f"p.fields:{name}")
    assert shown(finding) == ("found", "class", CONSTRUCTORS[name], f"p.fields:{name}")


def test_init_only_fields_and_defaults(tmp_path):
    source = tree(tmp_path, fields=FIELDS, marks=MARKS, elsewhere=ELSEWHERE)
    data = source.probe("p.fields:Data").signature
    assert [p.name for p in data.parameters if p.init_only] == ["b", "e"]
    marked = source.probe("p.fields:Marked").signature
    assert [p.default for p in marked.parameters] == [
        None, None, "1", None, None, "None", "(lambda *a: 3)()", "1", "1", "3",
    ]  # fmt: skip


def test_packages_stars_and_lazy_tables(tmp_path):
    source = tree(
        tmp_path,
        __init__="""
            from .sub import *
            from .sub import _private
            MODULE_ATTRS = {"Lazy": ".sub.deep:Real", "Same": "p.sub.deep"}
            import typing
            if typing.TYPE_CHECKING:
                from p.sub.deep import Real as Lazy, Declared
                CONSTANT: int = 3
            else:
                def __getattr__(name): ...
        """,
        sub_____init__="""
            from .deep import *
            from . import deep as renamed
            from ..level import up
            __all__ = ["listed", "up"]
            __all__ += ["Real"]
            def listed(a): ...
            def unlisted(a): ...
            def _private(a): ...
        """,
        sub___deep="""
            class Real:
                def __init__(self, r): ...
            class Same: ...
            class Declared: ...
            def free(a): ...
            def _hidden(a): ...
        """,
        level="def up(u): ...",
    )
    expected = {
        "p": ("found", "module", None, "p"),
        "p.sub.deep": ("found", "module", None, "p.sub.deep"),
        "p:sub": ("found", "module", None, "p.sub"),
        "p:sub.deep.free": ("found", "function", "(a)", "p.sub.deep:free"),
        "p:listed": ("found", "function", "(a)", "p.sub:listed"),
        "p:unlisted": ("absent", None, None, None),
        "p:free": ("absent", None, None, None),
        "p:Real": ("found", "class", "(r)", "p.sub.deep:Real"),
        "p:up": ("found", "function", "(u)", "p.level:up"),
        "p:_private": ("found", "function", "(a)", "p.sub:_private"),
        "p.sub:free": ("found", "function", "(a)", "p.sub.deep:free"),
        "p.sub:_hidden": ("absent", None, None, None),
        "p.sub:renamed": ("found", "module", None, "p.sub.deep"),
        "p:Lazy": ("found", "class", "(r)", "p.sub.deep:Real"),
        "p:Same": ("found", "class", "()", "p.sub.deep:Same"),
        "p:Declared": ("found", "class", "()", "p.sub.deep:Declared"),
        "p:CONSTANT": ("found", "value", None, "p:CONSTANT"),
        "p:Unknown": ("absent", None, None, None),
    }
    assert {symbol: shown(source.probe(symbol)) for symbol in expected} == expected
    assert source.probe("p:Unknown").note == "p has a __getattr__ which may know Unknown"
    assert source.probe("p.sub:listed").file == "sub/__init__.py"


def test_moved_and_renamed_symbols(tmp_path):
    source = tree(tmp_path, old="def kept(a): ...", new="def f(a, b): ...\ndef renamed(c): ...")
    assert source.probe("p.old:kept", ["p.new:f"]).status == "found"
    moved = source.probe("p.old:f", ["p.none:f", "p.old:g", "p.new:f"])
    assert shown(moved) == ("moved", "function", "(a, b)", "p.new:f")
    assert (moved.symbol, moved.file, moved.line) == ("p.old:f", "new.py", 1)
    assert shown(source.probe("p.old:name", ["p.new:renamed"]))[0::3] == ("moved", "p.new:renamed")
    assert source.probe("p.none:f", ["p.old:f"]) == Finding(
        "p.none:f", "absent", note="no module p.none"
    )


@pytest.mark.parametrize("symbol", ["", ":", "p:", "q.m:f", "p.:f", "p.m:", "p.m:f.", "p.m:a b"])
def test_symbols_of_no_sense_are_absent_or_modules(tmp_path, symbol):
    finding = tree(tmp_path, m="def f(): ...").probe(symbol)
    assert finding.status == ("found" if symbol in ("p:", "p.m:") else "absent")


NEWER = """
    def before(a): ...
    type Alias = int
    class C[T](metaclass):
        def __init__(self, a): match a with whatever
    def broken(a b): ...
    from .m2 import moved
    def after(a, b=1): ...
    class Later:
        x = 1 +
        def method(self, q): ...
        def bad(self, ?): ...
"""


def test_text_elsewhere_which_does_not_parse_is_not_looked_at(tmp_path):
    padded = NEWER.replace("x = 1 +", "x = 1 +\n" + "    # padding\n" * 300)
    source = tree(tmp_path, m=padded, m2="def moved(c): ...")
    assert shown(source.probe("p.m:before"))[2] == "(a)"
    assert shown(source.probe("p.m:after"))[2] == "(a, b=...)"
    assert shown(source.probe("p.m:moved"))[3] == "p.m2:moved"
    assert shown(source.probe("p.m:Later.method"))[2] == "(q)"
    broken = source.probe("p.m:broken")
    line = dedent(padded).splitlines().index("def broken(a b): ...") + 1
    assert broken == Finding(
        "p.m:broken",
        "absent",
        note=f"p.m: could not be read: the statement at line {line}",
    )
    assert source.probe("p.m:Later.bad").status == "absent"


LOOKALIKES = {
    "argument": ("dict(\nfake=1,\nb=2,\n)", "fake", None),
    "behind a comment": ("dict(  # text\n\n# text\nfake=1,\nb=2,\n)", "fake", None),
    "element": ("x = [\n'y',\nfake == 3,\n]\n", "fake", None),
    "continued": ("y = 1 + \\\nfake if x else 2", "fake", None),
    "continued string": ("x = 'text \\\nfake = 1  # '", "fake", None),
    "escaped quotes": ('def f(): return """\\"""\ndef fake(): ...\n"""', "fake", None),
    "raw string": ("r'''\\\\'''\ndef real(): ...\nx = r'''\n'''", "real", "function"),
    "other quotes": ("'''\"\"\"'''\ndef real(): ...\n''' '''", "real", "function"),
    "quotes in a string": ("x = \"'''\"\ndef real(): ...\ny = \"'''\"", "real", "function"),
    "quotes in a comment": ("# it's '''\ndef real(): ...\n# '''", "real", "function"),
    "a word like except": ("def f(): ...\nexceptions = 1", "exceptions", "value"),
    "an attribute": ("x.fake = 1\ny['fake'] = 1\nx = fake", "fake", None),
    "cut short": ("class A:\n    t = [\n0,\n    ]\n    def real(self): ...", "A.real", "function"),
    "cut shorter": (
        f"class A:\n{LONG}\n    t = (1 +\n0\n    )\n    def real(self): ...",
        "A.real",
        "function",
    ),
}


@pytest.mark.parametrize("case", LOOKALIKES)
def test_lines_that_only_look_like_statements(tmp_path, case):
    text, name, kind = LOOKALIKES[case]
    # The text must be valid, or the whole parse could not settle it.
    compile(text, case, "exec", ast.PyCF_ONLY_AST)
    finding = tree(tmp_path, m=text.encode()).probe(f"p.m:{name}")
    assert (finding.status, finding.kind) == ("found" if kind else "absent", kind)


def test_an_answer_does_not_depend_on_what_was_asked_before(tmp_path):
    circular = "from .m import *\nclass A(f):\n    def g(self): ...\nx = ("
    source = tree(tmp_path, m=circular)
    names = ("A", "f", "x", "A.g")
    fresh = {name: tree(tmp_path, m=circular).probe(f"p.m:{name}") for name in names}
    for name in (*names, *names[::-1]):
        assert source.probe(f"p.m:{name}") == fresh[name]
    assert fresh["x"].note == (
        "p.m: could not be read: the statement at line 4; p.m:x is imported in a circle"
    )


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xef\xbb\xbfdef f(a): ...\r\n", ("found", "(a)")),
        (b"# -*- coding: latin-1 -*-\ndef f(\xe4): ...\n", ("found", "(\xe4)")),
        ("def f(\xe4\xdf): ...".encode(), ("found", "(\xe4\xdf)")),
        (b"def f(a):\r    pass\rdef g(): pass\r", ("found", "(a)")),
        (b"x = 1\n\x0cdef f(a): ...\n", ("found", "(a)")),
        (b"\xff\xfedef f(a): ...\n", ("absent", None)),
        (b"# coding: nonsense\ndef f(a): ...\n", ("absent", None)),
        (b"def f(a): \x00\n", ("absent", None)),
        (b"def f(" + b"(" * 500, ("absent", None)),
        (b"f = " + b"a." * 500 + b"b\n", ("found", None)),
        (b"", ("absent", None)),
    ],
)
def test_encodings_and_garbage(tmp_path, data, expected):
    finding = tree(tmp_path, m=data).probe("p.m:f")
    assert (finding.status, shown(finding)[2]) == expected


def test_unreadable_and_compiled_modules(tmp_path):
    source = tree(tmp_path, m=b"\xff")
    (tmp_path / "p" / "_C.abi3.so").write_bytes(b"\x7fELF")
    (tmp_path / "p" / "bare").mkdir()
    assert "could not be read" in source.probe("p.m:f").note
    assert source.probe("p.m").kind == "module"
    assert source.probe("p._C").kind == "module"
    assert source.probe("p._C:f").note == "p._C: compiled, its names are not readable"
    assert source.probe("p.bare").kind == "module"
    assert source.probe("p.bare:f").status == "absent"


def test_circles_end(tmp_path):
    source = tree(
        tmp_path,
        a="from .b import x, y\nfrom .b import *\nz = z\nself = self.self",
        b="from .a import x\nfrom .a import *\nfrom .a import x as y\ndef real(a): ...",
    )
    for name in ("x", "y", "absent"):
        assert source.probe(f"p.a:{name}").status == "absent"
    assert "imported in a circle" in source.probe("p.a:x").note
    assert source.probe("p.a:absent").note == "p.a:absent is imported in a circle"
    assert shown(source.probe("p.a:real"))[3] == "p.b:real"
    assert source.probe("p.a:z").kind == "value"


def test_a_long_chain_of_imports_is_followed_or_given_up(tmp_path):
    chain = {f"m{i}": f"from .m{i + 1} import f" for i in range(600)}
    source = tree(tmp_path, **chain, m600="def f(a): ...")
    finding = source.probe("p.m0:f")
    assert finding.status == "found" or finding.note == "nested or re-exported too deeply"
    assert shown(source.probe("p.m580:f"))[3] == "p.m600:f"


def test_nothing_of_the_tree_runs_and_no_warning_gets_out(tmp_path, recwarn):
    tree(
        tmp_path,
        __init__="raise SystemExit('ran')",
        m=r"""
        raise SystemExit("ran")
        def f(a="\d", b=1 is 1): ...
        """,
    )
    code = dedent(f"""
        import sys
        from pathlib import Path
        from vllm_compat.probe import SourceTree
        print(SourceTree(Path({str(tmp_path / "p")!r}), "p").probe("p.m:f").signature)
        print([name for name in sys.modules if name.partition(".")[0] in ("p", "vllm", "torch")])
    """)
    run = [sys.executable, "-W", "always", "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("(a=..., b=...)\n[]\n", "")


NAMES = st.sampled_from(["f", "g", "A", "B", "m", "__all__", "__getattr__"])
MODULES = st.sampled_from(["a", "b", "c", "", "missing"])
LINES = st.one_of(
    st.builds("from .{} import {} as {}".format, MODULES, NAMES, NAMES),
    st.builds("from .{} import *".format, MODULES),
    st.builds("from p.{} import {}".format, MODULES, NAMES),
    st.builds("import p.{}".format, MODULES),
    st.builds("{} = {}".format, NAMES, NAMES),
    st.builds("{} = {}.{}".format, NAMES, NAMES, NAMES),
    st.builds("def {}({}, *, {}=1): ...".format, NAMES, NAMES, NAMES),
    st.builds(
        "class {}({}):\n    def {}(self, x): ...\n    y: int = 1".format, NAMES, NAMES, NAMES
    ),
    st.builds("@{}\nclass {}: x: int".format, NAMES, NAMES),
    st.builds("class {0}({1}, metaclass={1}): {2} = {1}".format, NAMES, NAMES, NAMES),
    st.builds("if x:\n    {} = 1\nelse:\n    from .{} import {}".format, NAMES, MODULES, NAMES),
    st.builds("try:\n    from .{} import {}\nexcept E:\n    {} = 1".format, MODULES, NAMES, NAMES),
    st.builds("__all__ = ['{}', '{}']".format, NAMES, NAMES),
    st.builds("TABLE = {{'{}': '.{}:{}'}}".format, NAMES, MODULES, NAMES),
    st.sampled_from(["del f", '"""', "'''", "x = (", ")", "\\", "#", "@", "class A:", "  f = 1"]),
    st.text(max_size=20),
)
FILES = st.lists(LINES, max_size=8).map("\n".join)
SYMBOLS = st.builds(
    "p.{}:{}".format, MODULES, st.sampled_from(["f", "A", "A.m", "B.m.f", "__all__"])
)


@SETTINGS
@given(st.lists(FILES, min_size=3, max_size=3), SYMBOLS, st.integers(0, 400), st.binary(max_size=4))
def test_any_modules_give_an_answer(tmp_path_factory, texts, symbol, cut, garbage):
    a, b, c = (text.encode("utf-8", "surrogatepass") for text in texts)
    source = tree(
        tmp_path_factory.mktemp("any"),
        __init__=a[: cut // 2],
        a=a[:cut],
        b=b,
        c=c + garbage,
    )
    first = source.probe(symbol)
    assert first.status in ("found", "absent")
    assert (first.kind is None) or first.location
    assert source.probe(symbol) == first
    assert Finding.from_dict(first.to_dict()) == first


@SETTINGS
@given(FILES, SYMBOLS)
def test_pieces_and_whole_agree_where_the_file_parses(tmp_path_factory, text, symbol):
    try:
        compile(text, "a.py", "exec", ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError):
        return
    folder = tmp_path_factory.mktemp("both")
    files = {"a": text, "b": "def f(b): ...\nclass A:\n    def m(self): ..."}
    by_pieces, whole = tree(folder, **files), SourceTree(folder / "p", "p")
    for name in ("p", "p.a", "p.b"):
        whole.module(name).source.parse_whole()
    name = symbol.partition(":")[2]
    assert by_pieces.probe(f"p.a:{name}") == whole.probe(f"p.a:{name}")
