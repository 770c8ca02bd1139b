"""What can go wrong between a source of samples and a folder of states."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from vllm_compat.errors import VllmCompatError


class LayerIdError(VllmCompatError, ValueError):
    """Layer ids that the model does not have, or that cannot be meant."""


class SampleError(VllmCompatError, ValueError):
    """A sample, named by its index, or a source that cannot be read."""


class TargetError(VllmCompatError):
    """A folder that cannot be written to, or whose content is not what the run would add to."""


class TargetLockedError(TargetError):
    """Another run is writing to the folder."""


class DiskFullError(TargetError):
    """No room is left; what was recorded before is whole, and the run can be resumed."""


_FULL = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


@contextmanager
def explained(what: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an ``OSError`` of the body into a ``TargetError`` that says what to do about it."""
    try:
        yield
    except OSError as error:
        raise _explain(error, what, os.fspath(path)) from error


def _explain(error: OSError, what: str, path: str) -> TargetError:
    what, found = f"{what}: {path}", error.strerror or repr(error)
    if error.errno in _FULL:
        return DiskFullError(
            what,
            found=found,
            needed="free space, or a larger quota",
            next_step="make room and start the same run again: it goes on where this one ended",
        )
    if error.errno in _READ_ONLY:
        return TargetError(
            what,
            found=found,
            needed="a folder this user may write to",
            next_step="choose another folder, or mount this one writable",
        )
    if error.errno in _GONE:
        return TargetError(
            what,
            found=f"{found}: the folder was removed, renamed or unmounted",
            needed="the folder to stay where it is for the whole run",
            next_step="bring it back and start the same run again: what is recorded is kept",
        )
    return TargetError(
        what,
        found=found,
        needed="a file system that takes the write",
        next_step="look at the system log; start the same run again once the disk is well",
    )
