"""Tell a watcher when a module has been executed, before anybody gets to see it.

Not wrapt.importer, for these reasons: it brings all of wrapt in; its hooks can be neither withdrawn
nor run again for a reload or a second import; its finder stays in ``sys.meta_path``; and its
re-entrance guard is shared by all threads, so that a look-up in one thread can hide an import in
another.

The lock order is: the import system's lock of a module first, then `LOCK`. So nothing that may
import (a factory, wrapt itself) may run while `LOCK` is held.
"""

from __future__ import annotations

import importlib._bootstrap
import os
import sys
from _thread import RLock, get_ident  # as threading's, whose import takes a millisecond
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from vllm_compat.errors import PatchError
from vllm_compat.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOCK = RLock()
"""Guards everything this package changes; held for moments, never while foreign code runs."""

if hasattr(os, "register_at_fork"):
    # A child must inherit neither a lock whose holder it lacks nor half a transaction.
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release
    )


class Watcher(NamedTuple):
    """Wants to know about the execution of modules."""

    lift: Callable[[ModuleType], bool]
    """Called before; takes earlier patches off, and returns whether it knew this module."""
    patch: Callable[[str, ModuleType], None]
    """Called after, even if unwatched meanwhile; what it raises becomes the import's error."""


_watchers: dict[str, tuple[Watcher, ...]] = {}
_executing: set[int] = set()


def watch(names: Iterable[str], watcher: Watcher) -> None:
    """Report the execution of these modules from now on. The caller holds `LOCK`."""
    for name in names:
        present = _watchers.get(name, ())
        if watcher not in present:
            _watchers[name] = (*present, watcher)
    if _watchers and not any(finder is _FINDER for finder in sys.meta_path):
        sys.meta_path.insert(0, _FINDER)


def unwatch(names: Iterable[str], watcher: Watcher) -> None:
    """Report nothing any more. The caller holds `LOCK`."""
    for name in names:
        remaining = tuple(other for other in _watchers.get(name, ()) if other != watcher)
        if remaining:
            _watchers[name] = remaining
        else:
            _watchers.pop(name, None)
    if not _watchers and any(finder is _FINDER for finder in sys.meta_path):
        # A new list: removing from the present one would make an import that is walking it
        # in another thread skip a finder, and fail to find its module.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not _FINDER]


def wait_for_import(name: str) -> None:
    """Let an import of ``name`` end which began, in another thread, before it was watched.

    Returns at once if this thread is the one that imports it, or if waiting would deadlock.
    """
    # No public call takes a module's import lock without importing the module. Without it, an
    # import that is between finding the module and publishing it would go unseen.
    importlib._bootstrap._lock_unlock_module(name)  # type: ignore[attr-defined]


def is_executing(module: ModuleType) -> bool:
    """Whether an import has yet to finish the module."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def will_be_reported(module: ModuleType) -> bool:
    """Whether a module that is executing goes through our loader."""
    spec = getattr(module, "__spec__", None)
    return id(module) in _executing or isinstance(getattr(spec, "loader", None), _ReportingLoader)


def imports_running() -> bool:
    """Whether any watched module is executing now, in whatever thread."""
    return bool(_executing)


class _Finder:
    """Lets the finders after it find a watched module, and puts our loader around theirs."""

    def __init__(self) -> None:
        self._asking: set[tuple[int, str]] = set()  # threads, and what each asks the others for

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # No lock here: this runs for every import of the process.
        if fullname not in _watchers or (asking := (get_ident(), fullname)) in self._asking:
            return None
        self._asking.add(asking)
        try:
            spec = self._ask_the_others(fullname, path, target)
        finally:
            self._asking.discard(asking)
        if spec is None or isinstance(spec.loader, _ReportingLoader):
            return spec
        if not hasattr(spec.loader, "exec_module"):
            raise PatchError(
                f"cannot patch the module {fullname!r}",
                found=f"its loader {type(spec.loader).__name__} has no exec_module()",
                needed="a module that is executed by its loader",
                next_step="import it before the patches are installed",
            )
        # The loader goes in an object of its own: some are shared by many modules, and some
        # are classes, so that setting an attribute on them would reach too far.
        spec.loader = _ReportingLoader(spec, spec.loader)  # type: ignore[assignment]
        return spec

    def _ask_the_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        # Only those after this one: those before were asked already, or are asking us.
        behind = False
        for finder in list(sys.meta_path):
            if behind and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
            behind = behind or finder is self
        return None


class _ReportingLoader:
    """Stands in for a loader until the module is executed; then the module has its own again."""

    def __init__(self, spec: ModuleSpec, loader: Any) -> None:
        self._spec = spec
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # a copy under construction has none yet
            raise AttributeError(name)
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module and report it to the watchers."""
        _executing.add(id(module))
        try:
            # Code that looks at its own loader, as importlib.resources does, finds the real one.
            self._spec.loader = self._loader
            if getattr(module, "__loader__", None) is self:
                module.__loader__ = self._loader
            self._execute_and_report(module)
        finally:
            _executing.discard(id(module))

    def _execute_and_report(self, module: ModuleType) -> None:
        name = self._spec.name
        watching = _watchers.get(name, ())
        published = sys.modules.get(name) is module
        known: list[Watcher] = []
        try:
            known.extend(watcher for watcher in watching if watcher.lift(module))
            self._loader.exec_module(module)
        except BaseException:
            # A reload that fails leaves the module in use, so it must not lose its patches;
            # a first import that fails leaves nothing to patch.
            _report(known, name, module)
            raise
        if published:  # a module may have put another object in its place
            module = sys.modules.get(name, module)
        # Also to those who left meanwhile: the module may have copied something of theirs.
        _report([*dict.fromkeys((*watching, *_watchers.get(name, ())))], name, module)


def _report(watchers: Sequence[Watcher], name: str, module: ModuleType) -> None:
    if watchers:
        try:
            watchers[0].patch(name, module)
        finally:  # the failure of one set is not a reason to leave another one's patches out
            _report(watchers[1:], name, module)


_FINDER = _Finder()
