"""``vllm-compat record``: the contract of a vLLM, as the records that come with this package."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from vllm_compat.cli import Exit, options


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "record",
        help="record the signatures of a vLLM",
        description="Records what a vLLM has under every symbol that speculators relies on: of the"
        " installed one, unless another is named.",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--version",
        metavar="VERSION",
        type=options.version,
        help="a release, fetched by pip and not installed",
    )
    source.add_argument(
        "--folder", metavar="PATH", help="a wheel or source distribution, as a file or unpacked"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="where to write it; other releases in the file stay (default: standard output)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Record and write."""
    from vllm_compat.contracts import dump, record_folder, record_installed, record_release, update

    if arguments.version:
        contract = record_release(arguments.version)
    elif arguments.folder:
        contract = record_folder(arguments.folder)
    else:
        contract = record_installed()
    output: Path | None = arguments.output
    before: dict[str, Any] = {"releases": {}, "symbols": {}}
    if output is not None and output.exists():
        before = json.loads(output.read_text(encoding="utf-8"))
    text = dump(update(before, contract))
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")
        print(f"vLLM {contract.release} recorded in {output}", file=sys.stderr)
    return Exit.FINE
