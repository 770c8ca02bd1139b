"""Which part of the samples a process does."""

import pytest

from vllm_compat.extraction.errors import SampleError
from vllm_compat.extraction.samples import Shard
from vllm_compat.extraction.shards import parse_shard

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
MPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6"}


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("0/1", {}, (0, 1)),
        ("2/8", TORCHRUN, (2, 8)),
        ("auto", TORCHRUN, (3, 4)),
        ("auto", SLURM, (0, 2)),
        ("auto", MPI, (5, 6)),
        ("auto", {**SLURM, **TORCHRUN}, (3, 4)),  # torchrun, started by srun
        ("auto", {**SLURM, "RANK": "1"}, (0, 2)),
    ],
)
def test_parts(text, environment, expected):
    assert parse_shard(text, environment) == Shard(*expected)


@pytest.mark.parametrize("text", ["8/8", "1", "-1/2", "a/b", "1/0", "1/2/3", "", "1 / 2", "Auto"])
def test_no_parts(text):
    with pytest.raises(SampleError, match="is no part of the samples"):
        parse_shard(text, TORCHRUN)


def test_no_launcher():
    with pytest.raises(SampleError, match="no launcher says which part") as error:
        parse_shard("auto", {"RANK": "0"})
    assert error.value.found == "none of RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK"


def test_what_a_launcher_says_may_be_wrong():
    with pytest.raises(SampleError, match="'4/4' is no part of the samples"):
        parse_shard("auto", {"RANK": "4", "WORLD_SIZE": "4"})
