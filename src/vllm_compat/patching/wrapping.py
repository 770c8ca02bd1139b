"""What a wrapper is: the only place that knows wrapt.

wrapt is imported inside the functions: it pulls in asyncio (about 80 ms), which a process that
never imports a patched module should not pay.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType

from vllm_compat.errors import PatchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Wrapper = Callable[["Any", "Any", "tuple[Any, ...]", "dict[str, Any]"], "Any"]
"""``wrapper(wrapped, instance, args, kwargs)``, the shape of wrapt."""


def wrap_value(raw: Any, wrapper: Wrapper) -> Any:
    """Return ``raw``, an entry of some ``vars()``, wrapped; descriptors stay what they are.

    Raises:
        TypeError: ``raw`` cannot be called, so there is nothing to wrap.
    """
    import wrapt

    if isinstance(raw, property):
        return _wrap_property(raw, wrapper)
    # A classmethod object binds but cannot be called itself.
    if not (callable(raw) or isinstance(raw, classmethod)):
        raise TypeError(f"{identify(raw)} is not callable; use Replace for it")
    return wrapt.FunctionWrapper(raw, wrapper)


def wrap_method(instance: object, name: str, wrapper: Wrapper) -> None:
    """Shadow the bound method ``name`` on this one instance; ``delattr`` takes the shadow off.

    Raises:
        PatchError: the instance has no such method, or takes no attributes.
    """
    import wrapt

    try:
        setattr(instance, name, wrapt.FunctionWrapper(getattr(instance, name), wrapper))
    except (AttributeError, TypeError) as error:
        owner = f"{type(instance).__module__}.{type(instance).__qualname__}"
        raise PatchError(
            f"cannot wrap the method {name!r} on an instance of {owner}",
            found=str(error),
            needed="an existing method and an instance that takes attributes",
            next_step="patch the class instead, with Wrap",
        ) from error


def foreign_wrapper(raw: Any) -> str | None:
    """Say who wrapped ``raw``, an entry of some ``vars()``; None if nobody did."""
    # staticmethod and classmethod have a ``__wrapped__`` of their own.
    if isinstance(raw, (staticmethod, classmethod)) and type(raw).__module__ == "builtins":
        raw = raw.__func__
    elif isinstance(raw, property):
        raw = raw.fget
    return identify(raw) if hasattr(raw, "__wrapped__") else None


def identify(value: Any) -> str:
    """Name an object and the module its code is from, without running its ``__repr__``."""
    code = getattr(value, "_self_wrapper", value)
    if isinstance(code, FunctionType):
        # Not ``__module__``: functools.wraps copies that one from the wrapped function.
        module, name = code.__globals__.get("__name__", "?"), code.__code__.co_name
    else:
        module, name = type(code).__module__, type(code).__qualname__
    kind = type(value).__name__
    return f"{kind} of {module}.{name}" if kind != name else f"{module}.{name}"


def _wrap_property(raw: property, wrapper: Wrapper) -> property:
    getter = raw.fget
    if getter is None:
        raise TypeError("the property has no getter")

    @functools.wraps(getter)
    def wrapped_getter(instance: Any) -> Any:
        return wrapper(MethodType(getter, instance), instance, (), {})

    # getter() keeps the setter, the deleter, the documentation and the property's class.
    return raw.getter(wrapped_getter)
