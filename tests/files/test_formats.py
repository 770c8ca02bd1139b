"""What a format's file holds, read by the libraries that its trainer reads it with."""

import zipfile
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from tests.files.making import LAYERS, sample, states, write
from vllm_compat.extraction.errors import DiskFullError, TargetError
from vllm_compat.extraction.formats import FORMATS, get_format
from vllm_compat.extraction.formats.writer import SampleWriter

BOTH = pytest.mark.parametrize("file_format", FORMATS)


def same(one, other):
    """Bit-equal, NaN and the sign of zero included."""
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_safetensors_as_the_library_reads_it(tmp_path, dtype):
    each = sample(12, 5)
    rows = states(each, dtype)
    write(tmp_path, each, "native", rows, chunk=2)
    read = load_file(tmp_path / "hs_12.safetensors")
    assert sorted(read) == ["hidden_states", "token_ids"]
    assert same(read["hidden_states"], rows)
    assert same(read["token_ids"], torch.tensor(each.token_ids))
    length = int.from_bytes((tmp_path / "hs_12.safetensors").read_bytes()[:8], "little")
    assert length % 8 == 0  # so that readers that map the file find the states aligned
    with safe_open(tmp_path / "hs_12.safetensors", framework="pt") as file:
        assert same(file.get_slice("hidden_states")[1:3], rows[1:3])


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_pt_as_torch_reads_it(tmp_path, dtype, mmap):
    each = sample(3, 5)
    rows = states(each, dtype)
    write(tmp_path, each, "legacy", rows, chunk=2)
    read = torch.load(tmp_path / "data_3.pt", weights_only=True, mmap=mmap)
    assert list(read) == ["input_ids", "hidden_states", "loss_mask"]
    assert same(read["input_ids"], torch.tensor(each.token_ids))
    assert same(read["loss_mask"], torch.tensor(each.loss_mask))
    assert type(read["hidden_states"]) is list
    assert len(read["hidden_states"]) == LAYERS
    for layer, tensor in enumerate(read["hidden_states"]):
        assert same(tensor, rows[:, layer])


def test_pt_of_a_sample_without_a_mask_is_trained_on_throughout(tmp_path):
    writer = SampleWriter("legacy", tmp_path, 0, [5, 6], None, 1, 2, torch.float32)
    writer.write(0, torch.zeros(2, 1, 2))
    writer.finish()
    assert torch.load(tmp_path / "data_0.pt")["loss_mask"].tolist() == [1, 1]


def test_pt_lists_as_an_archive(tmp_path):
    write(tmp_path, sample(0, 3), "legacy")
    with zipfile.ZipFile(tmp_path / "data_0.pt") as archive:
        names = [name.split("/", 1)[1] for name in archive.namelist()]
    assert names[0] == "data.pkl"
    assert {"data/0", "data/1", "data/2", "version"} <= set(names)


@BOTH
def test_the_record_describes_the_file(tmp_path, file_format):
    each = sample(4, 6)
    entry = write(tmp_path, each, file_format, chunk=4)
    content = (tmp_path / entry.file).read_bytes()
    assert entry.bytes == len(content)
    assert entry.checksum == xxhash.xxh3_64_hexdigest(content)
    assert entry.shape == (6, 4, 24)
    assert entry.dtype == "bfloat16"
    assert [path.name for path in tmp_path.iterdir()] == [entry.file]


@BOTH
@settings(max_examples=40, deadline=None)
@given(data=st.data(), length=st.integers(1, 40))
def test_any_chunks_give_the_same_file(tmp_path_factory, file_format, data, length):
    folder = tmp_path_factory.mktemp("chunks")
    each = sample(1, length)
    rows = states(each)
    rows[0, 0, 0], rows[-1, -1, -1] = float("nan"), -0.0
    cuts = data.draw(st.lists(st.integers(0, length), max_size=6))
    writer = SampleWriter(
        file_format, folder, 1, each.token_ids, each.loss_mask, *rows.shape[1:], rows.dtype
    )
    edges = [0, *sorted(cuts), length]
    for start, stop in pairwise(edges):
        writer.write(start, rows[start:stop])
    record = writer.finish()
    token_ids, layers = get_format(file_format).load(folder / record.file)
    assert token_ids.tolist() == each.token_ids
    assert same(torch.stack(layers, 1), rows)


