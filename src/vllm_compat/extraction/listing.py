"""What lies in a folder of states, found in one pass: a million names are slow to list."""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass, field

from vllm_compat.extraction.errors import explained
from vllm_compat.extraction.formats import Format
from vllm_compat.extraction.manifest import is_manifest

ABSENT = -1


@dataclass
class Listing:
    """``sizes[i]`` is the size of sample ``i``'s file, or ABSENT; the rest are names.

    ``manifests`` are sorted, ``others`` is what is neither a sample nor a manifest.
    """

    sizes: array[int] = field(default_factory=lambda: array("q"))
    manifests: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def size(self, index: int) -> int:
        """The size of sample ``index``'s file, or ABSENT."""
        return self.sizes[index] if index < len(self.sizes) else ABSENT

    def _put(self, index: int, size: int) -> None:
        missing = index + 1 - len(self.sizes)
        if missing > 0:
            self.sizes.extend(array("q", [ABSENT]) * max(missing, len(self.sizes) // 8))
        self.sizes[index] = size


def list_folder(folder: str, form: Format) -> Listing:
    """List a folder that holds samples of a format.

    Raises:
        TargetError: it cannot be read.
    """
    listing = Listing()
    with explained("cannot read the folder", folder), os.scandir(folder) as files:
        for file in files:
            index = form.index_of(file.name)
            if index is not None:
                listing._put(index, _size(file))
            elif is_manifest(file.name):
                listing.manifests.append(file.name)
            else:
                listing.others.append(file.name)
    listing.manifests.sort()
    return listing


def _size(file: os.DirEntry[str]) -> int:
    """The file's size, or ABSENT for a link to nowhere and a file that has just gone."""
    try:
        return file.stat().st_size
    except OSError:
        return ABSENT
