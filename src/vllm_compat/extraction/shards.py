"""Which part of the samples a process does, where a launcher started several."""

from __future__ import annotations

import re
from collections.abc import Mapping

from vllm_compat.extraction.errors import SampleError
from vllm_compat.extraction.samples import Shard

# A launcher's variables for "my number" and "how many": torchrun and Ray Train, SLURM, Open MPI.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)


def parse_shard(text: str, environment: Mapping[str, str]) -> Shard:
    """``"2/8"``, the third of eight parts; ``"auto"``, what the launcher of this process says.

    One process is one engine: a launcher has to start one for each, not one for each GPU of it.

    Raises:
        SampleError: no such part, or no launcher.
    """
    if text == "auto":
        for number, count in LAUNCHERS:
            if number in environment and count in environment:
                return _shard(f"{environment[number]}/{environment[count]}")
        raise SampleError(
            "no launcher says which part of the samples this process does",
            found="none of " + ", ".join(number for number, _ in LAUNCHERS),
            needed="torchrun, srun or mpirun",
            next_step="give the part as --shard NUMBER/COUNT, from 0/COUNT",
        )
    return _shard(text)


def _shard(text: str) -> Shard:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise SampleError(
            f"{text!r} is no part of the samples",
            needed="NUMBER/COUNT, from 0/COUNT to (COUNT - 1)/COUNT, or auto",
        )
    return Shard(int(match[1]), int(match[2]))
