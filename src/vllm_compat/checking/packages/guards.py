"""Where a file is ready for something to be missing or different: what fails there is no fault.

Three things are told apart: a ``try`` whose handler catches the failure, the fallback in such a
handler, and a condition that asks for a version, for a feature, or for how an import went.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from vllm_compat.context import dotted

Lines: TypeAlias = tuple[int, int]
# Whether all imports in these lines work.
Works: TypeAlias = Callable[[Lines], bool]

_CATCH_ALL = frozenset({"Exception", "BaseException", ""})
_ASKS = frozenset({"hasattr", "find_spec", "signature", "parameters"})
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_VERSION = re.compile(r"v?\d+\.\d+")


class Condition(NamedTuple):
    """Lines that run only where ``test`` is ``wanted``."""

    lines: Lines
    test: ast.expr
    wanted: bool


class Guards:
    """What one file is ready for, ``of`` being the package that it imports from."""

    def __init__(self, tree: ast.Module, of: str = "vllm") -> None:
        self._of = of
        self._caught: list[tuple[Lines, frozenset[str]]] = []
        self._fallbacks: list[tuple[Lines, Lines]] = []
        self._flags: dict[str, tuple[Lines, bool | None]] = {}
        self._values: dict[str, list[ast.expr]] = {}
        self._conditions: list[Condition] = []
        nodes = list(ast.walk(tree))
        for node in nodes:
            if isinstance(node, ast.Try):
                self._read_try(node)
            elif isinstance(node, ast.With | ast.AsyncWith):
                self._read_with(node)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    self._values.setdefault(dotted(target), []).append(node.value)
        for node in nodes:
            self._conditions += self._conditions_in(node)
        self._conditions += [*self._conditions_of_functions(tree, nodes)]

    def excuse(self, line: int, raises: tuple[str, ...], works: Works) -> str:
        """Why something that raises one of ``raises`` at ``line`` is no fault; empty if it is."""
        for lines, caught in self._caught:
            if _inside(line, lines) and (names := caught & {*raises, *_CATCH_ALL}):
                return f"inside a try that catches {', '.join(sorted(names)) or 'everything'}"
        for lines, instead_of in self._fallbacks:
            if _inside(line, lines) and works(instead_of):
                return f"a fallback for line {instead_of[0]}, which works"
        for lines, test, wanted in self._conditions:
            if _inside(line, lines):
                truth = self._truth(test, works)
                if truth is None or truth != wanted:
                    not_ = "" if wanted else "not "
                    return f"only where {not_}`{_shortened(ast.unparse(test))}`"
        return ""

    def is_fallback(self, line: int) -> bool:
        """Whether ``line`` runs only once an import has failed."""
        return any(_inside(line, lines) for lines, _ in self._fallbacks)

    def _read_try(self, node: ast.Try) -> None:
        body = _lines(node.body)
        self._caught.append((body, frozenset().union(*map(_caught, node.handlers))))
        if not any(self._is_import(inner) for stmt in node.body for inner in ast.walk(stmt)):
            return
        for handler in node.handlers:
            if _caught(handler) & {"ImportError", "ModuleNotFoundError", *_CATCH_ALL}:
                self._fallbacks.append((_lines(handler.body), body))
                for stmt in handler.body:
                    for target in stmt.targets if isinstance(stmt, ast.Assign) else ():
                        assert isinstance(stmt, ast.Assign)
                        self._flags[dotted(target)] = (body, _opposite(stmt.value))

    def _read_with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and dotted(call.func).endswith("suppress"):
                names = frozenset(dotted(arg).rpartition(".")[2] for arg in call.args)
                self._caught.append((_lines(node.body), names))

    def _conditions_in(self, node: ast.AST) -> Iterator[Condition]:
        if isinstance(node, ast.IfExp) and self._asks(node.test):
            yield Condition(_lines([node.body]), node.test, True)
            yield Condition(_lines([node.orelse]), node.test, False)
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if not isinstance(block, list):
                continue
            for place, stmt in enumerate(block):
                if not isinstance(stmt, ast.If) or not self._asks(stmt.test):
                    continue
                yield Condition(_lines(stmt.body), stmt.test, True)
                if stmt.orelse:
                    yield Condition(_lines(stmt.orelse), stmt.test, False)
                elif (rest := block[place + 1 :]) and isinstance(stmt.body[-1], _LEAVES):
                    yield Condition(_lines(rest), stmt.test, False)

    def _conditions_of_functions(
        self, tree: ast.Module, nodes: list[ast.AST]
    ) -> Iterator[Condition]:
        """A function that is only ever named under conditions is under them too."""
        named: dict[str, list[int]] = {}
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                named.setdefault(node.id, []).append(node.lineno)
        for function in tree.body:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                over = [self._condition_at(line) for line in named.get(function.name, ())]
                if over and all(over) and over[0]:
                    yield over[0]._replace(lines=_lines([function]))

    def _condition_at(self, line: int) -> Condition | None:
        return next((c for c in self._conditions if _inside(line, c.lines)), None)

    def _asks(self, test: ast.expr, depth: int = 2) -> bool:
        """Whether a condition asks for a version, a feature, or for how an import went."""
        for node in ast.walk(test):
            if isinstance(node, ast.Constant):
                if isinstance(node.value, str) and _VERSION.match(node.value):
                    return True
            elif isinstance(node, ast.Name | ast.Attribute):
                spelled = dotted(node)
                last = spelled.rpartition(".")[2]
                if last in _ASKS or "version" in last.lower() or spelled in self._flags:
                    return True
                if depth and any(self._asks(v, depth - 1) for v in self._values.get(spelled, ())):
                    return True
        return False

    def _truth(self, test: ast.expr, works: Works) -> bool | None:
        """What a condition comes to, as far as that hangs on how imports went."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._truth(test.operand, works)
            return None if inner is None else not inner
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            against = test.comparators[0]
            if isinstance(against, ast.Constant) and against.value is None:
                inner = self._truth(test.left, works)
                if isinstance(test.ops[0], ast.IsNot):
                    return inner
                if isinstance(test.ops[0], ast.Is) and inner is not None:
                    return not inner
            return None
        flag = self._flags.get(dotted(test))
        if flag is None or flag[1] is None:
            return None
        lines, if_it_works = flag
        return if_it_works if works(lines) else not if_it_works

    def _is_import(self, node: ast.AST) -> bool:
        if isinstance(node, ast.ImportFrom):
            return not node.level and f"{node.module}.".startswith(f"{self._of}.")
        return isinstance(node, ast.Import) and any(
            f"{alias.name}.".startswith(f"{self._of}.") for alias in node.names
        )


def _inside(line: int, lines: Lines) -> bool:
    return lines[0] <= line <= lines[1]


def _lines(nodes: Sequence[ast.stmt | ast.expr]) -> Lines:
    return nodes[0].lineno, nodes[-1].end_lineno or nodes[-1].lineno


def _caught(handler: ast.ExceptHandler) -> frozenset[str]:
    """The names of what a handler catches; an empty name for everything."""
    caught = handler.type
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return frozenset(dotted(kind).rpartition(".")[2] if kind else "" for kind in kinds)


def _opposite(value: ast.expr) -> bool | None:
    """What a flag is where the import works, given what it is set to where it does not."""
    return not value.value if isinstance(value, ast.Constant) else None


def _shortened(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
