"""What a vLLM has under a name, and whether that is certain."""

from __future__ import annotations

import ast
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from vllm_compat.checking.packages.lazy import refuses
from vllm_compat.checking.packages.whereabouts import Whereabouts
from vllm_compat.contracts import usage
from vllm_compat.contracts.recorded import NotRecordedError
from vllm_compat.probe import Finding, SourceTree
from vllm_compat.probe.bindings import decorator_names

if TYPE_CHECKING:
    from vllm_compat.context import Tree

# Notes of a probe which say that the name may be there all the same.
_DOUBTS = ("could not be read", "compiled", "too deeply", "the star import")
# Decorators that leave a function's parameters as they are written.
TRANSPARENT = frozenset(
    {
        *("staticmethod", "classmethod", "abstractmethod", "overload", "override", "final"),
        *("cache", "lru_cache", "wraps", "contextmanager", "asynccontextmanager"),
        *("deprecated", "inference_mode", "no_grad"),
    }
)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_PLAIN_BASES = frozenset({"object", "ABC", "Generic", "Protocol"})


class UnknownError(Exception):
    """Why something could not be told for certain."""


class Lookup:
    """One vLLM: what it has, and where what it no longer has under a name may be."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.whereabouts = Whereabouts(tree)
        self._parsed: dict[str, ast.Module | None] = {}

    def find(self, symbol: str) -> Finding:
        """What is under ``symbol``.

        Raises:
            UnknownError: it is not there, but that is not certain.
        """
        try:
            finding = self.tree.probe(symbol)
        except NotRecordedError:
            raise UnknownError("the record of this vLLM does not say") from None
        if finding.status == "absent":
            if any(doubt in finding.note for doubt in _DOUBTS):
                raise UnknownError(finding.note)
            if "__getattr__" in finding.note and not self._is_refused(symbol):
                raise UnknownError(finding.note)
            self._check_owner(symbol)
        return finding

    def gone(self, symbol: str) -> str:
        """Of an absent symbol, the part of it up to the first name that is not there."""
        module, _, path = symbol.partition(":")
        names = path.split(".") if path else []
        for count in range(len(names)):
            start = f"{module}:{'.'.join(names[:count])}".rstrip(":")
            with suppress(NotRecordedError):
                if self.tree.probe(start).status == "absent":
                    return start
        return symbol

    def is_member(self, symbol: str) -> bool:
        """Whether a class holds what is under ``symbol``."""
        owner, dot, _ = symbol.rpartition(".")
        return bool(dot) and ":" in owner and self.find(owner).kind == "class"

    def node(self, finding: Finding) -> ast.AST | None:
        """The syntax of a found definition, where there is a source."""
        for node in ast.walk(self._syntax(finding) or ast.Module([], [])):
            if isinstance(node, _DEFINITIONS) and node.lineno == finding.line:
                return node
        return None

    def _syntax(self, finding: Finding) -> ast.Module | None:
        """That of the file in which ``finding`` is."""
        if not isinstance(self.tree, SourceTree) or not finding.file:
            return None
        if finding.file not in self._parsed:
            self._parsed[finding.file] = None
            with suppress(usage.UnreadableFileError):
                path = os.path.join(self.tree.root, finding.file)
                self._parsed[finding.file] = usage.parsed(path, "")
        return self._parsed[finding.file]

    def check_decorators(self, finding: Finding) -> None:
        """Raises UnknownError where a decorator may have changed how ``finding`` is called."""
        for name in decorator_names(self.node(finding) or ast.Pass()):
            if name not in TRANSPARENT and finding.kind == "function":
                raise UnknownError(f"its decorator {name} may change how it is called")

    def has_all_members(self, symbol: str, depth: int = 20) -> bool:
        """Whether everything that a class has is written where it can be read."""
        finding = self.tree.probe(symbol)
        node = self.node(finding)
        if not isinstance(node, ast.ClassDef) or finding.location is None or not depth:
            return False
        if any(keyword.arg == "metaclass" for keyword in node.keywords):
            return False
        module = finding.location.partition(":")[0]
        for base in node.bases:
            spelled = ast.unparse(base).partition("[")[0]
            if spelled.rpartition(".")[2] in _PLAIN_BASES:
                continue
            if not self.has_all_members(f"{module}:{spelled}", depth - 1):
                return False
        return True

    def _is_refused(self, symbol: str) -> bool:
        """Whether the ``__getattr__`` of a name's module surely does not know it."""
        module, _, path = symbol.partition(":")
        syntax = self._syntax(self.tree.probe(module))
        return syntax is not None and "." not in path and refuses(syntax, path)

    def _check_owner(self, symbol: str) -> None:
        """Raises UnknownError where the holder of an absent name may have it all the same."""
        owner, dot, name = symbol.rpartition(".")
        if not dot or ":" not in owner:
            return
        finding = self.find(owner)
        if finding.status == "absent" or finding.kind == "module":
            return
        if finding.kind != "class" or name.startswith("__") or not self.has_all_members(owner):
            raise UnknownError(f"not all that {owner.rpartition(':')[2]} has can be read")
