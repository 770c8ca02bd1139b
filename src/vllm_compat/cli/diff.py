"""``vllm-compat diff``: what changed between two releases of vLLM."""

from __future__ import annotations

import argparse
import json
import os
import sys
from textwrap import fill
from typing import TYPE_CHECKING

from vllm_compat.cli import Exit, options
from vllm_compat.cli.output import SCHEMA, WIDTH

if TYPE_CHECKING:
    from vllm_compat.checking.difference import Difference, Group
    from vllm_compat.contracts import Contract

INSTALLED = "installed"
TITLES: dict[Group, str] = {
    "breaking": "breaking: calls or imports that worked may fail",
    "behavioural": "behavioural: they work, and may do something else",
    "added": "added",
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "diff",
        help="what changed from one vLLM to another",
        description="Compares everything that speculators relies on.",
    )
    for name in ("before", "after"):
        parser.add_argument(
            name,
            metavar=name.upper(),
            help=f"a recorded release, the word {INSTALLED}, or the path of a wheel, a source"
            " distribution or a folder",
        )
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="text to read, or JSON (default: text)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare and write."""
    from vllm_compat.checking.difference import difference

    found = difference(_contract(arguments.before), _contract(arguments.after))
    if arguments.format == "json":
        data = {"schema": SCHEMA, **found.to_dict()}
        sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(_text(found))
    return Exit.FINE


def _contract(name: str) -> Contract:
    from vllm_compat.contracts import load_vllm, record_folder, record_installed, releases

    if name == INSTALLED:
        return record_installed()
    if os.path.exists(name):
        return record_folder(name)
    return load_vllm(options.recorded(name, releases())).contract


def _text(found: Difference) -> str:
    from vllm_compat.checking.incompatibility import pull_requests

    counts = [f"{len(found.in_group(group))} {group}" for group in TITLES]
    lines = [f"vLLM {found.before} -> {found.after}: {', '.join(counts)}"]
    for group, title in TITLES.items():
        changes = found.in_group(group)
        if changes:
            lines += ["", title]
        for change in changes:
            pr = f" ({pull_requests(change.pr)})" if change.pr else ""
            head = f"{change.kind}: {change.symbol}{pr}"
            lines.append(fill(head, WIDTH, initial_indent="  ", subsequent_indent="    "))
            lines.append(fill(change.what, WIDTH, initial_indent="    ", subsequent_indent="    "))
    if found.not_compared:
        lines += ["", f"{len(found.not_compared)} symbols are recorded of one of the two only"]
    return "\n".join(lines) + "\n"
