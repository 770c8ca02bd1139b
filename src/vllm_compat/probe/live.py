"""Find symbols in imported modules, and read how live objects are called."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from importlib import import_module
from typing import TYPE_CHECKING

from .finding import Finding, first_found
from .parameters import without_first
from .signature import Parameter, Signature

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .finding import SymbolKind

_MISSING = object()


def signature_of(obj: Any) -> Signature:
    """How ``obj`` is called; a class gives its constructor.

    Wrappers that name what they wrap give its signature. ``self`` and ``cls`` are dropped,
    also from a plain function of a class body whose first parameter is called so.
    Raises TypeError if ``obj`` has no readable signature, like many builtins and all enums.
    """
    method = "." in getattr(obj, "__qualname__", "").rpartition("<locals>.")[2]
    signature = _read(obj)
    if method and inspect.isroutine(obj) and signature.names[:1] in (("self",), ("cls",)):
        return without_first(signature)
    return signature


def probe_live(symbol: str, candidates: Sequence[str] = ()) -> Finding:
    """Import the module of ``symbol`` ("package.module:Qual.name") and look at the symbol.

    Falls back on the ``candidates`` as SourceTree.probe does. Never raises for what the import
    or the look-up raises: that is ``absent``, and the note says why.
    """
    return first_found(_find, symbol, candidates)


def _find(symbol: str) -> Finding:
    module_name, _, qualified = symbol.partition(":")
    try:
        obj: Any = import_module(module_name)
        raw, owner = obj, None
        for name in qualified.split(".") if qualified else ():
            owner, obj = obj, getattr(obj, name)
            # What the class itself stores tells a static method from a plain one.
            raw = inspect.getattr_static(owner, name, obj)
    except Exception as error:
        note = f"{type(error).__name__}: {error}"
        return Finding(symbol, "absent", note=note)
    kind = _kind(obj if inspect.isclass(obj) else raw)
    signature = None
    note = ""
    if kind in ("function", "class"):
        try:
            signature = _read(obj)
        except TypeError as error:
            note = str(error)
        else:
            is_bound = isinstance(raw, staticmethod | classmethod) or not inspect.isclass(owner)
            if kind == "function" and not is_bound:
                signature = without_first(signature)
    where = obj.__name__ if kind == "module" else f"{module_name}:{qualified}"
    if kind in ("function", "class"):
        home = getattr(obj, "__module__", None) or module_name
        name = getattr(obj, "__qualname__", qualified)
        where = f"{home}:{qualified if '<' in name else name}"
    return Finding(symbol, "found", kind, signature, where, note=note)


def _kind(raw: Any) -> SymbolKind:
    if inspect.isclass(raw):
        return "class"
    if inspect.ismodule(raw):
        return "module"
    # Wrappers are no routines themselves, but name the routine which they wrap.
    is_function = callable(raw) and inspect.isroutine(inspect.unwrap(raw))
    if is_function or isinstance(raw, staticmethod | classmethod):
        return "function"
    return "value"


def _read(obj: Any) -> Signature:
    if inspect.isclass(obj) and issubclass(obj, enum.Enum):
        raise TypeError(f"{obj!r} is an enum, it has members instead of a constructor")
    try:
        found = inspect.signature(obj)
        if inspect.isclass(obj) and found.parameters and _is_variadic(found):
            # A __new__ which takes anything leaves the word to __init__.
            init = getattr(obj, "__init__", None)
            if inspect.isfunction(init):
                return without_first(_converted(inspect.signature(init), obj))
    except ValueError as error:
        raise TypeError(f"{obj!r} has no readable signature: {error}") from error
    return _converted(found, obj)


def _is_variadic(found: inspect.Signature) -> bool:
    return all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in found.parameters.values())


def _converted(found: inspect.Signature, obj: Any) -> Signature:
    fields = getattr(obj, "__dataclass_fields__", {})
    parameters = []
    for parameter in found.parameters.values():
        name = parameter.name
        optional = parameter.default is not parameter.empty
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        # InitVar has no public mark; a field which fields() hides and init takes is one.
        kind: Any = parameter.kind.name.lower()
        hidden = name in fields and name not in _public_fields(obj)
        default = _text(parameter.default) if optional else None
        parameters.append(Parameter(name, kind, not optional and not variadic, default, hidden))
    return Signature(tuple(parameters))


def _public_fields(obj: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(obj)}


def _text(default: object) -> str:
    try:
        return repr(default)
    except Exception:
        return f"<{type(default).__name__}>"