@BOTH
def test_many_samples_at_once(tmp_path, file_format):
    samples = [sample(index, 200) for index in range(40)]
    with ThreadPoolExecutor(8) as pool:
        entries = list(pool.map(lambda each: write(tmp_path, each, file_format, chunk=7), samples))
    for each, entry in zip(samples, entries, strict=True):
        token_ids, layers = get_format(file_format).load(tmp_path / entry.file)
        assert token_ids.tolist() == each.token_ids
        assert same(torch.stack(layers, 1), states(each))


@BOTH
def test_nothing_is_at_the_final_name_before_the_end(tmp_path, file_format):
    each = sample(2, 6)
    rows = states(each)
    writer = SampleWriter(
        file_format, tmp_path, 2, each.token_ids, each.loss_mask, *rows.shape[1:], rows.dtype
    )
    writer.write(0, rows[:4])
    [temporary] = tmp_path.iterdir()
    assert temporary.name.startswith(".")
    assert not temporary.name.endswith(("pt", "safetensors"))
    with pytest.raises(TargetError, match=r"sample 2 is not whole\n  found: states of 4 tokens"):
        writer.finish()
    writer.abort()
    writer.abort()
    assert list(tmp_path.iterdir()) == []


@BOTH
@pytest.mark.parametrize(
    ("start", "rows"),
    [
        (1, torch.zeros(2, 4, 24)),  # a gap
        (0, torch.zeros(7, 4, 24)),  # too many
        (0, torch.zeros(2, 3, 24)),  # another number of layers
        (0, torch.zeros(2, 4, 23)),
        (0, torch.zeros(2, 4, 24, dtype=torch.float16)),
        (0, torch.zeros(4, 2, 24).transpose(0, 1)),  # not contiguous
    ],
)
def test_rows_that_do_not_fit_are_refused(tmp_path, file_format, start, rows):
    writer = SampleWriter(file_format, tmp_path, 9, list(range(6)), None, 4, 24, torch.float32)
    with pytest.raises(TargetError, match="sample 9: rows that do not fit"):
        writer.write(start, rows)
    writer.write(0, torch.zeros(6, 4, 24))  # and the sample is still whole
    writer.finish()


@BOTH
def test_a_folder_that_is_taken_away(tmp_path, file_format):
    with pytest.raises(TargetError, match="the folder was removed, renamed or unmounted"):
        SampleWriter(file_format, tmp_path / "no", 0, [1], None, 1, 1, torch.float32)


@BOTH
def test_a_full_disk(small_disk, file_format):
    writer = SampleWriter(file_format, small_disk, 0, [0] * 512, None, 4, 1024, torch.float32)
    with pytest.raises(DiskFullError, match="make room and start the same run again"):
        writer.write(0, torch.zeros(512, 4, 1024))  # 8 MiB, and the disk has 1
    writer.abort()
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize(
    ("file_format", "name", "index"),
    [
        ("native", "hs_12.safetensors", 12),
        ("native", "hs_0.safetensors", 0),
        ("native", "hs_012.safetensors", None),
        ("native", "hs_.safetensors", None),
        ("native", "data_12.pt", None),
        ("native", ".hs_12.safetensors.tmp-9", None),
        ("native", "hs_12.safetensors.lock", None),
        ("legacy", "data_12.pt", 12),
        ("legacy", "data_12.pt.tmp", None),
        ("legacy", "hs_12.safetensors", None),
    ],
)
def test_names(file_format, name, index):
    assert get_format(file_format).index_of(name) == index
    if index is not None:
        assert get_format(file_format).file_name(index) == name


def test_no_such_format():
    with pytest.raises(ValueError, match="unknown format 'zip': one of legacy, native"):
        get_format("zip")
