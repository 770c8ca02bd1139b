"""The processes vLLM starts, and their end: with the run, and with the driver however it ends.

vLLM's engine core outlives a driver that is killed, and keeps the device's memory. So a small
process of ours stands beside the driver, remembers what the driver starts, and ends that when the
driver is gone. It asks nothing of the processes it ends: it is there while they still load.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

LOOK_SECONDS = 0.5
END_SECONDS = 30.0


class Started:
    """The processes that this one starts from now on, theirs included."""

    def __init__(self) -> None:
        self._before = descendants(os.getpid())
        command = [sys.executable, "-m", __name__, str(os.getpid())]
        # A session of its own: what ends the driver's terminal or group does not end the guard.
        self._guard = subprocess.Popen(
            [*command, *(str(process.pid) for process in self._before)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._seen: set[Any] = set()
        self._memory: set[str] = set()

    def look(self) -> None:
        """Remember what there is; a process whose parent ends is not found again."""
        found = descendants(os.getpid()) - self._before
        self._seen |= {process for process in found if process.pid != self._guard.pid}
        self._memory |= shared_memory(self._seen)

    def end(self) -> None:
        """End all that are still there, and the guard; more than once is fine."""
        self.look()
        end(self._seen, self._memory)
        self._guard.kill()
        self._guard.wait()


def descendants(pid: int) -> set[Any]:
    """The processes below this one."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        return set(psutil.Process(pid).children(recursive=True))
    return set()


def shared_memory(processes: Iterable[Any]) -> set[str]:
    """The files of shared memory under vLLM's own name that these processes have mapped.

    Its two CPU workers talk through such files, which nobody removes when they are killed.
    """
    found = set()
    for process in processes:
        with suppress(OSError), open(f"/proc/{process.pid}/maps") as maps:
            found |= {word for line in maps for word in line.split()[5:] if "/dev/shm/vllm" in word}
    return found


def end(processes: Iterable[Any], memory: Iterable[str] = ()) -> None:
    """End processes, with those below them, wait until they are gone, and remove their memory.

    multiprocessing's resource tracker is left to end by itself, once they are: it removes the
    shared memory that it knows of.
    """
    import psutil

    ending = set(processes)
    for process in list(ending):
        ending |= descendants(process.pid) if process.is_running() else set()
    ending = {process for process in ending if not _is_tracker(process)}
    left = {*memory, *shared_memory(ending)}
    for process in ending:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(ending, timeout=END_SECONDS)
    for name in left:
        with suppress(OSError):
            os.unlink(name)


def _is_tracker(process: Any) -> bool:
    import psutil

    with suppress(psutil.Error):
        return any("resource_tracker" in word for word in process.cmdline())
    return False


def _guard(driver: int, before: set[int]) -> None:
    seen: set[Any] = set()
    while os.getppid() == driver:
        found = descendants(driver)
        seen |= {each for each in found if each.pid not in before and each.pid != os.getpid()}
        time.sleep(LOOK_SECONDS)
    end(seen)


if __name__ == "__main__":
    _guard(int(sys.argv[1]), {int(pid) for pid in sys.argv[2:]})
