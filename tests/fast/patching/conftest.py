"""Made-up packages to patch, imported afresh by every test."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vllm_compat.patching.imports import _watchers
from vllm_compat.patching.slot import live, retired

TARGET = """
def f(x):
    return ("f", x)

class Base:
    def inherited(self, x):
        return ("inherited", x)

class C(Base):
    size = 3
    def method(self, x):
        return ("method", x)
    @staticmethod
    def static(x):
        return ("static", x)
    @classmethod
    def cls(cls, x):
        return ("cls", cls.__name__, x)
    @property
    def prop(self):
        "what prop is"
        return ("prop", self.size)
    @prop.setter
    def prop(self, value):
        self.size = value
"""
CONSUMER = """
from made_up.target import C, f

def use(x):
    return f(x)
"""


class Packages:
    """Writes modules below one folder on ``sys.path``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("made_up.target", TARGET)
        self.write("made_up.consumer", CONSUMER)

    def write(self, name: str, text: str) -> None:
        *parents, last = name.split(".")
        folder = self.root
        for parent in parents:
            folder /= parent
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
        (folder / f"{last}.py").write_text(text)
        importlib.invalidate_caches()

    @staticmethod
    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    @staticmethod
    def forget(name: str) -> None:
        del sys.modules[name]


@pytest.fixture(scope="module")
def module_packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """For other processes; not on the path of this one."""
    return Packages(tmp_path_factory.mktemp("packages"))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # sources change within a second
    before_modules, before_path = set(sys.modules), list(sys.meta_path)
    yield Packages(tmp_path)
    for name in set(sys.modules) - before_modules:
        if name.partition(".")[0] == "made_up":
            del sys.modules[name]
    left = {**live}, {**_watchers}, [*sys.meta_path]
    # One test that fails is not to make the others fail.
    live.clear()
    retired.clear()
    _watchers.clear()
    sys.meta_path[:] = before_path
    assert left == ({}, {}, before_path)


@pytest.fixture
def mark() -> Callable[..., Any]:
    """A wrapper that shows it was there, and for which instance."""

    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return ("wrapped", instance, wrapped(*args, **kwargs))

    return wrapper
