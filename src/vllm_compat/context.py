"""What a decision about a call site may look at: the installed sources, read and never imported."""

from __future__ import annotations

import ast
import os
from functools import cached_property

from vllm_compat.discovery import Installed
from vllm_compat.named_tuple import NamedTuple
from vllm_compat.probe import Finding
from vllm_compat.versions import has_come

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Protocol

    class Tree(Protocol):
        """What answers for one vLLM: its sources, or the record of what they answered."""

        def probe(self, symbol: str, candidates: Sequence[str] = ()) -> Finding:
            """What is under ``symbol``, else under one of ``candidates``."""


GENERATOR = "speculators.data_generation.vllm_hidden_states_generator"
WORKER = "speculators.data_generation.custom_worker"
CONFIG = "speculators.config"


class Settings(NamedTuple):
    """What the caller of ``apply`` chose."""

    trust_remote_code: bool = False


class Call(NamedTuple):
    """One call in the consumer's source, by the shape of its arguments."""

    module: str
    line: int
    positional: int
    keywords: tuple[str, ...]


class Place(NamedTuple):
    """One line of the consumer's source."""

    module: str
    line: int


class Import(NamedTuple):
    """One ``from vllm... import name`` of the consumer."""

    module: str
    line: int
    symbol: str


class Consumer:
    """The in-process part of speculators: what it imports from vLLM and how it calls it.

    Read from its sources; ``contracts.RecordedConsumer`` answers the same from a record.
    """

    MODULES = (GENERATOR, WORKER)

    def __init__(self, installed: Installed) -> None:
        self.installed = installed

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """The parsed modules, by name."""
        parsed = ((module, self._parsed(module)) for module in self.MODULES)
        return {module: tree for module, tree in parsed if tree is not None}

    def file(self, module: str) -> str:
        """The file of one of its modules; empty where only a record of it is at hand."""
        folder = os.path.dirname(self.installed.root)
        return os.path.join(folder, *module.split(".")) + ".py" if folder else ""

    def _parsed(self, module: str) -> ast.Module | None:
        file = self.file(module)
        if not os.path.isfile(file):
            return None
        with open(file, "rb") as source:
            return ast.parse(source.read(), file)

    @cached_property
    def _nodes(self) -> dict[str, list[ast.AST]]:
        return {module: _all_nodes(tree) for module, tree in self.trees.items()}

    @cached_property
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
    def all_calls(self) -> dict[str, list[Call]]:
        """Every call, by the name it is spelled with."""
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
        return self.all_calls.get(name, [])

    @cached_property
    def mentions(self) -> dict[str, list[Place]]:
        """Places that are no calls: each attribute that the worker reads of its model runner, and
        each config class, under the class of transformers that it inherits from."""
        found: dict[str, list[Place]] = {}
        for module, tree in ((WORKER, self.trees.get(WORKER)), (CONFIG, self._parsed(CONFIG))):
            for node in _all_nodes(tree) if tree is not None else ():
                if isinstance(node, ast.Attribute) and module == WORKER:
                    names = [dotted(node)]
                elif isinstance(node, ast.ClassDef) and module == CONFIG:
                    names = [dotted(base) for base in node.bases]
                else:
                    continue
                for name in names:
                    if name.startswith("self.model_runner.") or name == "PretrainedConfig":
                        found.setdefault(name, []).append(Place(module, node.lineno))
        return found

    def places(self, name: str) -> list[Place]:
        """Where ``name`` is called, or else mentioned; ``"name(keyword)"``: with that keyword."""
        name, _, keyword = name.removesuffix(")").partition("(")
        calls = self.calls(name)
        if not calls:
            return self.mentions.get(name, [])
        return [
            Place(call.module, call.line)
            for call in calls
            if not keyword or keyword in call.keywords
        ]

    def defines(self, module: str, path: str) -> bool:
        """Whether ``module`` defines ``path`` (``"Class.method"``) itself."""
        return f"{module}:{path}" in self.definitions

    @cached_property
    def definitions(self) -> frozenset[str]:
        """Every function and class, ``"module:Class.method"``."""
        return frozenset(
            f"{module}:{path}"
            for module, tree in self.trees.items()
            for path in _definitions(tree.body, "")
        )

    @cached_property
    def takes_first_of_reply(self) -> bool:
        """Whether it takes the first element of the one worker's reply that it asks for."""
        nodes = self._nodes.get(GENERATOR, [])
        replies = {
            dotted(node.targets[0])
            for node in nodes
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and any(keyword.arg == "unique_reply_rank" for keyword in node.value.keywords)
        }
        return any(
            isinstance(node, ast.Subscript)
            and dotted(node.value) in replies
            and isinstance(node.slice, ast.Constant)
            and node.slice.value == 0
            for node in nodes
        )


def _definitions(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield f"{prefix}{node.name}"
            yield from _definitions(node.body, f"{prefix}{node.name}.")


def _all_nodes(root: ast.AST) -> list[ast.AST]:
    """As ``ast.walk``, in the same order and half the time, without what only says how a name is
    used."""
    nodes = [root]
    for node in nodes:  # grows as it goes
        for name in node._fields:
            child = getattr(node, name, None)
            if isinstance(child, list):
                nodes += [each for each in child if isinstance(each, ast.AST)]
            elif isinstance(child, ast.AST) and not isinstance(child, ast.expr_context):
                nodes.append(child)
    return nodes


def dotted(node: ast.AST) -> str:
    """A name as the source spells it (``"torch.cuda.mem_get_info"``); of other things, the end."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


class Context(NamedTuple):
    """Everything a decision is made from."""

    vllm: Tree
    vllm_installed: Installed
    consumer: Consumer
    settings: Settings

    def probe(self, symbol: str, *candidates: str) -> Finding:
        """What the installed vLLM has under ``symbol``, or else under one of ``candidates``."""
        return self.vllm.probe(symbol, candidates)

    def has_come(self, release: str) -> bool:
        """Whether the vLLM is this release or a later one, or does not say which it is."""
        return has_come(release, self.vllm_installed.version or "")
