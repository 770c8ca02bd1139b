"""Make the contract of a vLLM from its sources.

Which symbols go into it is not written down anywhere: it is what the judge asks for, with any
recorded speculators, over these very sources, what those speculators and this package's own
adapters import or take for granted, what speculators reaches through an instance, and what shows a
change.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import vllm_compat
from vllm_compat.adapters import REGISTRY
from vllm_compat.context import Context, Settings
from vllm_compat.contracts.reached import REACHED
from vllm_compat.contracts.recorded import RecordedConsumer, load_speculators, speculators_releases
from vllm_compat.contracts.table import Contract
from vllm_compat.contracts.usage import uses
from vllm_compat.discovery import Installed, find
from vllm_compat.errors import VllmCompatError
from vllm_compat.judge import judge
from vllm_compat.probe import Finding, SourceTree

if TYPE_CHECKING:
    from vllm_compat.context import Tree


class UnreadableVllmError(VllmCompatError):
    """What was given to be recorded is no vLLM, or does not say which."""


class Questions:
    """A tree that notes what it is asked for, candidates one by one."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.symbols: set[str] = set()

    def probe(self, symbol: str, candidates: Sequence[str] = ()) -> Finding:
        self.symbols.update([symbol, *candidates])
        return self.tree.probe(symbol, candidates)


def symbols_asked(tree: Tree, consumers: Iterable[RecordedConsumer]) -> frozenset[str]:
    """The symbols that decide whether ``consumers``, adapted, run on the vLLM of ``tree``."""
    questions = Questions(tree)
    used = set(own_symbols())
    nowhere = Installed("vllm", None, None, "", editable=False)
    for consumer in consumers:
        judge(Context(questions, nowhere, consumer, Settings()))
        used.update(use.symbol for use in consumer.uses if use.how == "import")
        used.update(imported.symbol for imported in consumer.imports)
    return frozenset(questions.symbols | used)


@lru_cache(maxsize=1)
def own_symbols() -> frozenset[str]:
    """What the adapters themselves import from vLLM, what they say that they answer for and take
    for granted; and the methods that speculators calls on what it imports."""
    root = os.path.dirname(os.path.abspath(vllm_compat.__file__))
    imports = {use.symbol for use in uses(root, "vllm_compat") if use.how == "import"}
    named = {adapter.symbol for adapter in REGISTRY if adapter.symbol.startswith("vllm.")}
    shown = {change.shows.partition("(")[0] for adapter in REGISTRY for change in adapter.broke}
    premises = {premise.symbol for adapter in REGISTRY for premise in adapter.premises}
    reached = {symbol for method in REACHED.values() for symbol in (method.symbol, *method.homes)}
    return frozenset(imports | named | premises | (shown - {""}) | reached)


def record(root: str | os.PathLike[str], origin: str = "") -> Contract:
    """The contract of the vLLM whose package is the folder ``root``.

    The same sources give the same contract. ``origin`` says where they are from; without it, it is
    the metadata folder beside them.

    Raises:
        UnreadableVllmError: no package ``vllm``, or one that does not say its version.
    """
    root = os.path.abspath(root)
    home = os.path.dirname(root)
    installed = find("vllm", [home])
    if installed is None or installed.root != root or not installed.version:
        raise UnreadableVllmError(
            f"{root} is no vLLM that could be recorded",
            found="no version" if installed else "no package vllm",
            needed="a folder vllm with its sources, its _version.py or its metadata",
            next_step="name the folder that `import vllm` would load, from an installation or an"
            " unpacked distribution",
        )
    tree = SourceTree(root, "vllm")
    consumers = [load_speculators(release) for release in speculators_releases()]
    symbols = sorted(symbols_asked(tree, consumers))
    findings = {symbol: tree.probe(symbol) for symbol in symbols}
    release = installed.version.partition("+")[0]
    return Contract(release, origin or _metadata(home), _sha256(tree), findings)


def _metadata(home: str) -> str:
    """The metadata folder of the distribution that was unpacked here, by name and version."""
    names = (
        name
        for name in sorted(os.listdir(home))
        if name.startswith("vllm") and name.endswith((".dist-info", ".egg-info"))
    )
    return next(names, os.path.basename(home))


def _sha256(tree: SourceTree) -> str:
    digest = hashlib.sha256()
    for name in tree.files():
        with open(os.path.join(tree.root, name), "rb") as file:
            digest.update(f"{name}\0".encode() + hashlib.sha256(file.read()).digest())
    return digest.hexdigest()
