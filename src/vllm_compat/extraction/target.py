"""The folder that states go to: locked, resumed, added to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from vllm_compat.extraction.errors import TargetError, explained
from vllm_compat.extraction.files import final_name, sync_folder
from vllm_compat.extraction.formats import Format, get_format
from vllm_compat.extraction.header import FILE_NAME, RunHeader, read_header, settle_header
from vllm_compat.extraction.ledger import BAD, OK, Ledger
from vllm_compat.extraction.listing import ABSENT, Listing, list_folder
from vllm_compat.extraction.lock import Lock
from vllm_compat.extraction.manifest import Entry, Manifest, manifest_name, token_hash
from vllm_compat.extraction.samples import Sample, Shard

_LOCK = ".lock"
_SHARD_LOCK = re.compile(r"\.lock-\d{5,}-of-(\d{5,})")
_NAMED = 5  # examples in an error or a note


class Done:
    """The samples that need no more work, by index.

    ``len()`` counts those of the shard. ``notes`` says what was found and is to be done again:
    samples whose file is gone or of another size, damaged lines of a manifest.
    """

    def __init__(self, flags: bytearray, ledger: Ledger, shard: Shard, notes: list[str]) -> None:
        self._flags = flags
        self._tokens = ledger.tokens
        self._count = sum(flags[shard.number :: shard.count])
        self.notes = notes

    def __contains__(self, index: int) -> bool:
        return index < len(self._flags) and bool(self._flags[index])

    def __len__(self) -> int:
        return self._count

    def check(self, sample: Sample) -> None:
        """Make sure that the sample which is done under this index is this one.

        Raises:
            TargetError: its ids are not those the states on disk are of.
        """
        if int(token_hash(sample.token_ids), 16) != self._tokens[sample.index]:
            raise TargetError(
                f"sample {sample.index} is not the one whose states are in the folder",
                found="other token ids under the same index",
                needed="the source the folder was made from, in the same order",
                next_step="choose another folder, or give the run its first source",
            )


class Target:
    """A folder of states, held by one run for one shard of the samples.

    Several runs may write to one folder if each has its own shard of the same number of shards.
    A later run may divide the samples otherwise.

    Args:
        folder: made where it is not there.
        shard: the part of the samples this run extracts.
        durable: sync what is recorded, so that it outlives the machine and not only the process.

    Raises:
        TargetLockedError: another run has the shard.
        TargetError: the folder cannot be written to.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, shard: Shard | None = None, durable: bool = True
    ) -> None:
        self.folder = os.path.abspath(folder)
        self.shard = shard or Shard()
        self._durable = durable
        self._manifest: Manifest | None = None
        self._format: Format | None = None
        with explained("cannot make the folder", self.folder):
            os.makedirs(self.folder, exist_ok=True)
        name = f".lock-{self.shard.number:05d}-of-{self.shard.count:05d}"
        self._lock = Lock(self._path(name))

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder; more than once is fine."""
        if self._manifest is not None:
            self._manifest.close()
        self._lock.release()

    def resume(self, header: RunHeader, *, retry_bad: bool = False) -> Done:
        """Get ready to add to what is there; call it once, before the first ``record``.

        A sample is done if a manifest records it and its file is there, in the recorded size, or if
        it is recorded as bad and ``retry_bad`` is not set. What a killed run left half written is
        removed.

        Raises:
            TargetLockedError: another run divides the samples otherwise.
            TargetError: the folder holds states of another run, or files no manifest accounts for.
        """
        form = self._format = get_format(header.format)
        alone = self._alone()
        try:
            listing = list_folder(self.folder, form)
            self._refuse_other_divisions(listing)
            if read_header(self.folder) is None:
                self._refuse_foreign_files(listing)
            settle_header(self.folder, header)
            self._remove_leftovers(form, listing)
            self._manifest = Manifest(self._path(manifest_name(self.shard)))
        finally:
            alone.release()
        ledger = Ledger(self.folder, listing.manifests)
        flags, lost = bytearray(len(ledger.status)), []
        for index in ledger.indices():
            if ledger.status[index] == BAD:
                flags[index] = not retry_bad
            elif listing.size(index) == ledger.sizes[index]:
                flags[index] = True
            elif index in self.shard:  # another shard's may have come since the listing
                lost.append(form.file_name(index))
        return Done(flags, ledger, self.shard, ledger.damage + _told(lost))

    def _alone(self) -> Lock:
        """A short lock on what the shards have in common: the header, the side files."""
        return Lock(self._path(_LOCK), wait=True)

    def _refuse_other_divisions(self, listing: Listing) -> None:
        """Shards of another number overlap with ours: their locks must be free."""
        for name in listing.others:
            match = _SHARD_LOCK.fullmatch(name)
            if match and int(match[1]) != self.shard.count:
                Lock(self._path(name)).release()

    def _refuse_foreign_files(self, listing: Listing) -> None:
        foreign = sum(size != ABSENT for size in listing.sizes)
        if foreign:
            raise TargetError(
                f"{self.folder} holds samples that nothing tells the origin of",
                found=f"{foreign} files of samples, and no {FILE_NAME}",
                needed="an empty folder, or one that vllm_compat has written",
                next_step="choose another folder: states of unknown layers must not be mixed in",
            )

    def _remove_leftovers(self, form: Format, listing: Listing) -> None:
        with explained("cannot tidy up the folder", self.folder):
            for name in listing.others:
                whole = final_name(name)
                if whole and self._may_remove(form.index_of(whole)):
                    os.unlink(self._path(name))

    def _may_remove(self, index: int | None) -> bool:
        """Half a sample may be another shard's work in hand; half a side file, while alone, not."""
        return index is None or index in self.shard

    def record(self, entries: Iterable[Entry]) -> None:
        """Add entries to the manifest: their samples are then done, whatever happens next.

        One call syncs the folder and the manifest once, so batches are cheaper. Not to be called
        from two threads at the same time.

        Raises:
            DiskFullError: no room is left; none of the entries is recorded.
            TargetError: the folder was taken away, or the system refuses the write.
        """
        if self._manifest is None:
            raise RuntimeError("Target.record() before Target.resume()")
        if self._durable:
            with explained("cannot sync the folder", self.folder):
                sync_folder(self.folder)
        self._manifest.append(entries)

    def free_bytes(self) -> int:
        """How much this user may still write to the folder's file system.

        Raises:
            TargetError: the folder is gone.
        """
        with explained("cannot ask for free space", self.folder):
            system = os.statvfs(self.folder)
        return system.f_bavail * system.f_frsize

    def finish(self) -> None:
        """Write what the trainer wants beside the samples, from all that is recorded so far.

        May be called at any time, and by every shard.

        Raises:
            DiskFullError: no room is left.
            TargetError: the folder cannot be written to.
        """
        if self._format is None:
            raise RuntimeError("Target.finish() before Target.resume()")
        alone = self._alone()
        try:
            ledger = Ledger(self.folder, list_folder(self.folder, self._format).manifests)
            with explained("cannot write the side files", self.folder):
                self._format.write_side_files(
                    self.folder, ((index, ledger.lengths[index]) for index in ledger.indices(OK))
                )
        finally:
            alone.release()


def _told(lost: list[str]) -> list[str]:
    if not lost:
        return []
    named = ", ".join(lost[:_NAMED])
    more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    return [f"recorded, but gone or of another size: {named}{more}"]
