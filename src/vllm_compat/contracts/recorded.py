"""vLLM and speculators out of the records that come with this package: nothing need be installed.

Both answer as their sources do, so the judge cannot tell the difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from packaging.version import Version

from vllm_compat.context import Call, Consumer, Context, Import, Place, Settings
from vllm_compat.contracts import table
from vllm_compat.contracts.table import Contract
from vllm_compat.contracts.usage import Use, uses
from vllm_compat.discovery import Installed
from vllm_compat.errors import VllmCompatError
from vllm_compat.probe import Finding, first_found


class NotRecordedError(VllmCompatError, LookupError):
    """A release, or a symbol of it, of which no record came with this package."""


class RecordedTree:
    """What a vLLM answered when it was recorded; stands in for its ``SourceTree``."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract

    def probe(self, symbol: str, candidates: Sequence[str] = ()) -> Finding:
        """As ``SourceTree.probe``.

        Raises:
            NotRecordedError: nobody asked for this symbol when the record was made.
        """
        return first_found(self._find, symbol, candidates)

    def _find(self, symbol: str) -> Finding:
        try:
            return self.contract.findings[symbol]
        except KeyError:
            raise NotRecordedError(
                f"the record of vLLM {self.contract.release} does not say what {symbol} is",
                found=f"{len(self.contract.findings)} other symbols",
                needed=symbol,
                next_step="record this release again: an adapter asks for more than it did then",
            ) from None


class RecordedConsumer(Consumer):
    """What was read of a speculators when it was recorded; ``uses`` are of its whole package."""

    def __init__(self, release: str, record: Mapping[str, Any]) -> None:
        super().__init__(Installed("speculators", "speculators", release, "", editable=False))
        self.trees = {}
        self.in_process = record["in_process"]
        self.imports = tuple(Import(*row) for row in record["imports"])
        self.all_calls = {
            name: [
                Call(module, line, positional, tuple(keywords))
                for module, line, positional, keywords in rows
            ]
            for name, rows in record["calls"].items()
        }
        self.definitions = frozenset(record["definitions"])
        self.mentions = {
            name: [Place(*row) for row in rows] for name, rows in record["mentions"].items()
        }
        self.takes_first_of_reply = record["takes_first_of_reply"]
        self.uses = tuple(
            Use(how, symbol, module, line, positional, tuple(keywords), open_ended)
            for how, symbol, module, line, positional, keywords, open_ended in record["uses"]
        )


def consumer_record(consumer: Consumer) -> dict[str, Any]:
    """JSON-ready, what ``RecordedConsumer`` is made from."""
    return {
        "in_process": consumer.in_process,
        "imports": [list(row) for row in consumer.imports],
        "calls": {
            name: [[call.module, call.line, call.positional, list(call.keywords)] for call in calls]
            for name, calls in consumer.all_calls.items()
        },
        "definitions": sorted(consumer.definitions),
        "mentions": {name: [list(row) for row in rows] for name, rows in consumer.mentions.items()},
        "takes_first_of_reply": consumer.takes_first_of_reply,
        "uses": [
            [*use[:5], list(use.keywords), use.open_ended]
            for use in uses(consumer.installed.root, "speculators")
        ],
    }


def releases() -> tuple[str, ...]:
    """The vLLM releases that are recorded, oldest first."""
    return table.releases(vllm_table())


def speculators_releases() -> tuple[str, ...]:
    """The speculators releases that are recorded, oldest first."""
    return tuple(sorted(_speculators(), key=Version))


def load_vllm(release: str) -> RecordedTree:
    """A recorded vLLM.

    Raises:
        NotRecordedError: this release is not recorded.
    """
    try:
        return RecordedTree(table.decode(vllm_table(), release))
    except KeyError:
        raise _no_record("vLLM", release, releases()) from None


def load_speculators(release: str) -> RecordedConsumer:
    """A recorded speculators.

    Raises:
        NotRecordedError: this release is not recorded.
    """
    try:
        return RecordedConsumer(release, _speculators()[release])
    except KeyError:
        raise _no_record("speculators", release, speculators_releases()) from None


def recorded_context(
    vllm: RecordedTree, consumer: Consumer, settings: Settings | None = None
) -> Context:
    """The pair, ready to be judged."""
    installed = Installed("vllm", None, vllm.contract.release, "", editable=False)
    return Context(vllm, installed, consumer, settings or Settings())


@lru_cache(maxsize=1)
def vllm_table() -> table.Table:
    """The table that comes with this package."""
    return _data("vllm.json")


@lru_cache(maxsize=1)
def _speculators() -> dict[str, Any]:
    return _data("speculators.json")


def _data(name: str) -> dict[str, Any]:
    text = (files("vllm_compat.contracts") / "data" / name).read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def _no_record(what: str, release: str, known: tuple[str, ...]) -> NotRecordedError:
    return NotRecordedError(
        f"no record of {what} {release} came with this package",
        found=f"{len(known)} releases, {known[0]} to {known[-1]}",
        needed=release,
        next_step="name one of these, or record the release: vllm-compat record",
    )
