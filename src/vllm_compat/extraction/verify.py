"""Reads a folder of states back, all of it, and says what is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from vllm_compat.extraction.errors import TargetError
from vllm_compat.extraction.formats import Format, dtype_name, get_format
from vllm_compat.extraction.header import FILE_NAME, RunHeader, read_header
from vllm_compat.extraction.ledger import BAD, OK, Ledger
from vllm_compat.extraction.listing import ABSENT, Listing, list_folder
from vllm_compat.extraction.manifest import Entry, token_hash

if TYPE_CHECKING:
    import torch

_CHUNK = 16 << 20  # bytes read at a time
_ROWS = 512  # tokens looked at at a time


@dataclass
class VerifyReport:
    """What was read and what was found.

    ``ok`` samples are whole and right, ``damaged`` ones are recorded as such but are not, ``bad``
    ones are recorded as having no states, ``missing`` ones are not recorded at all. ``problems``
    holds ``(file or sample, what is wrong)``, as many as were asked for.
    """

    folder: str
    ok: int = 0
    damaged: int = 0
    bad: int = 0
    missing: int = 0
    unexpected: int = 0
    tokens: int = 0
    bytes: int = 0
    cut: int = 0
    problems: list[tuple[str, str]] = field(default_factory=list)
    problems_left_out: int = 0

    @property
    def passed(self) -> bool:
        """Whether every sample is there and right. Unexpected files do no harm, and are told."""
        return not (self.damaged or self.bad or self.missing)

    def to_dict(self) -> dict[str, Any]:
        """The report for machines."""
        return {"passed": self.passed, **asdict(self)}

    def __str__(self) -> str:
        lines = [
            f"{self.folder}: {'all samples are right' if self.passed else 'NOT all right'}",
            f"  {self.ok} ok, {self.damaged} damaged, {self.bad} bad, {self.missing} missing",
            f"  {self.unexpected} unexpected files",
            f"  {self.tokens} tokens, {self.bytes / 1e9:.3f} GB, {self.cut} samples cut",
        ]
        lines += [f"  {subject}: {text}" for subject, text in self.problems]
        if self.problems_left_out:
            lines.append(f"  and {self.problems_left_out} more")
        return "\n".join(lines)


def verify(
    folder: str | os.PathLike[str],
    *,
    expected: int | None = None,
    threads: int = 4,
    limit: int = 100,
) -> VerifyReport:
    """Read every sample of a folder back and hold it against the manifest.

    Checked are the checksum of the file, then, through the loader its trainer uses, the ids, the
    shape, the dtype, and that every value is finite.

    Args:
        folder: what a run has written.
        expected: how many samples the source has; the highest recorded index tells otherwise.
        threads: how many files are read at the same time.
        limit: how many problems the report names.

    Raises:
        TargetError: no folder, or no run's.
    """
    folder = os.path.abspath(folder)
    header = read_header(folder)
    if header is None:
        raise TargetError(
            f"nothing to verify in {folder}",
            found="no such folder" if not os.path.isdir(folder) else f"no {FILE_NAME} in it",
            needed="a folder that an extraction has written",
        )
    form, report = get_format(header.format), VerifyReport(folder)
    listing = list_folder(folder, form)
    ledger = Ledger(folder, listing.manifests)

    def tell(subject: str, text: str) -> None:
        if len(report.problems) < limit:
            report.problems.append((subject, text))
        else:
            report.problems_left_out += 1

    for text in ledger.damage:
        tell("manifest", text)
    for name in _unexpected(form, listing, ledger):
        report.unexpected += 1
        tell(name, "not recorded in any manifest")
    last = max(ledger.indices(), default=-1) + 1
    for index in range(last if expected is None else max(expected, last)):
        if index not in ledger:
            report.missing += 1
            tell(f"sample {index}", "not recorded in any manifest")
    for index in ledger.indices(BAD):
        report.bad += 1
        tell(f"sample {index}", f"recorded as bad: {ledger.entry(index).reason}")
    for entry, problem in _checked(form, header, ledger, threads):
        report.cut += entry.cut_from is not None
        if problem is None:
            report.ok += 1
            report.tokens += entry.length
            report.bytes += entry.bytes
        else:
            report.damaged += 1
            tell(entry.file, problem)
    return report


def _unexpected(form: Format, listing: Listing, ledger: Ledger) -> Iterator[str]:
    known = (FILE_NAME, *form.side_files())
    for name in listing.others:
        if name not in known and not name.startswith(".lock"):
            yield name
    for index, size in enumerate(listing.sizes):
        if size != ABSENT and not (index in ledger and ledger.status[index] == OK):
            yield form.file_name(index)


def _checked(
    form: Format, header: RunHeader, ledger: Ledger, threads: int
) -> Iterator[tuple[Entry, str | None]]:
    """Each sample recorded as ok and what is wrong with it, in order, few at a time."""
    indices = ledger.indices(OK)
    with ThreadPoolExecutor(threads) as pool:

        def submit(index: int) -> tuple[Entry, Future[str | None]]:
            entry = ledger.entry(index)
            return entry, pool.submit(_problem, form, header, ledger.folder, entry)

        waiting = [submit(index) for index in islice(indices, 2 * threads)]
        while waiting:
            entry, future = waiting.pop(0)
            yield entry, future.result()
            waiting += [submit(index) for index in islice(indices, 1)]


def _problem(form: Format, header: RunHeader, folder: str, entry: Entry) -> str | None:
    path = os.path.join(folder, entry.file)
    try:
        # The size before anything maps the file: past its end there is no error but a signal.
        size = os.stat(path).st_size
        if size != entry.bytes:
            return f"{size} bytes instead of {entry.bytes}"
        checksum = _checksum(path)
        if checksum != entry.checksum:
            return f"checksum {checksum} instead of {entry.checksum}"
        token_ids, layers = form.load(path)
    except FileNotFoundError:
        return "the file is gone"
    except Exception as error:  # a damaged file can make its loader raise anything
        return f"cannot be read: {type(error).__name__}: {error}"
    return _wrong_content(header, entry, token_ids, layers)


def _wrong_content(
    header: RunHeader, entry: Entry, token_ids: torch.Tensor, layers: list[torch.Tensor]
) -> str | None:
    ids = token_ids.tolist()
    if len(ids) != entry.length or token_hash(ids) != entry.tokens:
        return f"holds {len(ids)} token ids that are not the {entry.length} extracted"
    shapes = {(layer.shape[0], len(layers), *layer.shape[1:]) for layer in layers}
    wanted = (entry.length, *header.shape)
    if shapes != {wanted} or entry.shape != wanted:
        return f"states of shape {sorted(shapes)}, recorded as {entry.shape}, instead of {wanted}"
    dtypes = {dtype_name(layer.dtype) for layer in layers}
    if dtypes != {header.dtype}:
        return f"states of dtype {', '.join(sorted(dtypes))} instead of {header.dtype}"
    return _not_finite(layers, header)


def _checksum(path: str) -> str:
    import xxhash

    digest = xxhash.xxh3_64()
    buffer = memoryview(bytearray(_CHUNK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return str(digest.hexdigest())


def _not_finite(layers: list[torch.Tensor], header: RunHeader) -> str | None:
    import torch

    for layer_id, layer in zip(header.layer_ids, layers, strict=True):
        for start in range(0, layer.shape[0], _ROWS):
            rows = layer[start : start + _ROWS]
            # One pass that keeps nothing: a value that is not finite is the least or the greatest.
            if not torch.stack(torch.aminmax(rows)).isfinite().all():
                first = int((~rows.isfinite()).any(1).nonzero()[0])
                return f"a value that is not finite, layer {layer_id}, token {start + first}"
    return None
