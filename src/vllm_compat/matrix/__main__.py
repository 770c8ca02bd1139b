"""``python -m vllm_compat.matrix``, at the top of a checkout: writes the matrix, or checks it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from vllm_compat.errors import VllmCompatError
from vllm_compat.matrix.writing import NoMarkersError, rendered


def main(argv: Sequence[str] | None = None) -> int:
    """Run with ``argv``, or with the arguments of the process; the exit code."""
    parser = argparse.ArgumentParser(
        "python -m vllm_compat.matrix",
        description="Writes compat_matrix.yaml, and the table in README.md, of the folder it is"
        " started in. Needs PyYAML.",
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a file is stale"
    )
    arguments = parser.parse_args(argv)
    try:
        wanted = rendered(Path())
    except (VllmCompatError, NoMarkersError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    stale = [
        path
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if arguments.check:
            print(f"{path} is stale: python -m vllm_compat.matrix writes it", file=sys.stderr)
        else:
            path.write_text(wanted[path], encoding="utf-8")
            print(f"{path} written")
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
