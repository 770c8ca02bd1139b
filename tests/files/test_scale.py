"""A folder of a hundred thousand samples: what a resume costs, and that nothing grows faster."""

import os
import subprocess
import sys

from tests.files.making import header
from vllm_compat.extraction.header import settle_header
from vllm_compat.extraction.manifest import Entry, manifest_name, to_line
from vllm_compat.extraction.samples import Shard

COUNT, SIZE = 100_000, 117_456_896

RESUME = """
import resource, sys, time
from vllm_compat.extraction.header import read_header
from vllm_compat.extraction.target import Target
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
with Target(sys.argv[1]) as target:
    done = target.resume(read_header(sys.argv[1]))
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(len(done), grown / 1000, time.process_time() - start, int("torch" in sys.modules))
"""


def test_resuming_a_hundred_thousand_samples(tmp_path):
    settle_header(str(tmp_path), header())
    with (tmp_path / manifest_name(Shard())).open("wb") as manifest:
        for index in range(COUNT):
            name, tokens = f"hs_{index}.safetensors", f"{index * 7919:016x}"
            entry = Entry(index, True, 2048, tokens, 10**12, name, SIZE, tokens, (2048, 4, 7168))
            manifest.write(to_line(entry))
            if index != 777:
                fd = os.open(tmp_path / name, os.O_CREAT | os.O_WRONLY)
                os.truncate(fd, SIZE)  # a hole: it takes no room
                os.close(fd)
    command = [sys.executable, "-c", RESUME, str(tmp_path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    done, megabytes, seconds, torch = map(float, text.split())
    assert done == COUNT - 1
    assert megabytes < 20  # 200 MB for a million
    assert seconds < 5  # about one; ten for a million
    assert torch == 0


def test_the_driver_loads_nothing_heavy():
    code = (
        "import sys; before = set(sys.modules)\n"
        "import vllm_compat.extraction.samples, vllm_compat.extraction.target\n"
        "import vllm_compat.extraction.verify, vllm_compat.extraction.layers\n"
        "import vllm_compat.extraction.formats.writer\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "      & {'torch', 'numpy', 'datasets', 'safetensors', 'vllm', 'transformers', 'xxhash'}))"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "\n"
