import os

import pytest

from tests.files.making import sample, write
from vllm_compat.extraction.errors import DiskFullError, TargetError
from vllm_compat.extraction.ledger import BAD, OK, Ledger
from vllm_compat.extraction.manifest import (
    Entry,
    Manifest,
    from_line,
    is_manifest,
    is_whole,
    manifest_name,
    numbers_of,
    read_manifest,
    refused,
    to_line,
    token_hash,
)
from vllm_compat.extraction.samples import Sample, Shard

NAME = manifest_name(Shard())
ENTRIES = [Entry(i, True, i, f"{i:016x}", 100 + i, f"hs_{i}", 10, "c0ffee", (i, 4, 8), "bfloat16")
           for i in range(4)]  # fmt: skip


def append(folder, entries, name=NAME):
    manifest = Manifest(str(folder / name))
    manifest.append(entries)
    manifest.close()


def read(folder, name=NAME):
    damage = []
    lines = read_manifest(str(folder / name), damage.append)
    return [from_line(line) for _, line in lines], damage


def ledger_of(folder):
    return Ledger(str(folder), sorted(filter(is_manifest, os.listdir(folder))))


def test_a_line_is_what_it_says(tmp_path):
    each = Sample(7, [1, 2, 3], cut_from=9)
    entry = refused(each, 'said "no"\n')
    assert (entry.index, entry.ok, entry.length, entry.cut_from) == (7, False, 3, 9)
    assert from_line(to_line(entry)) == entry
    assert entry.tokens == token_hash([1, 2, 3]) != token_hash([1, 2, 4])
    written = write(tmp_path, sample(3))
    assert from_line(to_line(written)) == written
    assert written.shape == (4, 4, 24)


@pytest.mark.parametrize(
    "entry", [*ENTRIES, refused(sample(2), "why"), refused(Sample(5, [1], cut_from=4), "")]
)
def test_the_fast_way_to_read_a_line_reads_the_same(entry):
    assert numbers_of(to_line(entry)) == (
        entry.index, entry.ok, entry.length, int(entry.tokens, 16), entry.time, entry.bytes
    )  # fmt: skip
    assert is_whole(to_line(entry))


def test_what_is_appended_is_read_in_order(tmp_path):
    append(tmp_path, ENTRIES[:1])
    append(tmp_path, ENTRIES[1:])
    append(tmp_path, [])
    assert read(tmp_path) == (ENTRIES, [])


def test_a_manifest_torn_at_any_byte_of_its_last_two_lines(tmp_path):
    append(tmp_path, ENTRIES)
    path = tmp_path / NAME
    content = path.read_bytes()
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for length in range(starts[2], len(content) + 1):
        whole = 4 if length == len(content) else 3 if length >= starts[3] else 2
        path.write_bytes(content[:length])
        assert read(tmp_path) == (ENTRIES[:whole], [])
        append(tmp_path, ENTRIES[whole:])
        assert path.read_bytes() == content


def test_a_torn_line_longer_than_a_block(tmp_path):
    append(tmp_path, ENTRIES[:1])
    with (tmp_path / NAME).open("ab") as file:
        file.write(b"x" * 20_000)
    append(tmp_path, ENTRIES[1:])
    assert read(tmp_path) == (ENTRIES, [])
    (tmp_path / NAME).write_bytes(b"x" * 20_000)
    append(tmp_path, ENTRIES)
    assert read(tmp_path) == (ENTRIES, [])


def test_any_changed_byte_of_a_line_is_noticed_and_the_line_named(tmp_path):
    append(tmp_path, ENTRIES[:3])
    content = (tmp_path / NAME).read_bytes()
    start = content.index(b"\n") + 1
    for position in range(start, content.index(b"\n", start)):
        changed = bytearray(content)
        changed[position] ^= 0x04
        (tmp_path / NAME).write_bytes(changed)
        assert read(tmp_path) == (
            [ENTRIES[0], ENTRIES[2]],
            [f"line 2 of {tmp_path / NAME} is damaged"],
        )


def test_the_last_word_on_a_sample_wins(tmp_path):
    append(tmp_path, [refused(sample(2), "first"), ENTRIES[1], ENTRIES[2]])
    ledger = ledger_of(tmp_path)
    assert ledger.status[1] == OK
    assert ledger.status[2] == BAD  # it was made later, whatever the order of the lines
    append(tmp_path, [again := refused(sample(2), "second")])
    assert ledger_of(tmp_path).entry(2) == again


def test_all_manifests_count_and_the_later_entry_wins(tmp_path):
    """Two divisions of the samples recorded 1; the older one's manifest is read last."""
    old = Entry(1, True, 5, "0f", 100, "hs_1", 10, "aa", (5, 4, 8), "bfloat16")
    new = Entry(1, True, 5, "0f", 200, "hs_1", 20, "bb", (5, 4, 8), "bfloat16")
    append(tmp_path, [new, ENTRIES[3]], manifest_name(Shard(0, 1)))
    append(tmp_path, [old], manifest_name(Shard(1, 2)))
    ledger = ledger_of(tmp_path)
    assert list(ledger.indices()) == [1, 3]
    assert [1 in ledger, 2 in ledger, 9 in ledger, 10**6 in ledger] == [True, False, False, False]
    assert ledger.entry(1) == new
    assert (ledger.sizes[1], ledger.lengths[1], ledger.tokens[1]) == (20, 5, 15)


def test_a_full_disk_records_all_or_nothing(small_disk):
    append(small_disk, ENTRIES[:2])
    manifest = Manifest(str(small_disk / NAME))
    (small_disk / "filler").write_bytes(b"0" * 1000 * 1024)
    with pytest.raises(DiskFullError, match="make room and start the same run again"):
        manifest.append([refused(sample(i), "x" * 200) for i in range(1000)])
    assert read(small_disk) == (ENTRIES[:2], [])
    (small_disk / "filler").unlink()
    manifest.append(ENTRIES[2:])  # the same run may go on once there is room
    assert read(small_disk) == (ENTRIES, [])


def test_a_manifest_that_was_removed_is_not_written_to_in_silence(tmp_path):
    manifest = Manifest(str(tmp_path / NAME))
    (tmp_path / NAME).unlink()
    with pytest.raises(TargetError, match="was removed while the run was going"):
        manifest.append(ENTRIES)


def test_a_line_that_changes_under_a_reader_is_told(tmp_path):
    append(tmp_path, ENTRIES)
    ledger = ledger_of(tmp_path)
    (tmp_path / NAME).write_bytes(b"")
    with pytest.raises(TargetError, match="changed while it was read"):
        ledger.entry(1)


def test_names():
    assert manifest_name(Shard(3, 16)) == "manifest-00003-of-00016.jsonl"
    assert is_manifest("manifest-00003-of-00016.jsonl")
    assert not is_manifest("manifest-00003-of-00016.jsonl.bak")
