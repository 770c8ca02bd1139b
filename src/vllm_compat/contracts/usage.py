"""Everything a package takes from vLLM: imports, calls and subclasses, read from its sources.

Names are followed as far as one file shows: from the import that binds them to where they are
called or inherited from. What is reached through an instance (``llm.generate()``) is not seen.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from vllm_compat.context import dotted
from vllm_compat.probe.scopes import PARSE_ERRORS

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


class UnreadableFileError(Exception):
    """A file that cannot be opened, or that this Python cannot parse; says why."""


def uses(root: str, package: str, of: str = "vllm") -> tuple[Use, ...]:
    """What the package at ``root`` uses of the package ``of``, by module and line.

    ``root`` is its folder, or the one file that it is. Imports inside functions count, those for
    type checkers alone do not. A file that this Python cannot parse is left out.
    """
    found: list[Use] = []
    for module, file in modules(root, package):
        try:
            tree = parsed(file, of)
        except UnreadableFileError:
            continue
        nodes = at_runtime(tree)
        of_imports = list(imports(nodes, module, of))
        names = local_names(of_imports, of)
        found += [use for _, use in of_imports]
        found += calls(nodes, module, names)
        found += subclasses(nodes, module, names)
    return tuple(sorted(found))


def modules(root: str, package: str) -> Iterator[tuple[str, str]]:
    """The modules of a package, or of the one file ``root``: dotted name and file."""
    if os.path.isfile(root):
        yield package, root
        return
    for folder, folders, files in os.walk(root):
        # Hidden folders and environments beside the sources are not the package's.
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and not os.path.isfile(os.path.join(folder, name, "pyvenv.cfg"))
        )
        inside = os.path.relpath(folder, root).split(os.sep)
        parts = [package, *(part for part in inside if part != ".")]
        for file in sorted(files):
            if file.endswith(".py"):
                name = file.removesuffix(".py")
                own = parts if name == "__init__" else [*parts, name]
                yield ".".join(own), os.path.join(folder, file)


def parsed(file: str, of: str = "vllm") -> ast.Module:
    """The file's syntax tree; an empty one where it does not even mention ``of``.

    Raises:
        UnreadableFileError: it cannot be opened or parsed.
    """
    try:
        with open(file, "rb") as source:
            text = source.read()
        if of.encode() not in text:
            return ast.Module([], [])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in somebody's strings
            return ast.parse(text)
    except (OSError, *PARSE_ERRORS) as error:
        raise UnreadableFileError(f"{type(error).__name__}: {error}") from error


def at_runtime(root: ast.AST) -> list[ast.AST]:
    """All nodes but those under ``if TYPE_CHECKING:``, in the order of the source."""
    found: list[ast.AST] = []
    left: list[ast.AST] = [root]  # no recursion: sources may be nested deeper than that reaches
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and dotted(node.test).endswith("TYPE_CHECKING"):
            left += reversed(node.orelse)
        else:
            found.append(node)
            left += reversed(list(ast.iter_child_nodes(node)))
    return found


def local_names(of_imports: Iterable[tuple[str, Use]], of: str) -> dict[str, str]:
    """What each local name that an import binds stands for."""
    names = {name: use.symbol for name, use in of_imports}
    if any("." in name for name in names):
        names[of] = of  # `import a.b` binds `a`
    return names


def imports(nodes: list[ast.AST], module: str, of: str) -> Iterator[tuple[str, Use]]:
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


def calls(nodes: list[ast.AST], module: str, names: Mapping[str, str]) -> Iterator[Use]:
    """Each call of what ``names`` stand for."""
    for node in nodes:
        if isinstance(node, ast.Call) and (symbol := symbol_of(node.func, names)):
            yield call_of(symbol, module, node)


def call_of(symbol: str, module: str, node: ast.Call) -> Use:
    """One call, by the shape of its arguments."""
    positional = [arg for arg in node.args if not isinstance(arg, ast.Starred)]
    keywords = tuple(k.arg for k in node.keywords if k.arg is not None)
    open_ended = len(positional) < len(node.args) or len(keywords) < len(node.keywords)
    return Use("call", symbol, module, node.lineno, len(positional), keywords, open_ended)


def subclasses(nodes: list[ast.AST], module: str, names: Mapping[str, str]) -> Iterator[Use]:
    """Each class that inherits from what ``names`` stand for."""
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                # A generic base is spelled `Base[int]`.
                named = base.value if isinstance(base, ast.Subscript) else base
                if symbol := symbol_of(named, names):
                    yield Use("subclass", symbol, module, base.lineno)


def symbol_of(node: ast.expr, names: Mapping[str, str]) -> str:
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
