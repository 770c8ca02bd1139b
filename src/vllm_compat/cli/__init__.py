"""The command ``vllm-compat``: one module a subcommand, and ``output`` for what all of them say.

None of it needs torch, vLLM or speculators to be importable: they are read, if they are there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from enum import IntEnum

import vllm_compat
from vllm_compat.errors import VllmCompatError

PROGRAM = "vllm-compat"


class Exit(IntEnum):
    """What the exit code says; argparse gives ``USAGE`` by itself."""

    FINE = 0
    NOT_COVERED = 1
    USAGE = 2
    COULD_NOT_LOOK = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv``, or with the arguments of the process; the exit code."""
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except VllmCompatError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
    except (OSError, SyntaxError) as error:
        unreadable = VllmCompatError(
            "a source file could not be read",
            found=str(error),
            next_step="check that the package is whole: install it again",
        )
        print(f"{PROGRAM}: {unreadable}", file=sys.stderr)
    return Exit.COULD_NOT_LOOK


def parser() -> argparse.ArgumentParser:
    """The parser, with all subcommands."""
    from vllm_compat.cli import check, diff, extract, record, verify

    whole = argparse.ArgumentParser(
        PROGRAM,
        description="What of vLLM changed under speculators, and under other packages.",
        epilog="Exit code: 0 fine, or covered by vllm_compat.apply(); 1 something is not covered;"
        " 2 wrong usage; 3 could not look.",
    )
    whole.add_argument(
        "--version", action="version", version=f"{PROGRAM} {vllm_compat.__version__}"
    )
    commands = whole.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (check, diff, record, extract, verify):
        command.add(commands)
    return whole
