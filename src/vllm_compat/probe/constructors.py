"""The signature of a class's constructor, written out or generated from its fields."""

from __future__ import annotations

import ast

from .bindings import decorator_names, last_part
from .parameters import text_of
from .signature import Parameter, Signature
from .targets import Definition, External

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from .signature import Kind
    from .source import SourceTree
    from .targets import Target

    Style = Literal["dataclass", "pydantic", "struct", "namedtuple"]

_STYLE_OF_BASE: dict[str, Style] = {
    "BaseModel": "pydantic",
    "Struct": "struct",
    "NamedTuple": "namedtuple",
}
# Bases outside the tree of which it is known that they bring no constructor, or no fields.
_WITHOUT_CONSTRUCTOR = ("object", "ABC", "Generic")
WITHOUT_FIELDS = (*_WITHOUT_CONSTRUCTOR, "Protocol", *_STYLE_OF_BASE)
_PLAIN_METACLASSES = ("type", "ABCMeta")
_MARKS = ("ClassVar", "InitVar", "KW_ONLY")


class _UnknownError(Exception):
    """Something outside the tree decides about the constructor; says what."""


def constructor(tree: SourceTree, cls: Definition) -> Signature | None:
    """The constructor of ``cls``; None, with a note, if something outside the tree makes it."""
    try:
        return _constructor(tree, cls, ()) or Signature(())
    except _UnknownError as unknown:
        tree.note(f"constructor unknown: {unknown}")
        return None


def _constructor(tree: SourceTree, cls: Definition, below: tuple[str, ...]) -> Signature | None:
    """What builds ``cls``; None if nobody between it and `object` says anything."""
    below = _descend(cls, below)
    for keyword in _node(cls).keywords:
        if keyword.arg == "metaclass":
            _check_metaclass(tree, cls, keyword.value)
    if written := _written(tree, cls):
        return written
    if _is_dataclass(tree, cls) and _dataclass_option(tree, cls, "init") is not False:
        return _from_fields(tree, cls, "dataclass")
    if style := _style(tree, cls, ()):
        return _written_above(tree, cls, ()) or _from_fields(tree, cls, style)
    for target in _bases(tree, cls, _WITHOUT_CONSTRUCTOR):
        if found := _constructor(tree, target, below):
            return found
    return None


def _written(tree: SourceTree, cls: Definition) -> Signature | None:
    """The constructor which the class body itself spells out."""
    for name in ("__new__", "__init__"):
        target = tree.own_member(cls, name)
        if target is None:
            if cls.body and cls.body.unread(name):
                raise _UnknownError(f"{name} of {cls} could not be read")
            continue
        signature = tree.signature(target) if isinstance(target, Definition) else None
        if signature is None:
            raise _UnknownError(f"{name} of {cls} is not a plain function")
        # A __new__ which takes anything leaves the word to __init__.
        if name == "__init__" or signature.names:
            return signature
    return None


def _written_above(tree: SourceTree, cls: Definition, below: tuple[str, ...]) -> Signature | None:
    below = _descend(cls, below)
    for target in _bases(tree, cls, None):
        if found := _written(tree, target) or _written_above(tree, target, below):
            return found
    return None


def _bases(
    tree: SourceTree, cls: Definition, harmless: tuple[str, ...] | None
) -> Iterator[Definition]:
    """The bases inside the tree; others must be ``harmless``, where that is given."""
    for base in _node(cls).bases:
        target = tree.expression(cls.module, base)
        if isinstance(target, Definition) and target.kind == "class":
            yield target
        elif harmless is not None and _external_name(target) not in harmless:
            raise _UnknownError(f"base {ast.unparse(base)} of {cls} is outside the tree")


def _check_metaclass(tree: SourceTree, cls: Definition, node: ast.expr) -> None:
    target = tree.expression(cls.module, node)
    plain = _external_name(target) in _PLAIN_METACLASSES
    if isinstance(target, Definition) and target.kind == "class":
        plain = tree.own_member(target, "__call__") is None
    if not plain:
        raise _UnknownError(f"metaclass {ast.unparse(node)} of {cls} may build it its own way")


def _style(tree: SourceTree, cls: Definition, below: tuple[str, ...]) -> Style | None:
    """What makes a constructor out of the fields, if a base class does."""
    below = _descend(cls, below)
    for base in _node(cls).bases:
        target = tree.expression(cls.module, base)
        if isinstance(target, External) and target.last in _STYLE_OF_BASE:
            return _STYLE_OF_BASE[target.last]
        if isinstance(target, Definition) and target.kind == "class":
            style = _style(tree, target, below)
            # What inherits from a named tuple has that one's constructor, and no more fields.
            if style and style != "namedtuple":
                return style
    return None


def _is_dataclass(tree: SourceTree, cls: Definition) -> bool:
    return _dataclass_decorator(tree, cls) is not None


def _dataclass_option(tree: SourceTree, cls: Definition, name: str) -> object:
    return _option(_dataclass_decorator(tree, cls), name)


def _dataclass_decorator(tree: SourceTree, cls: Definition) -> ast.expr | None:
    """The decorator that makes ``cls`` a dataclass.

    That is one called `dataclass`, of whatever library, or a function of the tree which is
    marked with `dataclass_transform`, as PEP 681 has it.
    """
    for decorator in _node(cls).decorator_list:
        target = tree.expression(cls.module, _called(decorator))
        if _external_name(target) == "dataclass":
            return decorator
        if isinstance(target, Definition) and target.kind == "function":
            overloads = target.module.scope.binders(target.name)
            if any("dataclass_transform" in decorator_names(node) for node in overloads):
                return decorator
    return None


