import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import torch

from tests.files.making import header, sample, states, write
from vllm_compat.extraction.errors import DiskFullError, TargetError, TargetLockedError
from vllm_compat.extraction.formats.writer import SampleWriter
from vllm_compat.extraction.header import config_hash, file_hash, read_header
from vllm_compat.extraction.manifest import manifest_name, refused
from vllm_compat.extraction.samples import Sample, Shard
from vllm_compat.extraction.target import Target


def run(folder, indices, shard=None, head=None):
    """One run that extracts the given samples; what it found done before."""
    head = head or header()
    with Target(folder, shard=shard) as target:
        done = target.resume(head)
        target.record([write(folder, sample(i), head.format) for i in indices])
        target.finish()
    return done


def found(folder, *, head=None, shard=None, count=12, **options):
    with Target(folder, shard=shard) as target:
        done = target.resume(head or header(), **options)
    return [index for index in range(count) if index in done], done


def test_what_is_recorded_is_done(tmp_path):
    folder = tmp_path / "made" / "on the way"
    assert len(run(folder, [0, 1, 5])) == 0
    indices, done = found(folder)
    assert (indices, len(done), done.notes) == ([0, 1, 5], 3, [])


def test_holes_and_truncated_files_are_not_done(tmp_path):
    run(tmp_path, range(6))
    (tmp_path / "hs_1.safetensors").unlink()
    os.truncate(tmp_path / "hs_3.safetensors", 100)
    (tmp_path / "hs_4.safetensors").unlink()
    (tmp_path / "hs_4.safetensors").symlink_to(tmp_path / "nowhere")
    indices, done = found(tmp_path)
    assert indices == [0, 2, 5]
    gone = "hs_1.safetensors, hs_3.safetensors, hs_4.safetensors"
    assert done.notes == [f"recorded, but gone or of another size: {gone}"]


def test_a_file_that_no_manifest_records_is_not_done(tmp_path):
    run(tmp_path, [0])
    write(tmp_path, sample(1))  # killed between the rename and the record
    assert found(tmp_path)[0] == [0]
    run(tmp_path, [1])
    assert found(tmp_path)[0] == [0, 1]


def test_what_was_left_half_written_is_removed(tmp_path):
    run(tmp_path, [0])
    (tmp_path / ".hs_1.safetensors.tmp-123").write_bytes(b"half")
    (tmp_path / ".run.json.tmp-123").write_bytes(b"half")
    (tmp_path / "notes.txt").write_bytes(b"mine")
    found(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [
        ".lock", ".lock-00000-of-00001", "hs_0.safetensors", "manifest-00000-of-00001.jsonl",
        "notes.txt", "run.json",
    ]  # fmt: skip


def test_another_shards_work_in_hand_is_left_alone(tmp_path):
    with Target(tmp_path, shard=Shard(1, 2)) as other:
        other.resume(header())
        rows = states(sample(3))
        writer = SampleWriter(
            "native", tmp_path, 3, sample(3).token_ids, None, *rows.shape[1:], rows.dtype
        )
        writer.write(0, rows)
        run(tmp_path, [0, 2], Shard(0, 2))
        assert writer.finish().file == "hs_3.safetensors"


def test_shards_add_to_one_folder_and_a_later_run_may_divide_otherwise(tmp_path):
    run(tmp_path, [0, 2, 4], Shard(0, 2))
    run(tmp_path, [1, 3], Shard(1, 2))
    indices, done = found(tmp_path, shard=Shard(0, 2))
    assert (indices, len(done)) == ([0, 1, 2, 3, 4], 3)
    indices, done = found(tmp_path, shard=Shard(1, 3))
    assert (indices, len(done)) == ([0, 1, 2, 3, 4], 2)
    assert found(tmp_path)[0] == [0, 1, 2, 3, 4]


def test_a_bad_sample_is_not_tried_again_unless_asked(tmp_path):
    with Target(tmp_path) as target:
        target.resume(header())
        target.record([refused(sample(2), "no finite states")])
    assert found(tmp_path)[0] == [2]
    assert found(tmp_path, retry_bad=True)[0] == []


def test_a_damaged_line_is_told_and_its_sample_done_again(tmp_path):
    run(tmp_path, range(3))
    path = tmp_path / manifest_name(Shard())
    path.write_bytes(path.read_bytes().replace(b'"index":1', b'"index":7'))
    indices, done = found(tmp_path)
    assert (indices, done.notes) == ([0, 2], [f"line 2 of {path} is damaged"])


def test_other_tokens_under_the_same_index_are_refused(tmp_path):
    run(tmp_path, [4])
    _, done = found(tmp_path)
    done.check(sample(4))
    with pytest.raises(TargetError, match="sample 4 is not the one whose states are in the folder"):
        done.check(Sample(4, [*sample(4).token_ids, 1]))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"model": "other"}, "model 'tiny'"),
        ({"model_config": "fedc"}, "model_config '0123456789abcdef'"),
        ({"layer_ids": (1, 3, 7, 5)}, "layer_ids (1, 3, 5, 7)"),
        ({"convention": "vLLM's"}, "convention 'id i: output of decoder layer i"),
        ({"format": "legacy"}, "format 'native'"),
        ({"dtype": "float16"}, "dtype 'bfloat16'"),
        ({"hidden_size": 8}, "hidden_size 24"),
        ({"max_len": 2048}, "max_len None"),
        ({"t2d": "ab"}, "t2d None"),
        ({"d2t": "ab"}, "d2t None"),
        ({"layout": 2}, "layout 1"),
    ],
)
def test_a_folder_of_another_run_is_refused(tmp_path, changes, names):
    run(tmp_path, [0])
    before = sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir())
    with (
        Target(tmp_path) as target,
        pytest.raises(TargetError, match=re.escape(f"found: {names}")),
    ):
        target.resume(header(**changes))
    assert sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir()) == before
    assert found(tmp_path)[0] == [0]


