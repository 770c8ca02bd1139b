"""What a driver starts ends with it."""

import os
import subprocess
import sys
import time

import psutil

from tests.extraction.runs import alive, gone
from vllm_compat.extraction.processes import Started

# A driver with a child of before, and a child and a grandchild of the run.
DRIVER = """
import subprocess, sys, time
from vllm_compat.extraction.processes import Started
sleep = "import time; time.sleep(600)"
nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleep!r}])"
subprocess.Popen([sys.executable, "-c", sleep, "before"], stdout=subprocess.DEVNULL)
started = Started()
subprocess.Popen([sys.executable, "-c", nested])
"""


def start(rest):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER + rest], stdout=subprocess.PIPE, text=True
    )
    process, deadline = psutil.Process(driver.pid), time.monotonic() + 30
    while len(process.children(recursive=True)) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    before = next(each for each in process.children() if each.cmdline()[-1] == "before")
    return driver, before, set(process.children(recursive=True)) - {before}


def test_they_end_when_the_driver_is_killed():
    driver, before, others = start("time.sleep(600)")
    time.sleep(1)  # the guard has looked once more
    driver.kill()
    driver.wait()
    assert len(others) == 3
    gone(others, 10)
    assert alive(before)
    before.kill()


def test_they_end_when_the_driver_says_so():
    driver, before, others = start("time.sleep(3); started.end(); started.end(); print('ended')")
    assert driver.communicate(timeout=30)[0] == "ended\n"
    gone(others, 1)
    assert alive(before)
    before.kill()


def test_processes_whose_parent_has_ended_are_remembered():
    nested = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid)"
    started = Started()
    parent = subprocess.Popen(
        [sys.executable, "-c", f"{nested}; input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    child = psutil.Process(int(parent.stdout.readline()))
    started.look()
    parent.stdin.close()  # not communicate: the child holds the other pipe
    parent.wait(10)
    assert alive(child)
    started.end()
    assert not alive(child)


def test_shared_memory_under_vllms_name_is_removed():
    name = f"/dev/shm/vllm-compat-test-{os.getpid()}"
    code = (
        f"import mmap, sys, time; file = open({name!r}, 'wb+'); file.truncate(4096)\n"
        "memory = mmap.mmap(file.fileno(), 4096); print(1, flush=True); time.sleep(600)"
    )
    started = Started()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"1\n"
    assert os.path.exists(name)
    started.end()
    assert not psutil.pid_exists(process.pid)
    assert not os.path.exists(name)
