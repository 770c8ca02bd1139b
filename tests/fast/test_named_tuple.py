"""The named tuples of this package behave like those of ``typing``."""

from __future__ import annotations

import pickle
import subprocess
import sys
import typing

import pytest

from vllm_compat import named_tuple

MODULES_NOT_LOADED = """
import sys, vllm_compat
print([name for name in ("typing", "dataclasses", "inspect") if name in sys.modules])
"""


class Ours(named_tuple.NamedTuple):
    """A value."""

    a: int
    b: str = "two"
    c: tuple[int, ...] = ()

    def doubled(self) -> int:
        return 2 * self.a


class Theirs(typing.NamedTuple):
    """A value."""

    a: int
    b: str = "two"
    c: tuple[int, ...] = ()

    def doubled(self) -> int:
        return 2 * self.a


CALLS = [((1,), {}), ((1, "x"), {}), ((1, "x", (3,)), {}), ((), {"a": 1}), ((1,), {"c": (4,)})]


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_values_are_those_of_typing(args, kwargs):
    ours, theirs = Ours(*args, **kwargs), Theirs(*args, **kwargs)
    assert tuple(ours) == tuple(theirs)
    assert (ours.a, ours.b, ours.c) == (theirs.a, theirs.b, theirs.c)
    assert ours._asdict() == theirs._asdict()
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert ours.doubled() == theirs.doubled() == 2
    assert ours == tuple(theirs)
    assert hash(ours) == hash(theirs)
    assert ours._replace(b="new") == tuple(theirs._replace(b="new"))
    assert pickle.loads(pickle.dumps(ours)) == ours


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, "x", (), 4), {}), ((1,), {"a": 1}), ((1,), {"d": 1}), ((), {"b": "x"})],
)
def test_what_typing_refuses_is_refused(args, kwargs):
    for kind in (Ours, Theirs):
        with pytest.raises(TypeError):
            kind(*args, **kwargs)


def test_fields_cannot_be_set_and_there_are_no_others():
    value = Ours(1)
    for name in ("a", "other"):
        with pytest.raises(AttributeError):
            setattr(value, name, 2)


def test_a_class_pattern_takes_the_fields_in_order():
    match Ours(1, "x"):
        case Ours(a, b, ()):
            assert (a, b) == (1, "x")
        case _:
            pytest.fail("did not match")


def test_importing_the_package_brings_none_of_the_slow_modules():
    output = subprocess.run(
        [sys.executable, "-I", "-c", MODULES_NOT_LOADED], check=True, capture_output=True, text=True
    ).stdout
    assert output.strip() == "[]"
