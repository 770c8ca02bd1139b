"""Signatures out of parsed parameter lists."""

from __future__ import annotations

import ast

from .signature import Parameter, Signature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .signature import Kind


def of_arguments(args: ast.arguments) -> Signature:
    """The signature of a `def` or lambda."""
    positional = [*args.posonlyargs, *args.args]
    # Defaults belong to the last of the positional parameters.
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
    defaults += args.defaults
    found = []
    for index, (arg, default) in enumerate(zip(positional, defaults, strict=True)):
        only = index < len(args.posonlyargs)
        kind: Kind = "positional_only" if only else "positional_or_keyword"
        found.append(_parameter(arg, kind, default))
    if args.vararg:
        found.append(Parameter(args.vararg.arg, "var_positional", required=False))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        found.append(_parameter(arg, "keyword_only", default))
    if args.kwarg:
        found.append(Parameter(args.kwarg.arg, "var_keyword", required=False))
    return Signature(tuple(found))


def without_first(signature: Signature) -> Signature:
    """The signature as seen through an instance or class, which fills the first parameter."""
    first = signature.parameters[:1]
    if first and first[0].kind in ("positional_only", "positional_or_keyword"):
        return Signature(signature.parameters[1:])
    return signature


def text_of(node: ast.expr) -> str:
    """The text of a default."""
    if isinstance(node, ast.Constant):
        return repr(node.value)
    # The common ones by hand: unparse takes its time.
    if isinstance(node, ast.Attribute):
        return f"{text_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ast.unparse(node)


def _parameter(arg: ast.arg, kind: Kind, default: ast.expr | None) -> Parameter:
    text = text_of(default) if default is not None else None
    return Parameter(arg.arg, kind, default is None, text)
