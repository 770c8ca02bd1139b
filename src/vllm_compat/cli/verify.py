"""``vllm-compat verify DIR``: reads an extraction back and says what is wrong with it."""

from __future__ import annotations

import argparse
import json

from vllm_compat.cli import Exit


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "verify",
        help="read an extraction back",
        description="Reads every sample of a folder: checksum, ids, shape, dtype, finite values."
        " Exit code: 0 all whole and right, 1 not, 3 could not look.",
    )
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--expected", type=int, metavar="N", help="how many samples the source has")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read, and print the report."""
    from vllm_compat.extraction.verify import verify

    report = verify(arguments.folder, expected=arguments.expected, threads=arguments.threads)
    print(json.dumps(report.to_dict(), indent=2) if arguments.format == "json" else report)
    return Exit.FINE if report.passed else Exit.NOT_COVERED