def test_other_versions_are_recorded_and_no_hindrance(tmp_path):
    old, new = {"vllm": "0.26.0"}, {"vllm": "0.32.0"}
    for version in (old, new, old):
        run(tmp_path, [], head=header(versions=(version,)))
    assert read_header(str(tmp_path)).versions == (old, new)
    assert json.loads((tmp_path / "run.json").read_bytes())["layer_ids"] == [1, 3, 5, 7]


def test_files_of_unknown_origin_are_refused(tmp_path):
    (tmp_path / "hs_3.safetensors").write_bytes(b"")
    with (
        Target(tmp_path) as target,
        pytest.raises(TargetError, match="found: 1 files of samples, and no run"),
    ):
        target.resume(header())


def test_a_header_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "run.json").write_bytes(b"{")
    with Target(tmp_path) as target, pytest.raises(TargetError, match=r"cannot read .*run.json"):
        target.resume(header())


def test_hashes(tmp_path):
    config = {"hidden_size": 8, "_name_or_path": "/a", "transformers_version": "4"}
    assert config_hash(config) == config_hash({"hidden_size": 8})
    assert config_hash(config) != config_hash({"hidden_size": 9})
    (tmp_path / "t2d").write_bytes(b"abc")
    assert file_hash(tmp_path / "t2d") == "ba7816bf8f01cfea"


# -- locks --------------------------------------------------------------------------------------

HOLD = """
import sys, os, time
from vllm_compat.extraction.target import Target
target = Target(sys.argv[1])
if sys.argv[2:] and os.fork() == 0:
    time.sleep(60)
print(os.getpid(), flush=True)
time.sleep(60)
"""


def holder(folder, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == f"{process.pid}\n"
    return process


def test_a_second_run_is_refused_with_the_firsts_pid(tmp_path):
    first = holder(tmp_path)
    with pytest.raises(TargetLockedError, match=f"found: process {first.pid} on"):
        Target(tmp_path)
    with pytest.raises(TargetLockedError, match=f"found: process {first.pid} on"):
        found(tmp_path, shard=Shard(1, 2))  # its samples are all the first's as well
    first.kill()
    first.wait()
    Target(tmp_path).close()


def test_a_child_that_outlives_a_killed_run_keeps_the_next_one_out(tmp_path):
    first = holder(tmp_path, "with a child")
    first.kill()
    first.wait()
    with pytest.raises(TargetLockedError, match="which is gone; a process it started still holds"):
        Target(tmp_path)
    os.killpg(first.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while True:
        with suppress(TargetLockedError):
            return Target(tmp_path).close()
        assert time.monotonic() < deadline, "the lock outlived every process"


def test_shards_do_not_lock_each_other_out(tmp_path):
    with Target(tmp_path, shard=Shard(0, 2)) as one, Target(tmp_path, shard=Shard(1, 2)) as other:
        one.resume(header())
        other.resume(header())
        with pytest.raises(TargetLockedError):
            Target(tmp_path, shard=Shard(1, 2))
        with pytest.raises(TargetLockedError):
            found(tmp_path, shard=Shard(1, 3))
    assert found(tmp_path, shard=Shard(1, 3))[0] == []


# -- disks --------------------------------------------------------------------------------------


def test_a_full_disk_and_then_room(small_disk):
    def extract(indices):
        """A sample of 320 KiB each; the indices that were recorded."""
        with Target(small_disk) as target:
            done = target.resume(header(hidden_size=1024))
            for index in indices:
                if index not in done:
                    each = sample(index, 40)
                    rows = torch.full((40, 4, 1024), index, dtype=torch.bfloat16)
                    target.record([write(small_disk, each, rows=rows)])

    with pytest.raises(DiskFullError, match="cannot write sample 3"):
        extract(range(5))
    # What did not get its name stays, as after a kill: nothing aborted it.
    (small_disk / "hs_0.safetensors").unlink()
    extract([3])
    with Target(small_disk) as target:
        done = target.resume(header(hidden_size=1024))
        assert [index for index in range(5) if index in done] == [1, 2, 3]
        assert target.free_bytes() < 200_000


def test_free_bytes(small_disk):
    with Target(small_disk) as target:
        free = target.free_bytes()
        assert 1_000_000 < free <= 1 << 20
        (small_disk / "filler").write_bytes(b"0" * 500_000)
        assert free - 520_000 < target.free_bytes() <= free - 500_000


def test_a_folder_on_a_read_only_disk_is_refused_at_once(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for folder in (small_disk, small_disk / "new"):
        with pytest.raises(TargetError, match="needed: a folder this user may write to"):
            Target(folder)


def test_a_folder_that_is_removed_during_the_run(tmp_path):
    folder = tmp_path / "out"
    with Target(folder) as target:
        target.resume(header())
        folder.rename(tmp_path / "elsewhere")
        for act in (
            lambda: target.record([refused(sample(0), "")]),
            lambda: write(folder, sample(0)),
            target.free_bytes,
            target.finish,
        ):
            with pytest.raises(TargetError, match="the folder was removed, renamed or unmounted"):
                act()


def test_a_file_in_the_folders_place(tmp_path):
    (tmp_path / "out").write_bytes(b"")
    with pytest.raises(TargetError, match="cannot make the folder"):
        Target(tmp_path / "out")
