"""Which of a body's statements give a name its value, best first."""

from __future__ import annotations

import ast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RUNS, HANDLES, TYPES_ONLY = range(3)
_CONSTANT_FALSE = (False, 0, None)


class Binding:
    """One statement which binds the name.

    ``alias`` is the imported name of an import, ``value`` the right side of an assignment to
    the name itself. ``rank`` is RUNS, HANDLES (in an except clause only) or TYPES_ONLY.
    """

    __slots__ = ("alias", "node", "rank", "value")

    def __init__(
        self,
        node: ast.stmt,
        rank: int,
        alias: ast.alias | None = None,
        value: ast.expr | None = None,
    ) -> None:
        self.node = node
        self.rank = rank
        self.alias = alias
        self.value = value


def bindings_of(name: str, body: Iterable[ast.stmt]) -> list[Binding]:
    """The bindings of ``name``, the one that most likely holds after the body ran first.

    That is the last one that runs; what an except clause binds comes behind, and what only
    type checkers see comes last. Overloads count only where there is no implementation.
    """
    found: list[Binding] = []
    for binding in _all(name, body, RUNS):
        if isinstance(binding.node, ast.Delete) and binding.rank == RUNS:
            found.clear()
        else:
            found.append(binding)
    implemented = [b for b in found if "overload" not in decorator_names(b.node)]
    found = implemented or found
    return [b for rank in (RUNS, HANDLES, TYPES_ONLY) for b in found[::-1] if b.rank == rank]


def decorator_names(node: ast.AST) -> list[str]:
    """The last parts of the decorators' names: `@a.b(c)` gives `b`."""
    names = []
    for decorator in getattr(node, "decorator_list", ()):
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        names.append(last_part(called))
    return names


def last_part(node: ast.expr) -> str:
    """`c` of `a.b.c` or `c`; empty for other expressions."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _all(name: str, body: Iterable[ast.stmt], rank: int) -> Iterator[Binding]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name == name:
                yield Binding(node, rank)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imported(name, node, rank)
        elif isinstance(node, ast.Assign | ast.Delete):
            if any(_binds(target, name) for target in node.targets):
                # Of `a, b = value` the value is not that of the name.
                whole = any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
                value = node.value if whole and isinstance(node, ast.Assign) else None
                yield Binding(node, rank, value=value)
        elif isinstance(node, ast.AnnAssign):
            # Without a value this binds nothing, but tells that something else will.
            if _binds(node.target, name) and (node.value or rank == TYPES_ONLY):
                yield Binding(node, rank, value=node.value)
        else:
            yield from _in_compound(name, node, rank)


def _imported(name: str, node: ast.Import | ast.ImportFrom, rank: int) -> Iterator[Binding]:
    # A star brings no name like __all__ of the module it is taken from.
    wanted = (name,) if name.startswith("__") else (name, "*")
    for alias in node.names:
        # `import a.b` binds a.
        plain = alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name
        if (alias.asname or plain) in wanted:
            yield Binding(node, rank, alias=alias)


def _in_compound(name: str, node: ast.stmt, rank: int) -> Iterator[Binding]:
    if isinstance(node, ast.If):
        first, second = _branch_ranks(node.test, rank)
        if first is not None:
            yield from _all(name, node.body, first)
        if second is not None:
            yield from _all(name, node.orelse, second)
        return
    targets: list[ast.expr | None] = []
    if isinstance(node, ast.For | ast.AsyncFor):
        targets = [node.target]
    elif isinstance(node, ast.With | ast.AsyncWith):
        targets = [item.optional_vars for item in node.items]
    if any(target is not None and _binds(target, name) for target in targets):
        yield Binding(node, rank)
    if handlers := getattr(node, "handlers", ()):
        yield from _in_handlers(name, handlers, node, rank)
    # try, with, for, while and match keep their statements under these names.
    for part in ("body", "cases", "orelse", "finalbody"):
        for child in getattr(node, part, ()):
            if isinstance(child, ast.match_case):
                yield from _all(name, child.body, rank)
            else:
                yield from _all(name, [child], rank)


def _in_handlers(
    name: str, handlers: Iterable[ast.ExceptHandler], node: ast.stmt, rank: int
) -> Iterator[Binding]:
    """What stands in where the body of a `try` does not bind the name after all.

    That comes right behind the body's own, before anything further up. Where the body has nothing
    to do with the name, it comes behind everything that runs.
    """
    instead = any(True for _ in _all(name, getattr(node, "body", ()), rank))
    for handler in handlers:
        for binding in _all(name, handler.body, max(rank, HANDLES)):
            if instead and not isinstance(binding.node, ast.Delete):
                binding.rank = rank
            yield binding


def _branch_ranks(test: ast.expr, rank: int) -> tuple[int | None, int | None]:
    """The ranks of the two branches of an `if`; None for one that never runs."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        second, first = _branch_ranks(test.operand, rank)
        return first, second
    if last_part(test) == "TYPE_CHECKING":
        return TYPES_ONLY, rank
    if isinstance(test, ast.Constant):
        return (None, rank) if test.value in _CONSTANT_FALSE else (rank, None)
    return rank, rank


def _binds(target: ast.expr, name: str) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return any(_binds(element, name) for element in target.elts)
    if isinstance(target, ast.Starred):
        return _binds(target.value, name)
    return isinstance(target, ast.Name) and target.id == name
