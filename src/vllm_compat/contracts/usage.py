"""Everything a package takes from vLLM: imports, calls and subclasses, read from its sources.

Names are followed as far as one file shows: from the import that binds them to where they are
called or inherited from. What is reached through an instance (``llm.generate()``) is not seen.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from vllm_compat.context import dotted

How = Literal["import", "call", "subclass"]


class Use(NamedTuple):
    """One place where a package uses vLLM.

    Attributes:
        how: what is done there.
        symbol: what is used, ``"module:Qualified.name"``, or ``"module"`` for a plain import.
        module: where, a dotted module name.
        line: where in it.
        positional: of a call, the number of positional arguments.
        keywords: of a call, the keywords that are spelled out.
        open_ended: of a call, whether it also passes ``*args`` or ``**kwargs``.
    """

    how: How
    symbol: str
    module: str
    line: int
    positional: int = 0
    keywords: tuple[str, ...] = ()
    open_ended: bool = False


def uses(root: str, package: str, of: str = "vllm") -> tuple[Use, ...]:
    """What the package at the folder ``root`` uses of the package ``of``, by module and line.

    Imports inside functions count, those for type checkers alone do not. A file that this Python
    cannot parse is left out.
    """
    found: list[Use] = []
    for module, file in _modules(root, package):
        with open(file, "rb") as source:
            text = source.read()
        if of.encode() not in text:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # odd escapes in somebody's strings
                tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        nodes = list(_at_runtime(tree))
        imports = list(_imports(nodes, module, of))
        names = {name: use.symbol for name, use in imports}
        if any("." in name for name in names):
            names[of] = of  # `import a.b` binds `a`
        found += [use for _, use in imports]
        found += _calls(nodes, module, names)
        found += _subclasses(nodes, module, names)
    return tuple(sorted(found))


def _modules(root: str, package: str) -> Iterator[tuple[str, str]]:
    for folder, folders, files in os.walk(root):
        folders.sort()
        inside = os.path.relpath(folder, root).split(os.sep)
        parts = [package, *(part for part in inside if part != ".")]
        for file in sorted(files):
            if file.endswith(".py"):
                name = file.removesuffix(".py")
                own = parts if name == "__init__" else [*parts, name]
                yield ".".join(own), os.path.join(folder, file)


def _at_runtime(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under ``if TYPE_CHECKING:``."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and dotted(child.test).endswith("TYPE_CHECKING"):
            for other in child.orelse:
                yield from _at_runtime(other)
        else:
            yield from _at_runtime(child)


def _imports(nodes: list[ast.AST], module: str, of: str) -> Iterator[tuple[str, Use]]:
    """Each import of ``of``, with the local name that stands for its symbol."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not node.level:
            if f"{node.module}.".startswith(f"{of}."):
                for alias in node.names:
                    symbol = f"{node.module}:{alias.name}"
                    yield alias.asname or alias.name, Use("import", symbol, module, node.lineno)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if f"{alias.name}.".startswith(f"{of}."):
                    use = Use("import", alias.name, module, node.lineno)
                    yield alias.asname or alias.name, use


def _calls(nodes: list[ast.AST], module: str, names: Mapping[str, str]) -> Iterator[Use]:
    for node in nodes:
        if isinstance(node, ast.Call) and (symbol := _symbol(node.func, names)):
            positional = [arg for arg in node.args if not isinstance(arg, ast.Starred)]
            keywords = tuple(k.arg for k in node.keywords if k.arg is not None)
            open_ended = len(positional) < len(node.args) or len(keywords) < len(node.keywords)
            yield Use("call", symbol, module, node.lineno, len(positional), keywords, open_ended)


def _subclasses(nodes: list[ast.AST], module: str, names: Mapping[str, str]) -> Iterator[Use]:
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                if symbol := _symbol(base, names):
                    yield Use("subclass", symbol, module, base.lineno)


def _symbol(node: ast.expr, names: Mapping[str, str]) -> str:
    """The symbol that a name or dotted name stands for, empty where it is not the package's."""
    spelled = dotted(node)
    start = spelled
    while start:
        if start in names:
            rest = spelled[len(start) :]
            symbol = names[start]
            return f"{symbol}{rest}" if ":" in symbol or not rest else f"{symbol}:{rest[1:]}"
        start = start.rpartition(".")[0]
    return ""
