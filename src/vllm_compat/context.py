"""What a decision about a call site may look at: the installed sources, read and never imported."""

from __future__ import annotations

import ast
import os
from functools import cached_property
from typing import NamedTuple

from vllm_compat.discovery import Installed
from vllm_compat.probe import Finding, SourceTree

GENERATOR = "speculators.data_generation.vllm_hidden_states_generator"
WORKER = "speculators.data_generation.custom_worker"


class Settings(NamedTuple):
    """What the caller of ``apply`` chose."""

    trust_remote_code: bool = False


class Call(NamedTuple):
    """One call in the consumer's source, by the shape of its arguments."""

    module: str
    line: int
    positional: int
    keywords: tuple[str, ...]


class Import(NamedTuple):
    """One ``from vllm... import name`` of the consumer."""

    module: str
    line: int
    symbol: str


class Consumer:
    """The in-process part of speculators: what it imports from vLLM and how it calls it."""

    MODULES = (GENERATOR, WORKER)

    def __init__(self, installed: Installed) -> None:
        self.installed = installed

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """The parsed modules, by name."""
        folder = os.path.dirname(self.installed.root)
        trees = {}
        for module in self.MODULES:
            file = os.path.join(folder, *module.split(".")) + ".py"
            if os.path.isfile(file):
                with open(file, "rb") as source:
                    trees[module] = ast.parse(source.read())
        return trees

    def nodes(self, module: str) -> list[ast.AST]:
        """All nodes of a module, walked once."""
        return self._nodes[module]

    @cached_property
    def _nodes(self) -> dict[str, list[ast.AST]]:
        return {module: list(ast.walk(tree)) for module, tree in self.trees.items()}

    @property
    def in_process(self) -> bool:
        """Whether this release drives vLLM in its own process at all (0.5 and later do not)."""
        return GENERATOR in self.trees

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every name taken from vLLM at module level, in source order."""
        found = []
        for module, tree in self.trees.items():
            for node in tree.body:
                if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("vllm."):
                    found += [
                        Import(module, node.lineno, f"{node.module}:{alias.name}")
                        for alias in node.names
                    ]
        return tuple(found)

    @cached_property
    def _calls(self) -> dict[str, list[Call]]:
        calls: dict[str, list[Call]] = {}
        for module, nodes in self._nodes.items():
            for node in nodes:
                if isinstance(node, ast.Call):
                    keywords = tuple(k.arg for k in node.keywords if k.arg is not None)
                    call = Call(module, node.lineno, len(node.args), keywords)
                    calls.setdefault(dotted(node.func), []).append(call)
        return calls

    def calls(self, name: str) -> list[Call]:
        """Calls of ``name``, as the source spells it (``"torch.cuda.mem_get_info"``)."""
        return self._calls.get(name, [])

    def defines(self, module: str, path: str) -> bool:
        """Whether ``module`` defines ``path`` (``"Class.method"``) itself."""
        body: list[ast.stmt] = self.trees[module].body if module in self.trees else []
        for part in path.split("."):
            node = next((n for n in body if getattr(n, "name", None) == part), None)
            if node is None:
                return False
            body = getattr(node, "body", [])
        return True


def dotted(node: ast.AST) -> str:
    """A name as the source spells it (``"torch.cuda.mem_get_info"``); of other things, the end."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


class Context(NamedTuple):
    """Everything a decision is made from."""

    vllm: SourceTree
    vllm_installed: Installed
    consumer: Consumer
    settings: Settings

    def probe(self, symbol: str, *candidates: str) -> Finding:
        """What the installed vLLM has under ``symbol``, or else under one of ``candidates``."""
        return self.vllm.probe(symbol, candidates)
