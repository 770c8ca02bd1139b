"""Where in a vLLM a name is that is no longer where it was."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from vllm_compat.contracts.recorded import RecordedTree
from vllm_compat.probe import SourceTree

if TYPE_CHECKING:
    from vllm_compat.context import Tree

# vLLM has two thousand modules; a tree far beyond that is not searched to its end.
_MOST_FILES = 10_000
_MOST_PLACES = 3


class Whereabouts:
    """Looks for names, in a vLLM's sources or in the record of one."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._known: dict[str, list[str]] = {}

    def of(self, symbol: str) -> list[str]:
        """Where the name that ``symbol`` ends with is defined now, most likely first.

        One place, where one is nearer to the old one than all others; else at most three.
        """
        if symbol not in self._known:
            self._known[symbol] = self._search(symbol)
        return self._known[symbol]

    def _search(self, symbol: str) -> list[str]:
        module, _, path = symbol.partition(":")
        name = path.partition(".")[0]
        if isinstance(self._tree, RecordedTree):
            findings = self._tree.contract.findings
            places = [
                known
                for known, finding in findings.items()
                if path and known.endswith(f":{path}") and finding.status == "found"
            ]
        elif not name:
            last = module.rpartition(".")[2]
            places = [known for known in self._files if known.rpartition(".")[2] == last]
        else:
            places = [f"{home}:{path}" for home in self._defining(name)]
        places = [place for place in places if self._tree.probe(place).status == "found"]
        places.sort(key=lambda place: (-_in_common(place, module), place.count("."), place))
        if len(places) > 1 and _in_common(places[0], module) > _in_common(places[1], module):
            return places[:1]
        return places[:_MOST_PLACES]

    def _defining(self, name: str) -> Iterator[str]:
        """The modules with a definition of ``name`` at their top level."""
        definition = re.compile(
            rb"^(?:(?:async )?def |class )?%b\b *[:=([]" % re.escape(name).encode(), re.M
        )
        for module, file in self._files.items():
            with suppress(OSError), open(file, "rb") as source:
                if definition.search(source.read()):
                    yield module

    @cached_property
    def _files(self) -> dict[str, str]:
        """The modules of the tree, with their files."""
        found: dict[str, str] = {}
        if not isinstance(self._tree, SourceTree):
            return found
        for folder, folders, files in os.walk(self._tree.root):
            folders.sort()
            inside = os.path.relpath(folder, self._tree.root).split(os.sep)
            parts = [self._tree.package, *(part for part in inside if part != ".")]
            for file in sorted(files):
                if file.endswith(".py"):
                    own = [] if file == "__init__.py" else [file.removesuffix(".py")]
                    found[".".join([*parts, *own])] = os.path.join(folder, file)
            if len(found) > _MOST_FILES:
                break
        return found


def _in_common(place: str, module: str) -> int:
    """How many leading parts two modules have in common."""
    pairs = zip(place.partition(":")[0].split("."), module.split("."), strict=False)
    count = 0
    for one, other in pairs:
        if one != other:
            break
        count += 1
    return count
