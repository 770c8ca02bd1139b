"""Options and values that several subcommands take."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

FORMATS = ("text", "json", "github", "junit")


def add_format(parser: argparse.ArgumentParser) -> None:
    """``--format``."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="text",
        help="text to read, JSON, GitHub workflow commands, or JUnit XML (default: text)",
    )


def version(text: str) -> str:
    """The type of an option that names a release.

    Raises:
        ArgumentTypeError: it is no version.
    """
    from packaging.version import InvalidVersion, Version

    try:
        Version(text)
    except InvalidVersion:
        raise argparse.ArgumentTypeError(f"{text!r} is no version such as 0.32.0") from None
    return text


def recorded(text: str, releases: Sequence[str]) -> str:
    """The recorded release that is the version ``text``, however spelled; else ``text`` itself."""
    from packaging.version import InvalidVersion, Version

    try:
        wanted = Version(text)
    except InvalidVersion:
        return text
    return next((name for name in releases if Version(name) == wanted), text)
