"""Patches as values, and where in a module they go."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

from vllm_compat.errors import PatchError
from vllm_compat.named_tuple import NamedTuple
from vllm_compat.patching.wrapping import Wrapper, identify, wrap_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias


class Wrap(NamedTuple):
    """Call ``wrapper`` around an existing function, method, property getter or class."""

    module: str
    path: str
    wrapper: Wrapper
    owner: str

    def describe(self) -> str:
        """Return ``owner: module.path``."""
        return f"{self.owner}: {self.module}.{self.path}"

    def build(self, current: Any, _module: ModuleType) -> Any:
        """Return the new value."""
        return wrap_value(current, self.wrapper)


class Replace(NamedTuple):
    """Put ``factory(current)`` in the place of an existing module or class attribute.

    ``current`` is what ``vars()`` holds: for a class attribute the raw descriptor.
    """

    module: str
    path: str
    factory: Callable[[Any], Any]
    owner: str

    def describe(self) -> str:
        """Return ``owner: module.path``."""
        return f"{self.owner}: {self.module}.{self.path}"

    def build(self, current: Any, _module: ModuleType) -> Any:
        """Return the new value."""
        return self.factory(current)


class Add(NamedTuple):
    """Add ``factory(module)`` as a module attribute that is absent, say a symbol that moved."""

    module: str
    path: str
    factory: Callable[[ModuleType], Any]
    owner: str

    def describe(self) -> str:
        """Return ``owner: module.path``."""
        return f"{self.owner}: {self.module}.{self.path}"

    def build(self, _current: Any, module: ModuleType) -> Any:
        """Return the new value."""
        return self.factory(module)


class AddModule(NamedTuple):
    """Make ``factory(module)`` importable as the submodule ``path`` of ``module``, which has none.

    It is put into ``sys.modules`` as soon as the parent is imported, which is before Python looks
    for the submodule.
    """

    module: str
    path: str
    factory: Callable[[ModuleType], ModuleType]
    owner: str

    def describe(self) -> str:
        """Return ``owner: module.path``."""
        return f"{self.owner}: {self.module}.{self.path}"

    @property
    def action(self) -> Callable[..., Any]:
        """What makes this patch differ from another one of the same place."""
        return self.factory

    def build(self, current: Any, module: ModuleType) -> Any:  # noqa: ARG002 - one signature
        """Return the new value."""
        return self.factory(module)


Patch: TypeAlias = Wrap | Replace | Add | AddModule


def adds(patch: Patch) -> bool:
    """Whether a patch adds something that must not be there yet."""
    return isinstance(patch, (Add, AddModule))


def same_action(one: Patch, other: Patch) -> bool:
    """Whether two patches do the same thing, wherever they do it."""
    return type(one) is type(other) and _action(one) == _action(other)


def _action(patch: Patch) -> Callable[..., Any]:
    return patch.wrapper if isinstance(patch, Wrap) else patch.factory


class _Missing:
    """Stands for the value of an attribute that is not there."""


MISSING = _Missing()


class Place(NamedTuple):
    """One entry in the ``vars()`` of a module or a class, or in ``sys.modules``."""

    container: Any
    name: str

    @property
    def key(self) -> tuple[int, str]:
        """Identify the place; by identity, as containers may compare equal or not hash."""
        return id(self.container), self.name

    @property
    def _entries(self) -> Any:
        return self.container if isinstance(self.container, dict) else vars(self.container)

    def read(self) -> Any:
        """Return the entry, or MISSING: an inherited attribute is not an entry."""
        return self._entries.get(self.name, MISSING)

    def lookup(self) -> Any:
        """Return the raw entry here or the one inherited, or MISSING."""
        if isinstance(self.container, type):
            for cls in self.container.__mro__:
                if self.name in vars(cls):
                    return vars(cls)[self.name]
        return self.read()

    def write(self, value: Any) -> None:
        """Set the entry, or remove it for MISSING.

        Past ``__setattr__`` of metaclasses and module subclasses, which may turn the write into
        something that cannot be undone.
        """
        if isinstance(self.container, type):
            if value is MISSING:
                type.__delattr__(self.container, self.name)
            else:
                type.__setattr__(self.container, self.name, value)
        elif value is MISSING:
            del self._entries[self.name]
        else:
            self._entries[self.name] = value


def locate(module: ModuleType, patch: Patch) -> Place:
    """Find the place ``patch`` names in ``module``, looking at nothing but ``vars()``.

    Attribute access could run a module's ``__getattr__`` and import half a package.

    Raises:
        PatchError: a class on the way there is missing.
    """
    if isinstance(patch, AddModule):
        return Place(sys.modules, f"{patch.module}.{patch.path}")
    container: Any = module
    *parents, name = patch.path.split(".")
    walked = patch.module
    for parent in parents:
        walked = f"{walked}.{parent}"
        container = _class_under(Place(container, parent).lookup())
        if not isinstance(container, type):
            found = "does not exist" if container is MISSING else f"is {identify(container)}"
            raise _mismatch(patch, module, found=f"{walked} {found}", needed="a class")
    return Place(container, name)


def require(place: Place, module: ModuleType, patch: Patch) -> None:
    """Check that the place is as the patch needs it.

    Raises:
        PatchError: there is no attribute to change, or one where one is to be added.
    """
    present = place.lookup()
    if adds(patch):
        if present is not MISSING:
            found = f"it is already there: {identify(present)}"
            raise _mismatch(patch, module, found=found, needed="a name that is free")
    elif present is MISSING:
        raise _mismatch(patch, module, found="no such attribute", needed="an existing attribute")


def _class_under(value: Any) -> Any:
    # A class that somebody wrapped: its methods live in the class, not in the wrapper, and
    # isinstance() cannot tell them apart.
    while not issubclass(type(value), type) and hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    return value


def _mismatch(patch: Patch, module: ModuleType, *, found: str, needed: str) -> PatchError:
    file = getattr(module, "__file__", None) or "a module without a file"
    return PatchError(
        f"cannot patch {patch.describe()} in {file}",
        found=found,
        needed=needed,
        next_step=f"the adapter {patch.owner!r} does not know this version of "
        f"{patch.module.partition('.')[0]}; use a version it knows, or report this",
    )
