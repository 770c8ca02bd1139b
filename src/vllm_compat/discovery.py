"""Which vLLM and speculators are installed, found without importing either.

The metadata is read directly: importlib.metadata costs twenty milliseconds to import and cannot
tell which distribution a package directory belongs to when several claim it.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from importlib.machinery import PathFinder

from vllm_compat.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from packaging.version import Version

_METADATA_SUFFIXES = (".dist-info", ".egg-info")
# How sure it is that a distribution brought a package directory.
_NO_PROOF, _BY_NAME, _BY_TOP_LEVEL, _BY_SOURCE_TREE, _BY_LINK, _BY_RECORD = range(6)


class Installed(NamedTuple):
    """One installed package.

    ``package`` is its import name, ``root`` its directory. ``distribution`` is the name of the
    distribution which brought it, None for a bare source tree. ``version`` is the text as it
    stands in the metadata, None if nobody says.
    """

    package: str
    distribution: str | None
    version: str | None
    root: str
    editable: bool

    @property
    def release(self) -> Version | None:
        """The version as an object to compare; None if there is none or it cannot be read."""
        # Most runs never compare versions, and packaging takes its time to import.
        from packaging.version import InvalidVersion, Version

        try:
            return Version(self.version) if self.version else None
        except InvalidVersion:
            return None


def find_vllm(path: Sequence[str] | None = None) -> Installed | None:
    """The vLLM which ``import vllm`` would take, searched on ``path`` or as Python does.

    ``VLLM_VERSION_OVERRIDE``, which stamps the version of builds from source, wins over what
    the metadata says.
    """
    return find("vllm", path, os.environ.get("VLLM_VERSION_OVERRIDE"))


def find_speculators(path: Sequence[str] | None = None) -> Installed | None:
    """The speculators which ``import speculators`` would take, searched as for find_vllm."""
    return find("speculators", path)


def package_root(package: str, path: Sequence[str] | None = None) -> str | None:
    """The directory of a top-level package; None if there is none. Imports nothing."""
    try:
        if path is None:
            spec = importlib.util.find_spec(package)
        else:
            spec = PathFinder.find_spec(package, list(path))
    except (ImportError, ValueError):
        return None
    # A bare directory of that name, such as a checkout's, is no installed package.
    if spec is None or not spec.submodule_search_locations or spec.origin is None:
        return None
    return os.path.dirname(os.path.abspath(spec.origin))


def find(
    package: str, path: Sequence[str] | None = None, version: str | None = None
) -> Installed | None:
    """The package which ``import package`` would take; ``version`` wins over what it says."""
    root = package_root(package, path)
    if root is None:
        return None
    stamped = _stamped_version(root)
    owner, proof = _owner(package, root, sys.path if path is None else path, stamped)
    return Installed(
        package,
        owner.name if owner else None,
        version or (owner.version if owner else None) or stamped,
        root,
        editable=proof in (_BY_SOURCE_TREE, _BY_LINK),
    )


def _owner(
    package: str, root: str, path: Sequence[str], stamped: str | None
) -> tuple[_Distribution | None, int]:
    """The distribution which brought ``root``, and how sure that is."""
    home = os.path.realpath(os.path.dirname(root))
    # The usual case, settled by one folder and one file: the others need not be looked into.
    recorded = [d for d in _distributions(home, home, package) if d.records(package)]
    if recorded:
        # Two wheels can have written to the same directory; the files are the later one's.
        return next((d for d in recorded if d.version == stamped), recorded[0]), _BY_RECORD
    folders = dict.fromkeys(os.path.realpath(entry) for entry in (home, *path))
    distributions = [d for folder in folders for d in _distributions(folder, home)]
    distributions.sort(key=lambda distribution: not distribution.key.startswith(package))
    owner, best = None, _NO_PROOF
    for distribution in distributions:
        if best > _BY_NAME and not distribution.key.startswith(package):
            break
        proof = distribution.proof(package, root)
        if proof > best:
            owner, best = distribution, proof
    return owner, best


def _distributions(folder: str, home: str, start: str = "") -> list[_Distribution]:
    """Those in ``folder`` whose names start so; ``home`` is where the package is."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [
        _Distribution(folder, name, is_beside=folder == home)
        for name in names
        if name.endswith(_METADATA_SUFFIXES) and _normalized(name).startswith(start)
    ]


