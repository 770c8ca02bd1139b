"""Sources nobody wrote: the probe answers, soon, and as Python itself would have it.

Modules are made from a small grammar of code that runs, so the oracle is not a second reader but
the module, executed and looked at.
"""

from __future__ import annotations

import inspect
import time
from textwrap import indent
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_compat.probe import Finding, SourceTree

# The machine may be slow; what takes this long has hung.
SETTINGS = settings(
    max_examples=120,
    deadline=5000,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SECONDS = 5.0


def tree(folder, /, **files: bytes):
    root = folder / "p"
    root.mkdir(exist_ok=True)
    for name, data in {"__init__": b"", **files}.items():
        (root / f"{name}.py").write_bytes(data)
    return SourceTree(root, "p")


# --- A grammar of code that runs ------------------------------------------------------------------

HEADER = """\
from contextlib import nullcontext as opened
from typing import TYPE_CHECKING, overload
def keep(f): return f
def kept(*a): return keep
"""
NAMES = st.sampled_from(["f", "g", "A", "B", "m"])
PARAMETERS = st.sampled_from(
    [
        "",
        "a",
        "a, b=1",
        "a, /, b",
        "*, k",
        "a, *args, k=1, **more",
        "a, b='):\\n', *, c=lambda x: {x: 1}",
        "a: 'int # )' = 1",
        "\n        a,  # a comment: with a colon\n        b=[\n1,\n],\n    ",
    ]
)
# What a reader by lines may take for code, in every place where text can be.
DECOYS = st.sampled_from(
    [
        '"""\ndef f(wrong): ...\nclass A:\n    def m(self, wrong): ...\n"""',
        "r'''\n    def m(self, wrong): ...\nf = 1\n\\'''",
        "x = 'def f(wrong): ...'",
        'x = "it\'s \\"\\"\\" "',
        "# ''' no string starts here",
        "x = dict(\nf=1,\ng=2,\n)",
        "x = [\n'f',\n1 == 2,\n]",
        "x = 1 + \\\n    2",
        "x = 'text \\\nf = 1  # '",
        "x = {\n'A': 1\n}; y = 2",
        "x = f'{1}\\n'",
        "if False: x = 1",
        "\f",
        "",
    ]
)
LONG = st.sampled_from(["", "\n".join(f"pad_{i} = {i}" for i in range(200))])


def block(head, body):
    """``head`` over ``body``; what a decoy has at the margin stays there."""
    lines, inside = [], ""
    for line in body.splitlines():
        lines.append(line if inside or not line.strip() else f"    {line}")
        for quotes in ('"""', "'''"):
            if line.count(quotes) % 2 and inside in ("", quotes) and not line.startswith("#"):
                inside = "" if inside else quotes
    return "\n".join([head, *lines])


def function(indented):
    return st.builds(
        lambda decorator, kind, name, parameters, body, tabs: (
            f"{decorator}{kind}def {name}({indented}{parameters}) -> 'dict[str, int]':"
            + ("\n\t" if tabs else "\n    ")
            + body.replace("\n", "\n\t" if tabs else "\n    ")
        ),
        st.sampled_from(["", "@keep\n", "@kept(\n    1,\n)\n"]),
        st.sampled_from(["", "async "]),
        NAMES,
        PARAMETERS,
        st.sampled_from(["pass", "return 1", "def f(wrong): ...\nclass A: ...\nreturn f"]),
        st.booleans(),
    )


FUNCTIONS = function("")
METHODS = st.one_of(
    function("self, "),
    st.builds("@staticmethod\ndef {}({}): ...".format, NAMES, PARAMETERS),
    st.builds("@classmethod\ndef {}(cls, {}): ...".format, NAMES, PARAMETERS),
    st.builds("@property\ndef {}(self): ...".format, NAMES),
    st.builds("{} = 1".format, NAMES),
    st.builds("def __init__(self, {}): ...".format, PARAMETERS),
)


CLASSES = st.builds(
    lambda head, name, base, body, long: block(
        f"{head}class {name}{base}:", f"{body}\n{long}\nz = 1"
    ),
    st.sampled_from(["", "@keep\n"]),
    NAMES,
    st.sampled_from(["", "()", "(object)"]),
    st.lists(st.one_of(METHODS, st.just('"""\ndef f(self, wrong): ...\n"""')), max_size=4).map(
        lambda parts: "\n".join([*parts, "pass"])
    ),
    LONG,
)
PLAIN = st.one_of(FUNCTIONS, CLASSES, st.builds("{} = {}".format, NAMES, st.integers(0, 9)))
INDENTED = PLAIN.filter(lambda text: '"""' not in text).map(lambda text: indent(text, "    "))
# Which branch runs is written out, so that the reader can know it too.
COMPOUND = st.one_of(
    st.builds("if TYPE_CHECKING:\n{}\nelse:\n{}".format, INDENTED, INDENTED),
    st.builds("if {}:\n{}".format, st.sampled_from(["True", "1", "not False"]), INDENTED),
    st.builds("if {}:\n{}".format, st.sampled_from(["False", "0", "None", "not 1"]), INDENTED),
    st.builds("if True:\n{}\nelse:\n{}".format, INDENTED, INDENTED),
    *(
        st.builds(text.format, NAMES)
        for text in (
            "try:\n    from .missing import {0}\nexcept ImportError:\n    def {0}(r): ...",
            "try:\n    from .other import f as {0}\nexcept ImportError:\n    def {0}(w): ...",
            "with opened(1) as {0}: pass",
            "from .other import f as {0}",
            "from .other import *",
            "x = {0} = 1",
            "x, ({0}, *y) = 1, (2, 3)",
            "def {0}(a): ...\ndel {0}",
            "@overload\ndef {0}(a): ...\n@overload\ndef {0}(b): ...\ndef {0}(a, b=1): ...",
            "x = 1; {0} = 2; y = 3",
        )
    ),
)
OTHER = b"def f(o, p=1): ...\ndef g(o): ...\nclass A:\n    def m(self, o): ...\nB = 1\n"


def compiles(text):
    try:
        compile(text, "a.py", "exec")
    except SyntaxError:
        return False
    return True


MODULES = (
    st.lists(st.one_of(PLAIN, COMPOUND, DECOYS), max_size=7)
    .map(lambda parts: HEADER + "\n".join(parts) + "\n")
    .filter(compiles)
)
SYMBOLS = st.sampled_from(["f", "g", "A", "B", "m", "A.m", "A.f", "B.g", "f.m", "wrong", "pad_3"])


# --- What Python says -----------------------------------------------------------------------------


class Package:
    """Runs modules as ``p.a`` would be, without importing anything of that name."""

    def __init__(self, text) -> None:
        other = ModuleType("p.other")
        exec(OTHER.decode(), vars(other))
        self.space: dict[str, object] = {"__name__": "p.a", "__package__": "p"}
        builtins = dict(vars(__import__("builtins")))
        real = builtins["__import__"]

        def importing(name, globals=None, locals=None, fromlist=(), level=0):
            if level and name != "other":
                raise ImportError(name)
            return other if level else real(name, globals, locals, fromlist, level)

        builtins["__import__"] = importing
        self.space["__builtins__"] = builtins
        exec(compile(text, "a.py", "exec"), self.space)

    def says(self, symbol):
        """Status, kind and parameters, the first of a method left out."""
        first, *rest = symbol.split(".")
        if first not in self.space:
            return ("absent", None, None)
        found, owner = self.space[first], None
        for name in rest:
            if not inspect.isclass(found) or name not in vars(found):
                return ("absent", None, None)
            owner, found = found, vars(found)[name]
        if inspect.isclass(found):
            init = vars(found).get("__init__")
            return ("found", "class", () if init is None else parameters(init, skip=True))
        static = isinstance(found, staticmethod)
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__
        if not inspect.isfunction(found):
            return ("found", "value", None)
        return ("found", "function", parameters(found, skip=owner is not None and not static))


def parameters(found, *, skip):
    shown = [
        (p.name, p.kind.name.lower(), p.default is p.empty and "VAR" not in p.kind.name)
        for p in inspect.signature(found).parameters.values()
    ]
    return tuple(shown[1:] if skip else shown)


def answer(finding):
    signature = finding.signature and tuple(p[:3] for p in finding.signature.parameters)
    return (finding.status, finding.kind, signature)


# --- The properties -------------------------------------------------------------------------------


@SETTINGS
@given(MODULES, st.lists(SYMBOLS, min_size=1, max_size=4))
def test_the_answer_is_what_running_the_module_gives(tmp_path_factory, text, symbols) -> None:
    source = tree(tmp_path_factory.mktemp("run"), a=text.encode(), other=OTHER)
    package = Package(text)
    for symbol in symbols:
        assert answer(source.probe(f"p.a:{symbol}")) == package.says(symbol), symbol


ENCODINGS = {
    "plain": lambda text: text.encode(),
    "with a mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "latin": lambda text: b"# coding: latin-1\n# \xe9\n" + text.encode("latin-1"),
    "windows": lambda text: text.replace("\n", "\r\n").encode(),
    "old mac": lambda text: text.replace("\n", "\r").encode(),
}


@pytest.mark.parametrize("way", ENCODINGS)
def test_encodings_and_line_ends_that_python_reads(tmp_path, way) -> None:
    pad = "\n".join(f"pad_{i} = 1" for i in range(600))
    text = f"{HEADER}{pad}\ndef f(a,\n      b=1): ...\nclass A:\n    def m(self, x): ...\n"
    source = tree(tmp_path, a=ENCODINGS[way](text))
    assert [str(source.probe(f"p.a:{name}").signature) for name in ("f", "A.m", "A")] == [
        "(a, b=...)",
        "(x)",
        "()",
    ]
    assert source.probe("p.a:f").line == 605 + 2 * (way == "latin")


@pytest.mark.parametrize(
    "data",
    [
        "def f(a): ...".encode("utf-16"),
        "def f(a): ...".encode("utf-32"),
        b"# coding: utf-8\ndef f(a): ... # \xe9",
        b"# coding: no-such-codec\ndef f(a): ...",
        b"def f(a): ...\n# \xff\xfe",
        b"\0" * 5000,
        b"\xff" * 5000,
        b"(" * 5000,
        b"'" * 5001,
        b'"""' * 5001,
        b"\\" * 5001,
        b"@" * 5001,
        b"def " * 5001,
        b"\n" * 50000,
        b"x = [\n" * 3000,
        b"class f:\n" * 3000,
        b"".join(b" " * i + b"class f:\n" for i in range(90)) + b" " * 91 + b"(",
        b"if x:\n f = (\n" * 2000,
        b"f = " + b"-" * 20000 + b"1",
        b"f = " + b"(" * 3000 + b")" * 3000,
        b"f = " + b"a." * 20000 + b"b",
        b"from . import f\n" * 2000,
        b"f = f\n" * 2000,
    ],
    ids=lambda data: repr(data[:12]),
)
def test_files_that_are_hard_to_read_take_no_time(tmp_path, data) -> None:
    start = time.perf_counter()
    finding = tree(tmp_path, a=data).probe("p.a:f")
    assert time.perf_counter() - start < SECONDS
    assert finding.status in ("found", "absent")
    assert Finding.from_dict(finding.to_dict()) == finding


@SETTINGS
@given(
    st.builds(
        lambda text, way, part, garbage: (data := way(text))[: int(len(data) * part)] + garbage,
        MODULES,
        st.sampled_from(list(ENCODINGS.values())),
        st.floats(0, 1),
        st.binary(max_size=3),
    ),
    SYMBOLS,
)
def test_a_file_cut_anywhere_gives_an_answer(tmp_path_factory, data, symbol) -> None:
    folder = tmp_path_factory.mktemp("cut")
    start = time.perf_counter()
    finding = tree(folder, a=data, other=OTHER).probe(f"p.a:{symbol}")
    assert time.perf_counter() - start < SECONDS
    assert finding.status in ("found", "absent")
    assert finding.kind is None or finding.location
    # Where the file can be parsed as a whole, that is the answer.
    whole = SourceTree(folder / "p", "p")
    whole.module("p.a").source.parse_whole()
    try:
        compile(data, "a.py", "exec")
    except (SyntaxError, ValueError):
        return
    assert answer(whole.probe(f"p.a:{symbol}")) == answer(finding)


@pytest.mark.parametrize("length", [1, 2, 3, 50, 600])
@pytest.mark.parametrize("text", ["from .{} import f", "from .{} import *", "import p.{} as f"])
def test_circles_of_any_length(tmp_path, length, text) -> None:
    files = {f"a{i}": text.format(f"a{(i + 1) % length}").encode() for i in range(length)}
    start = time.perf_counter()
    finding = tree(tmp_path, **files).probe("p.a0:f.f.f" if "import p." in text else "p.a0:f")
    assert time.perf_counter() - start < SECONDS
    if "import p." in text:
        assert (finding.status, finding.kind) == ("found", "module")
    else:
        assert finding.status == "absent"
        assert finding.note in (
            "p.a0:f is imported in a circle",
            "nested or re-exported too deeply",
        )


@pytest.mark.parametrize("length", [1, 2, 50])
def test_chains_are_followed_to_their_end(tmp_path, length) -> None:
    files = {f"a{i}": f"from .a{i + 1} import f".encode() for i in range(length)}
    files[f"a{length}"] = b"def f(a): ..."
    finding = tree(tmp_path, **files).probe("p.a0:f")
    assert (str(finding.signature), finding.location) == ("(a)", f"p.a{length}:f")


KNOTS = {
    "stars": {
        f"a{i}": "\n".join(f"from .a{j} import *" for j in range(12) if j != i) for i in range(12)
    },
    "attempts": {
        f"a{i}": "\n".join(
            f"try:\n    from .a{j} import f\nexcept ImportError: ..." for j in range(12) if j != i
        )
        for i in range(12)
    },
    "layers": {
        "a0": "from .l30 import *\nfrom .r30 import *",
        **{
            f"{side}{i}": f"from .l{i - 1} import *\nfrom .r{i - 1} import *"
            for i in range(1, 31)
            for side in "lr"
        },
        "l0": "",
        "r0": "",
    },
    "bases": {
        "a0": "\n".join(
            [
                "class L0: ...\nclass R0: ...",
                *(f"class {s}{i}(L{i - 1}, R{i - 1}): ..." for i in range(1, 31) for s in "LR"),
                "class f(L30, R30): ...",
            ]
        )
    },
}


@pytest.mark.parametrize("knot", KNOTS)
@pytest.mark.parametrize("symbol", ["p.a0:f", "p.a0:f.g"])
def test_knots_are_not_followed_for_ever(tmp_path, knot, symbol) -> None:
    source = tree(tmp_path, **{name: text.encode() for name, text in KNOTS[knot].items()})
    start = time.perf_counter()
    finding = source.probe(symbol)
    assert time.perf_counter() - start < SECONDS
    assert finding.status == "absent"
    assert finding.note == "re-exported or inherited in too many ways"


@pytest.mark.parametrize("depth", [1, 10, 90])
def test_classes_in_classes(tmp_path, depth) -> None:
    lines = [f"{' ' * i}class C:" for i in range(depth)]
    text = "\n".join([*lines, f"{' ' * depth}def f(self, deep): ...", "def f(shallow): ..."])
    source = tree(tmp_path, a=text.encode())
    assert str(source.probe(f"p.a:{'C.' * depth}f").signature) == "(deep)"
    assert source.probe(f"p.a:{'C.' * (depth + 1)}f").status == "absent"
    assert str(source.probe("p.a:f").signature) == "(shallow)"


# --- What was found so, by this and by judging made-up vLLMs --------------------------------------


def test_what_cannot_be_read_is_not_answered_by_what_stands_behind_it(tmp_path) -> None:
    text = """class Base:
    def __init__(self, wrong): ...
    def m(self, wrong): ...
class A(Base):
    def __init__[T!](self, x): ...
    def m[T!](self, x): ...
    def n(self, right): ...
def f(wrong): ...
def f[T!](x): ...
from dataclasses import dataclass
@dataclass
class D:
    a: int
    b: int = 1 2
"""
    source = tree(tmp_path, a=text.encode())
    findings = {name: source.probe(f"p.a:{name}") for name in ("A", "A.m", "A.n", "f", "D")}
    assert {name: (f.status, str(f.signature)) for name, f in findings.items()} == {
        "A": ("found", "None"),
        "A.m": ("absent", "None"),
        "A.n": ("found", "(right)"),
        "f": ("absent", "None"),
        "D": ("found", "None"),
    }
    assert findings["A"].note == (
        "p.a: could not be read: the statement at line 5;"
        " constructor unknown: __init__ of p.a:A could not be read"
    )
    assert findings["f"].note == "p.a: could not be read: the statement at line 9"
    assert source.probe("p.a:A.m").note == findings["A.m"].note


def test_a_star_from_outside_may_bring_what_is_not_found(tmp_path) -> None:
    source = tree(tmp_path, a=b"from torch import *\ndef f(a): ...")
    assert source.probe("p.a:g") == Finding(
        "p.a:g", "absent", note="the star import of torch may bring g"
    )
    assert source.probe("p.a:f").note == ""


def test_a_list_of_names_that_is_imported_may_name_anything(tmp_path) -> None:
    files = {
        "a": b"from .b import *",
        "b": b"from .c import __all__\ndef f(a): ...\nother.__all__",
        "c": b"__all__ = ['f']",
    }
    assert str(tree(tmp_path, **files).probe("p.a:f").signature) == "(a)"