def _from_fields(tree: SourceTree, cls: Definition, style: Style) -> Signature:
    fields = _fields(tree, cls, style, ()).values()
    positional = [field for field in fields if field.kind != "keyword_only"]
    keywords = [field for field in fields if field.kind == "keyword_only"]
    if style == "pydantic" and _allows_extra(tree, cls, ()):
        keywords.append(Parameter("extra_data", "var_keyword", required=False))
    return Signature((*positional, *keywords))


def _fields(
    tree: SourceTree, cls: Definition, style: Style, below: tuple[str, ...]
) -> dict[str, Parameter]:
    """The constructor's parameters by field name, those of the bases first."""
    below = _descend(cls, below)
    fields: dict[str, Parameter] = {}
    for base in reversed([*_bases(tree, cls, WITHOUT_FIELDS)]):
        fields.update(_fields(tree, base, style, below))
    if style == "dataclass":
        has_fields = _is_dataclass(tree, cls)
        only = bool(_dataclass_option(tree, cls, "kw_only"))
    else:
        has_fields = _style(tree, cls, ()) == style
        only = style == "pydantic" or _truth(_node(cls).keywords, "kw_only")
    assert cls.body is not None
    if has_fields and cls.body.unread_fields():
        raise _UnknownError(f"a field of {cls} could not be read")
    for node in cls.body.fields() if has_fields else ():
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        name, mark = node.target.id, _mark(node.annotation)
        if mark == "KW_ONLY":
            only = True
            continue
        parameter = _field(tree, cls, node, only, is_init_only=mark == "InitVar")
        hidden = mark == "ClassVar" or (style == "pydantic" and name.startswith("_"))
        # What a class does not take it does not take through a field of a base either.
        if hidden or parameter is None:
            fields.pop(name, None)
        else:
            fields[name] = parameter
    return fields


def _field(
    tree: SourceTree, cls: Definition, node: ast.AnnAssign, only: bool, *, is_init_only: bool
) -> Parameter | None:
    """The parameter of one field; None if the constructor does not take it."""
    assert isinstance(node.target, ast.Name)
    name, default = node.target.id, node.value
    specifier = ""
    if isinstance(default, ast.Call):
        specifier = _external_name(tree.expression(cls.module, default.func))
    if isinstance(default, ast.Call) and specifier in ("field", "Field"):
        if _option(default, "init") is False:
            return None
        only = bool(_option(default, "kw_only", only))
        text = _default_in(default)
        if specifier == "Field":
            name = str(_option(default, "alias") or _option(default, "validation_alias") or name)
    else:
        text = text_of(default) if default is not None else None
    kind: Kind = "keyword_only" if only else "positional_or_keyword"
    return Parameter(name, kind, text is None, text, is_init_only)


def _default_in(call: ast.Call) -> str | None:
    """The default which a `field(...)` or `Field(...)` gives."""
    values = dict.fromkeys(("default",), call.args[0]) if call.args else {}
    values |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    if factory := values.get("default_factory"):
        called = f"({text_of(factory)})" if isinstance(factory, ast.Lambda) else text_of(factory)
        return f"{called}()"
    default = values.get("default")
    if default is None or (isinstance(default, ast.Constant) and default.value is ...):
        return None
    return text_of(default)


def _allows_extra(tree: SourceTree, cls: Definition, below: tuple[str, ...]) -> bool:
    """Whether a pydantic model takes names that are no fields."""
    below = _descend(cls, below)
    own = tree.own_member(cls, "model_config")
    if isinstance(own, Definition) and own.node is not None:
        return "'allow'" in ast.unparse(own.node)
    return any(_allows_extra(tree, base, below) for base in _bases(tree, cls, None))


def _mark(annotation: ast.expr) -> str:
    """ClassVar, InitVar or KW_ONLY, if the annotation is one of them."""
    if isinstance(annotation, ast.Constant):
        name = str(annotation.value).partition("[")[0].rpartition(".")[2].strip()
    else:
        if isinstance(annotation, ast.Subscript):
            annotation = annotation.value
        name = last_part(annotation)
    return name if name in _MARKS else ""


def _option(call: ast.expr | None, name: str, default: object = None) -> object:
    """The constant passed to a call as ``name=``."""
    keywords = call.keywords if isinstance(call, ast.Call) else []
    for keyword in keywords:
        if keyword.arg == name and isinstance(keyword.value, ast.Constant):
            return keyword.value.value
    return default


def _truth(keywords: list[ast.keyword], name: str) -> bool:
    return any(
        k.arg == name and isinstance(k.value, ast.Constant) and bool(k.value.value)
        for k in keywords
    )


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


def _external_name(target: Target | None) -> str:
    return target.last if isinstance(target, External) else ""


def _node(cls: Definition) -> ast.ClassDef:
    assert isinstance(cls.node, ast.ClassDef)
    return cls.node


def _descend(cls: Definition, below: tuple[str, ...]) -> tuple[str, ...]:
    if str(cls) in below:
        raise _UnknownError(f"{cls} inherits from itself")
    return (*below, str(cls))
