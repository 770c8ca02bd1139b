"""``vllm-compat record`` and ``vllm-compat diff``."""

from __future__ import annotations

import json

from vllm_compat.cli import main
from vllm_compat.contracts import releases
from vllm_compat.contracts.table import decode


def test_the_installed_vllm_is_recorded_on_standard_output(site, capsys) -> None:
    site("vllm")
    assert main(["record"]) == 0
    out, err = capsys.readouterr()
    contract = decode(json.loads(out), "0.34.0")
    assert (contract.release, contract.origin, err) == ("0.34.0", "installed", "")
    found = contract.findings["vllm.config:CacheConfig"]
    assert (found.status, str(found.signature)) == ("found", "(block_size)")


def test_a_file_keeps_the_releases_it_has(site, capsys) -> None:
    folder = site("vllm")
    file = folder / "records.json"
    assert main(["record", "--folder", str(folder), "--output", str(file)]) == 0
    (folder / "vllm" / "_version.py").write_text("version = '0.35.0'\n")
    assert main(["record", "--folder", str(folder / "vllm"), "--output", str(file)]) == 0
    assert capsys.readouterr().out == ""
    assert list(json.loads(file.read_text())["releases"]) == ["0.34.0", "0.35.0"]


def test_what_is_no_vllm_is_not_recorded(site, capsys) -> None:
    folder = site("script.py")
    assert main(["record", "--folder", str(folder)]) == 3
    assert "is no vLLM that could be recorded" in capsys.readouterr().err
    assert main(["record"]) == 3
    assert capsys.readouterr().err.startswith("vllm-compat: vllm is not installed\n")


def test_the_difference_of_two_releases(capsys) -> None:
    assert main(["diff", "0.32", "0.33.0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("vLLM 0.32.0 -> 0.33.0: ")
    assert max(map(len, out.splitlines())) <= 80
    line = "  moved: vllm.v1.core.kv_cache_utils:unify_hybrid_kv_cache_specs"
    assert line in [line.split(" (#")[0] for line in out.splitlines()]
    assert main(["diff", "0.32.0", "0.33.0", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["before"], data["after"]) == (1, "0.32.0", "0.33.0")


def test_a_difference_with_what_is_not_recorded(site, capsys) -> None:
    folder = site("vllm")
    assert main(["diff", "0.33.0", str(folder), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["after"] == "0.34.0"
    assert main(["diff", "installed", "0.33.0", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["before"] == "0.34.0"
    assert main(["diff", "0.33.0", "none"]) == 3
    assert f"found: {len(releases())} releases" in capsys.readouterr().err
