"""Signatures: comparison, text, JSON, and whether a call binds."""

from __future__ import annotations

import inspect
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_compat.probe import Finding, Parameter, Signature
from vllm_compat.probe.live import signature_of

VARIADIC = ("var_positional", "var_keyword")


def of(text: str) -> Signature:
    """The signature of a function whose parameters are written as ``text``."""
    return signature_of(eval(f"lambda {text}: None"))


def test_neither_default_nor_init_only_is_compared():
    plain = Parameter("a", "keyword_only", required=False, default="1")
    other = Parameter("a", "keyword_only", required=False, default="2", init_only=True)
    assert plain == other
    assert hash(Signature((plain,))) == hash(Signature((other,)))
    assert plain != Parameter("a", "keyword_only", required=True)
    assert plain != Parameter("a", "positional_or_keyword", required=False)
    assert plain != Parameter("b", "keyword_only", required=False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "()"),
        ("a, b=1", "(a, b=...)"),
        ("a, /", "(a, /)"),
        ("a, /, b, *, c, d=1", "(a, /, b, *, c, d=...)"),
        ("a=1, *args, b, **kwargs", "(a=..., *args, b, **kwargs)"),
        ("*, b=1", "(*, b=...)"),
        ("a, /, *args", "(a, /, *args)"),
        ("**kwargs", "(**kwargs)"),
    ],
)
def test_text(text, shown):
    assert str(of(text)) == shown


def test_names_leave_out_the_variadic_parameters():
    assert of("a, /, b, *args, c, **kwargs").names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("text", "name", "accepts", "requires"),
    [
        ("a", "a", True, True),
        ("a=1", "a", True, False),
        ("*, a", "a", True, True),
        ("a", "b", False, False),
        ("a, /", "a", False, True),
        ("a, /, **kwargs", "a", True, True),
        ("**kwargs", "b", True, False),
        ("**kwargs", "kwargs", True, False),
        ("*args", "args", False, False),
    ],
)
def test_accepts_and_requires(text, name, accepts, requires):
    assert of(text).accepts(name) is accepts
    assert of(text).requires(name) is requires


@pytest.mark.parametrize(
    ("text", "positional", "keywords", "problems"),
    [
        ("a, b=1", 1, (), ()),
        ("a, b=1", 0, ("b",), ("missing required a",)),
        ("a, b=1", 3, (), ("too many positional: 3 given, 2 taken",)),
        ("a, *args", 3, (), ()),
        ("a, b", 1, ("a",), ("a given twice", "missing required b")),
        ("a", 1, ("z", "y"), ("unexpected keyword y", "unexpected keyword z")),
        ("a, /", 0, ("a",), ("unexpected keyword a", "missing required a")),
        ("a, /, **kwargs", 1, ("a",), ()),
        ("*, a, b=1", 1, ("b",), ("too many positional: 1 given, 0 taken", "missing required a")),
        ("a, /, b, *, c", 0, (), tuple(f"missing required {name}" for name in "abc")),
    ],
)
def test_problems(text, positional, keywords, problems):
    assert of(text).problems(positional, keywords) == problems


@st.composite
def parameter_lists(draw):
    names = iter("abcdefgh")
    parts = []
    optional = False
    only = draw(st.integers(0, 2))
    for index in range(only + draw(st.integers(0, 2))):
        optional = optional or draw(st.booleans())
        parts.append(next(names) + ("=1" if optional else ""))
        if index == only - 1:
            parts.append("/")
    star = draw(st.sampled_from(["", "*", "*args"]))
    keyword_only = [
        next(names) + draw(st.sampled_from(["", "=1"])) for _ in range(draw(st.integers(0, 2)))
    ]
    if star == "*args" or (star and keyword_only):
        parts += [star, *keyword_only]
    if draw(st.booleans()):
        parts.append("**kwargs")
    return ", ".join(parts)


@given(parameter_lists(), st.integers(0, 5), st.sets(st.sampled_from("abcdefz")))
def test_problems_agree_with_python(text, positional, keywords):
    function = eval(f"lambda {text}: None")
    try:
        function(*[0] * positional, **dict.fromkeys(keywords, 0))
        binds = True
    except TypeError:
        binds = False
    assert (of(text).problems(positional, keywords) == ()) is binds


@given(parameter_lists())
def test_accepts_and_requires_agree_with_python(text):
    signature = of(text)
    for parameter in inspect.signature(eval(f"lambda {text}: None")).parameters.values():
        required = parameter.default is parameter.empty and parameter.name not in (
            "args",
            "kwargs",
        )
        assert signature.requires(parameter.name) is required


@given(parameter_lists())
def test_signatures_and_findings_survive_json(text):
    signature = of(text)
    again = Signature.from_dict(json.loads(json.dumps(signature.to_dict())))
    assert again == signature
    assert [p.default for p in again.parameters] == [p.default for p in signature.parameters]
    finding = Finding("m:f", "moved", "function", signature, "n:f", "n.py", 3, "a note")
    assert Finding.from_dict(json.loads(json.dumps(finding.to_dict()))) == finding
    absent = Finding("m:f", "absent", note="no module m")
    assert Finding.from_dict(json.loads(json.dumps(absent.to_dict()))) == absent
