"""Sources nobody wrote: the probe answers, soon, and as Python itself would have it.

Modules are made from a small grammar of code that runs, so the oracle is not a second reader but the
module, executed and looked at.
"""

from __future__ import annotations

import inspect
import time
from textwrap import indent

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
        self.other: dict[str, object] = {"__name__": "p.other"}
        exec(OTHER.decode(), self.other)
        self.space: dict[str, object] = {"__name__": "p.a", "__package__": "p"}
        builtins = dict(vars(__import__("builtins")))
        real = builtins["__import__"]

        def importing(name, globals=None, locals=None, fromlist=(), level=0):
            if not level:
                return real(name, globals, locals, fromlist, level)
            if name != "other":
                raise ImportError(name)
            return type(
                "Other",
                (),
                {k: staticmethod(v) if inspect.isfunction(v) else v for k, v in self.other.items()},
            )

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
