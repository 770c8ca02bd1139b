"""Run in a process of its own: the events given, in their order, with checks after each."""

from __future__ import annotations

import importlib
import sys
from types import FunctionType
from typing import Any

from vllm_compat.patching import Add, PatchSet, Replace, Wrap

T, CONSUMER = "made_up.target", "made_up.consumer"


def mark(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return ("wrapped", wrapped(*args, **kwargs))


PATCHES = PatchSet(
    [
        Wrap(T, "f", mark, "a"),
        Wrap(T, "C.method", mark, "a"),
        Wrap(T, "C.inherited", mark, "a"),
        Wrap(T, "C.static", mark, "a"),
        Wrap(T, "C.prop", mark, "a"),
        Replace(T, "C.size", lambda size: size + 1, "a"),
        Add(T, "extra", lambda module: module.f, "a"),
        Wrap(CONSUMER, "f", mark, "a"),
        Wrap(CONSUMER, "C.method", mark, "a"),
        Wrap(CONSUMER, "use", mark, "a"),
    ]
)
META_PATH = [*sys.meta_path]
clean: dict[str, tuple[Any, dict[str, Any]]] = {}


def containers() -> dict[str, Any]:
    found = {}
    for name in (T, CONSUMER):
        if name in sys.modules:
            found[name] = sys.modules[name]
    if T in found:
        found["C"], found["Base"] = found[T].C, found[T].Base
    return found


def check_behaviour(installed: bool) -> None:
    def seen(value: Any) -> Any:
        return ("wrapped", value) if installed else value

    target, consumer = sys.modules.get(T), sys.modules.get(CONSUMER)
    if target is not None:
        c = target.C()
        assert target.f(1) == seen(("f", 1))
        assert c.method(1) == seen(("method", 1))
        assert c.inherited(1) == seen(("inherited", 1))
        assert target.Base().inherited(1) == ("inherited", 1)
        assert target.C.static(1) == seen(("static", 1))
        assert c.prop == seen(("prop", 3 + installed))
        assert hasattr(target, "extra") is installed
        if installed:
            assert target.extra(1) == ("f", 1)
    if consumer is not None:
        assert consumer.f(1) == seen(("f", 1))
        assert consumer.use(1) == seen(seen(("f", 1)))
        assert consumer.C().method(1) == seen(("method", 1))
    assert PATCHES.installed is installed
    assert PATCHES.foreign == ()


def check_exactness() -> None:
    """Everything is as it was, or, if imported while patched, as it would have been."""
    assert sys.meta_path == META_PATH
    for name, container in containers().items():
        now = vars(container)
        if name in clean:
            before_container, before = clean[name]
            assert container is before_container
            assert set(now) == set(before)
            assert [key for key in now if now[key] is not before[key]] == []
    if T in sys.modules:
        target = sys.modules[T]
        assert type(target.f) is FunctionType
        assert type(vars(target.C)["method"]) is FunctionType
        assert type(vars(target.C)["static"]) is staticmethod
        assert vars(target.C)["prop"].fget.__globals__ is vars(target)
        assert "inherited" not in vars(target.C)
        assert "extra" not in vars(target)
    if CONSUMER in sys.modules:
        consumer = sys.modules[CONSUMER]
        assert consumer.f is sys.modules[T].f
        assert type(consumer.use) is FunctionType


def run(events: list[str]) -> None:
    installed = False
    for event in events:
        if event == "target":
            importlib.import_module(T)
        elif event == "consumer":
            importlib.import_module(CONSUMER)
        elif event == "revert":
            PATCHES.revert()
            installed = False
        else:
            assert event in {"install", "again"}
            PATCHES.install()
            installed = True
        check_behaviour(installed)
        if not installed:
            check_exactness()
            for name, container in containers().items():
                clean.setdefault(name, (container, {**vars(container)}))
    PATCHES.revert()
    check_behaviour(False)
    check_exactness()


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    run(sys.argv[2:])
    print("done")
