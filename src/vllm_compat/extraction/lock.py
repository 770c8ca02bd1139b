"""Who may write: a lock that a killed process does not leave behind."""

from __future__ import annotations

import fcntl
import json
import os
import socket

from vllm_compat.extraction.errors import TargetLockedError, explained


class Lock:
    """An exclusive lock on a file; the kernel lets go of it when its holders are gone.

    Children that a holder forks hold it too: as long as one of them may still write, no other run
    starts.

    Raises:
        TargetLockedError: another process holds it; the error says which.
        TargetError: the file cannot be made.
    """

    def __init__(self, path: str, *, wait: bool = False) -> None:
        with explained("cannot lock the folder", path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                os.ftruncate(self._fd, 0)
                holder = {"pid": os.getpid(), "host": socket.gethostname()}
                os.pwrite(self._fd, json.dumps(holder).encode(), 0)
            except BlockingIOError:
                holder_text = os.pread(self._fd, 4096, 0)
                self.release()
                raise _held(path, holder_text) from None
            except BaseException:
                self.release()
                raise

    def release(self) -> None:
        """Let go; more than once is fine. The file stays: a file removed could be locked twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _held(path: str, holder_text: bytes) -> TargetLockedError:
    try:
        holder = json.loads(holder_text)
        pid, host = int(holder["pid"]), str(holder["host"])
    except (ValueError, KeyError, TypeError):
        found, next_step = "a process that has not said who it is", "try again"
    else:
        found = f"process {pid} on {host}"
        next_step = "wait for it, or end it; the run goes on where that one stops"
        if host == socket.gethostname() and not os.path.exists(f"/proc/{pid}"):
            found += ", which is gone; a process it started still holds the lock"
            next_step = f"end what it left running (fuser {path} names it)"
    return TargetLockedError(
        f"another run is writing to {os.path.dirname(path)}",
        found=found,
        needed="one run at a time for each shard",
        next_step=next_step,
    )
