import json
import os

import pytest
import torch

from tests.files.making import LAYERS, header, sample, states, write
from vllm_compat.extraction.errors import TargetError
from vllm_compat.extraction.formats import FORMATS, get_format
from vllm_compat.extraction.manifest import manifest_name, refused
from vllm_compat.extraction.samples import Sample, Shard
from vllm_compat.extraction.target import Target
from vllm_compat.extraction.verify import verify

BOTH = pytest.mark.parametrize("file_format", FORMATS)


def folder_of(folder, file_format, samples=None, rows=None, others=()):
    """A finished folder of samples, and of entries that have no file."""
    with Target(folder) as target:
        target.resume(header(file_format))
        for each in samples or map(sample, range(6)):
            target.record([write(folder, each, file_format, rows)])
        target.record(others)
        target.finish()
    return folder


@BOTH
def test_a_whole_folder_passes(tmp_path, file_format):
    report = verify(folder_of(tmp_path, file_format))
    lengths = [len(sample(i).token_ids) for i in range(6)]
    sizes = [(tmp_path / get_format(file_format).file_name(i)).stat().st_size for i in range(6)]
    assert report.passed
    assert report.to_dict() == {
        "passed": True, "folder": str(tmp_path), "ok": 6, "damaged": 0, "bad": 0, "missing": 0,
        "unexpected": 0, "tokens": sum(lengths), "bytes": sum(sizes), "cut": 0, "problems": [],
        "problems_left_out": 0,
    }  # fmt: skip
    assert "all samples are right" in str(report)
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()


@BOTH
def test_any_flipped_bit_is_found(tmp_path, file_format):
    folder_of(tmp_path, file_format)
    path = tmp_path / get_format(file_format).file_name(2)
    content = path.read_bytes()
    for position in range(0, len(content), 97):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        report = verify(tmp_path)
        assert (report.ok, report.damaged) == (5, 1)
        [(name, text)] = report.problems
        assert name == path.name
        assert text.startswith("checksum ")


@BOTH
def test_gone_truncated_missing_bad_and_unexpected(tmp_path, file_format):
    name = get_format(file_format).file_name
    bad = refused(sample(4), "preempted for ever")
    folder_of(tmp_path, file_format, map(sample, (0, 1, 2, 5)), others=[bad])
    size = (tmp_path / name(1)).stat().st_size
    (tmp_path / name(0)).unlink()
    os.truncate(tmp_path / name(1), 20)
    (tmp_path / name(8)).write_bytes(b"")
    (tmp_path / "core.123").write_bytes(b"")
    report = verify(tmp_path, expected=8)
    assert not report.passed
    assert (report.ok, report.damaged, report.bad, report.missing, report.unexpected) == (
        2, 2, 1, 3, 2,
    )  # fmt: skip
    assert sorted(report.problems) == sorted(
        [
            ("core.123", "not recorded in any manifest"),
            (name(8), "not recorded in any manifest"),
            ("sample 3", "not recorded in any manifest"),
            ("sample 6", "not recorded in any manifest"),
            ("sample 7", "not recorded in any manifest"),
            ("sample 4", "recorded as bad: preempted for ever"),
            (name(0), "the file is gone"),
            (name(1), f"20 bytes instead of {size}"),
        ]
    )
    assert f"{name(0)}: the file is gone" in str(report)


@BOTH
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_value_that_is_not_finite_is_located(tmp_path, file_format, value):
    rows = states(sample(0, 700))
    rows[612, 2, 17] = float(value)
    [(_, text)] = verify(folder_of(tmp_path, file_format, [sample(0, 700)], rows)).problems
    assert text == "a value that is not finite, layer 5, token 612"


@pytest.mark.parametrize(
    ("each", "rows", "says"),
    [
        (sample(0, 5), torch.zeros(5, LAYERS, 16, dtype=torch.bfloat16), "states of shape [(5, 4"),
        (sample(0, 5), torch.zeros(5, LAYERS, 24), "states of dtype float32 instead of bfloat16"),
    ],
)
@BOTH
def test_files_that_are_whole_but_not_the_runs(tmp_path, file_format, each, rows, says):
    [(_, text)] = verify(folder_of(tmp_path, file_format, [each], rows)).problems
    assert text.startswith(says)


@BOTH
def test_another_samples_tokens_in_the_file_are_found(tmp_path, file_format):
    with Target(tmp_path) as target:
        target.resume(header(file_format))
        entry = write(tmp_path, Sample(0, [1, 2, 3]), file_format, states(sample(0, 3)))
        entry.tokens = refused(Sample(0, [1, 2, 4]), "").tokens
        target.record([entry])
        target.finish()
    [(_, text)] = verify(tmp_path).problems
    assert text == "holds 3 token ids that are not the 3 extracted"


def test_a_damaged_line_is_told(tmp_path):
    folder_of(tmp_path, "native")
    path = tmp_path / manifest_name(Shard())
    path.write_bytes(path.read_bytes().replace(b'"index":1', b'"index":7'))
    report = verify(tmp_path)
    assert (report.ok, report.missing, report.unexpected) == (5, 1, 1)
    assert ("manifest", f"line 2 of {path} is damaged") in report.problems


def test_only_so_many_problems_are_named(tmp_path):
    folder_of(tmp_path, "native")
    report = verify(tmp_path, expected=56, limit=3)
    assert (report.missing, len(report.problems), report.problems_left_out) == (50, 3, 47)
    assert str(report).endswith("and 47 more")


def test_cut_samples_are_counted(tmp_path):
    cut = Sample(0, [1, 2], [0, 1], cut_from=9)
    assert verify(folder_of(tmp_path, "native", [cut, sample(1)])).cut == 1


def test_nothing_to_verify(tmp_path):
    with pytest.raises(TargetError, match=r"found: no run.json in it"):
        verify(tmp_path)
    with pytest.raises(TargetError, match="found: no such folder"):
        verify(tmp_path / "none")
