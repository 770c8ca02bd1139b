"""The values, and what wrapping does to each kind of attribute."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vllm_compat.errors import PatchError, VllmCompatError
from vllm_compat.patching import Add, PatchSet, Replace, Wrap, wrap_method

T = "made_up.target"


def test_importing_the_engine_imports_no_wrapt():
    code = (
        "import sys; from vllm_compat.patching import PatchSet, Wrap\n"
        "PatchSet([Wrap('absent', 'f', print, 'a')]).install(); print('wrapt' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


def test_describe(mark):
    assert Wrap("m", "C.x", mark, "adapter").describe() == "adapter: m.C.x"
    assert Replace("m", "x", mark, "adapter").describe() == "adapter: m.x"
    assert Add("m", "x", mark, "adapter").describe() == "adapter: m.x"


def test_patch_error_is_one_of_ours():
    assert issubclass(PatchError, VllmCompatError)


def test_every_kind_of_attribute_is_wrapped_as_what_it_is(packages, mark):
    target = packages.load(T)
    paths = ("f", "C.method", "C.inherited", "C.static", "C.cls", "C.prop")
    before = {**vars(target.C)}, {**vars(target.Base)}, {**vars(target)}
    patches = PatchSet([Wrap(T, path, mark, "a") for path in paths])
    patches.install()
    c, cls = target.C(), target.C
    assert target.f(1) == ("wrapped", None, ("f", 1))
    assert c.method(1) == ("wrapped", c, ("method", 1))
    assert c.inherited(1) == ("wrapped", c, ("inherited", 1))
    assert c.static(1) == cls.static(1) == ("wrapped", None, ("static", 1))
    assert c.cls(1) == cls.cls(1) == ("wrapped", cls, ("cls", "C", 1))
    assert c.prop == ("wrapped", c, ("prop", 3))
    c.prop = 4
    assert c.prop == ("wrapped", c, ("prop", 4))
    assert type(vars(cls)["prop"]) is property
    assert cls.prop.__doc__ == "what prop is"
    assert target.Base().inherited(1) == ("inherited", 1)
    patches.revert()
    assert_same(vars(target.C), before[0])
    assert "inherited" not in vars(target.C)
    assert_same(vars(target.Base), before[1])
    assert_same(vars(target), before[2])
    assert c.prop == ("prop", 4)


def assert_same(now, before):
    assert set(now) == set(before)
    assert [key for key in now if now[key] is not before[key]] == []


def test_a_class_in_a_namespace_is_wrapped_as_a_callable(packages, mark):
    target = packages.load(T)
    cls = target.C
    patches = PatchSet([Wrap(T, "C", mark, "a")])
    patches.install()
    tag, instance, made = target.C()
    assert (tag, instance, type(made)) == ("wrapped", None, cls)
    assert isinstance(made, target.C)
    patches.revert()
    assert target.C is cls


def test_method_of_a_wrapped_class_is_patched_in_the_class(packages, mark):
    target = packages.load(T)
    cls = target.C
    outer = PatchSet([Wrap(T, "C", lambda w, i, a, k: w(*a, **k), "a")])
    inner = PatchSet([Wrap(T, "C.method", mark, "b")])
    outer.install()
    inner.install()
    c = target.C()
    assert c.method(1) == ("wrapped", c, ("method", 1))
    assert "method" in vars(cls)
    outer.revert()
    inner.revert()
    assert cls().method(1) == ("method", 1)


def test_replace_gets_the_present_value_and_add_the_module(packages):
    target = packages.load(T)
    patches = PatchSet(
        [
            Replace(T, "C.size", lambda n: n * 2, "a"),
            Replace(T, "f", lambda f: lambda x: ("new", f(x)), "a"),
            Add(T, "g", lambda module: module.f, "a"),
        ]
    )
    original = target.f
    patches.install()
    assert (target.C.size, target.f(1), target.g) == (6, ("new", ("f", 1)), original)
    patches.revert()
    assert (target.C.size, target.f, hasattr(target, "g")) == (3, original, False)


def test_patches_of_one_place_stack_in_the_order_given(packages):
    target = packages.load(T)
    original = target.f

    def one(wrapped, instance, args, kwargs):
        return ("one", wrapped(*args))

    def two(wrapped, instance, args, kwargs):
        return ("two", wrapped(*args))

    patches = PatchSet(
        [
            Wrap(T, "f", one, "a"),
            Wrap(T, "f", two, "b"),
            Add(T, "g", lambda module: original, "a"),
            Wrap(T, "g", one, "a"),
        ]
    )
    patches.install()
    assert target.f(1) == ("two", ("one", ("f", 1)))
    assert target.g(1) == ("one", ("f", 1))
    patches.revert()
    assert target.f is original
    assert not hasattr(target, "g")


def test_an_exception_comes_out_unchanged(packages):
    target = packages.load(T)
    error = KeyError("mine")

    def fails(wrapped, instance, args, kwargs):
        raise error

    patches = PatchSet([Wrap(T, "f", fails, "a")])
    patches.install()
    with pytest.raises(KeyError) as caught:
        target.f(1)
    patches.revert()
    assert caught.value is error
    assert caught.value.__cause__ is None


def test_add_takes_the_bare_name_of_a_module_attribute():
    with pytest.raises(PatchError, match=r"cannot declare a: m\.C\.x") as caught:
        PatchSet([Add("m", "C.x", lambda m: 1, "a")])
    assert caught.value.found == "the path 'C.x'"


def test_wrap_method_shadows_one_instance(packages, mark):
    cls = packages.load(T).C
    one, other = cls(), cls()
    wrap_method(one, "method", mark)
    assert one.method(1) == ("wrapped", one, ("method", 1))
    assert other.method(1) == ("method", 1)
    del one.method
    assert one.method(1) == ("method", 1)


def test_wrap_method_names_what_is_missing(mark):
    with pytest.raises(PatchError, match="cannot wrap the method 'absent' on an instance of") as e:
        wrap_method(object(), "absent", mark)
    assert isinstance(e.value.__cause__, AttributeError)
    with pytest.raises(PatchError, match="'__str__'"):
        wrap_method(object(), "__str__", mark)