def _normalized(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


class _Distribution:
    """A .dist-info or .egg-info directory."""

    def __init__(self, folder: str, name: str, is_beside: bool) -> None:
        self._folder = folder
        self._path = os.path.join(folder, name)
        self._is_beside = is_beside
        # Dashes separate the name from the version, and that from the rest of an egg's.
        self._stem, _, self._type = name.rpartition(".")
        self._name, _, self._version = self._stem.partition("-")
        self.key = _normalized(self._name)
        self._header: dict[str, str] | None = None

    @property
    def name(self) -> str:
        return self._field("name") or self._name

    @property
    def version(self) -> str | None:
        return self._field("version") or self._version.partition("-")[0] or None

    def records(self, package: str) -> bool:
        """Whether the list of installed files holds the package beside this."""
        if not self._is_beside:
            return False
        # As bytes, since that of vLLM has thousands of lines.
        record = _read_bytes(os.path.join(self._path, "RECORD"))
        line = f"{package}/__init__.py,".encode()
        return record.startswith(line) or b"\n" + line in record

    def proof(self, package: str, root: str) -> int:
        """How surely this distribution brought the package directory ``root``."""
        if self.records(package):
            return _BY_RECORD
        record = self._read("RECORD")
        top_level = self._read("top_level.txt").split()
        if top_level and package not in top_level:
            return _NO_PROOF
        if self._links_to(root, record):
            return _BY_LINK
        if record or not self._is_beside:
            return _NO_PROOF
        if top_level:
            # A build leaves unversioned metadata beside the sources, an installation versioned.
            is_source = self._type == "egg-info" and not self._version
            return _BY_SOURCE_TREE if is_source else _BY_TOP_LEVEL
        return _BY_NAME if self.key == package else _NO_PROOF

    def _links_to(self, root: str, record: str) -> bool:
        """Whether this is an editable install of the source tree around ``root``."""
        if folder := _editable_folder(self._read("direct_url.json")):
            home = os.path.realpath(os.path.dirname(root))
            return home in (os.path.realpath(folder), os.path.realpath(f"{folder}/src"))
        # Without that file: the hook which the install left in site-packages.
        for line in record.splitlines():
            file = line.partition(",")[0]
            if file.startswith("__editable__") and file.endswith((".pth", ".py")):
                hook = _read_text(os.path.join(self._folder, file))
                if repr(root) in hook or os.path.dirname(root) in hook.splitlines():
                    return True
        return False

    def _field(self, name: str) -> str | None:
        if self._header is None:
            self._header = {}
            text = self._read("METADATA") or self._read("PKG-INFO")
            # The fields end at the first empty line; a description follows.
            for line in text.partition("\n\n")[0].splitlines():
                key, _, value = line.partition(":")
                self._header.setdefault(key.lower(), value.strip())
        return self._header.get(name)

    def _read(self, name: str) -> str:
        return _read_text(os.path.join(self._path, name))


def _editable_folder(direct_url: str) -> str | None:
    """The folder which an editable install points to."""
    if "editable" not in direct_url:
        return None
    import json
    from urllib.request import url2pathname

    try:
        data = json.loads(direct_url)
        if data["dir_info"]["editable"] and data["url"].startswith("file://"):
            return url2pathname(data["url"][len("file://") :])
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _stamped_version(root: str) -> str | None:
    """The version which the build wrote into the package's _version.py."""
    try:
        tree = ast.parse(_read_text(os.path.join(root, "_version.py")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if names & {"version", "__version__"} and isinstance(node.value.value, str):
                return node.value.value
    return None


def _read_text(path: str) -> str:
    """The text of a file, empty if there is none; metadata must not be able to stop us."""
    return _read_bytes(path).decode("utf-8", "replace").replace("\r\n", "\n")


def _read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
