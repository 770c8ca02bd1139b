"""A submodule that a later release of a package has and the installed one has not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from vllm_compat.errors import PatchError
from vllm_compat.patching import AddModule, PatchSet


def hashing(parent: ModuleType) -> ModuleType:
    module = ModuleType("olden.hashing")
    vars(module)["digest"] = vars(parent)["digest"]
    return module


@pytest.fixture
def olden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "olden"
    package.mkdir()
    (package / "__init__.py").write_text("def digest():\n    return 'digest'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "olden"]:
        del sys.modules[name]


@pytest.mark.parametrize("first", ["install", "import"])
def test_it_can_be_imported_and_is_gone_after_revert(olden: Path, first: str) -> None:
    if first == "import":
        __import__("olden")
    patches = PatchSet([AddModule("olden", "hashing", hashing, "test")])
    patches.install()
    from olden.hashing import digest

    assert digest() == "digest"
    patches.revert()
    assert "olden.hashing" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        __import__("olden.hashing")


def test_one_that_is_there_already_is_refused(olden: Path) -> None:
    (olden / "hashing.py").write_text("")
    __import__("olden.hashing")
    patches = PatchSet([AddModule("olden", "hashing", hashing, "test")])
    with pytest.raises(PatchError, match="already there"):
        patches.install()
    assert sys.modules["olden.hashing"].__file__ == str(olden / "hashing.py")
