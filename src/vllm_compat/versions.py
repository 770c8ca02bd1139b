"""What the version of a vLLM tells about it."""

from __future__ import annotations

import re

# The oldest vLLM that is supported, and the newest that the adapters were tested with.
OLDEST_KNOWN, NEWEST_KNOWN = "0.11.0", "0.33.0"


def numbers(version: str) -> tuple[int, ...]:
    """The release's numbers, to compare; none where the version does not start with them.

    By hand, since importing packaging.version takes longer than all probes together.
    """
    start = re.match(r"\d+(\.\d+)*", version)
    if start is None:
        return ()
    found = [int(number) for number in start.group().split(".")]
    return (*found, *[0] * (3 - len(found)))


def says_nothing(version: str) -> bool:
    """Whether this is the version of no release: of a fork, or a build without tags (0.1.dev1)."""
    return numbers(version) < numbers(OLDEST_KNOWN)


def has_come(release: str, version: str) -> bool:
    """Whether a vLLM of this version is ``release`` or a later one.

    One whose version says nothing counts as the newest, and a pre-release as its release: then what
    is missing in it is taken for changed, rather than for not there yet.
    """
    return says_nothing(version) or numbers(version) >= numbers(release)


def newer_than_known(version: str) -> bool:
    """Whether this vLLM is newer than any that the adapters were tested with."""
    return numbers(version) > numbers(NEWEST_KNOWN)
