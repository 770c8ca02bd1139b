"""Put wrappers on attributes of other packages, all or nothing, and take them off exactly.

Patches are values (`Wrap`, `Replace`, `Add`, `AddModule`); a `PatchSet` puts them on. Modules that
are not imported yet are patched when they are, so nothing is imported early: not the targets and,
until the first patch is really made, not wrapt either.
"""

from vllm_compat.patching.patch import Add, AddModule, Patch, Replace, Wrap
from vllm_compat.patching.patch_set import PatchSet
from vllm_compat.patching.wrapping import Wrapper, wrap_method

__all__ = ["Add", "AddModule", "Patch", "PatchSet", "Replace", "Wrap", "Wrapper", "wrap_method"]
