"""One extraction: from a source of samples to a folder of states."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from vllm_compat.errors import CaptureError
from vllm_compat.extraction.engine import Engine, record_of
from vllm_compat.extraction.errors import DiskFullError, SampleError, TargetError
from vllm_compat.extraction.header import RunHeader, config_hash, file_hash
from vllm_compat.extraction.layers import check_layer_ids
from vllm_compat.extraction.manifest import refused, written
from vllm_compat.extraction.model import ModelShape, read_shape
from vllm_compat.extraction.samples import Sample, Shard, Source, read_samples
from vllm_compat.extraction.target import Done, Target
from vllm_compat.extraction.worker import WorkerSettings

POLL_SECONDS = 0.5
SAVE_SECONDS = 30.0
# Left free on the target's file system: for the manifest and the side files.
RESERVE_BYTES = 64 << 20
# So many refused samples are named; the manifest has them all.
NOTES = 20


@dataclass(frozen=True)
class Options:
    """What to extract, and how.

    Attributes:
        model: a folder, or a model in the local hub cache.
        output: the folder for the states.
        layer_ids: decoder layers, 0-based, in the order of the files' columns; empty: speculators'
            choice for EAGLE-3, with the last layer behind it.
        format: one of ``formats.FORMATS``.
        max_len: longer samples are cut to so many tokens.
        dtype: as vLLM takes it.
        trust_remote_code: run the code that came with the model.
        shard: the part of the samples that this run does.
        on_bad_sample: "skip" records it and goes on, "stop" ends the run.
        retry_bad: try again what an earlier run recorded as bad.
        t2d, d2t: the draft vocabulary's mappings; their hashes are recorded, no more.
        threads: samples that are written at the same time.
        slots: steps that may wait to be written, in pinned memory.
        durable: sync every file; without it a machine that goes down may lose the last ones.
        stall_timeout: seconds after which an engine or a disk that does not move is given up.
        engine: further arguments of vLLM's ``LLM``.
        max_samples: only so many of the source, from the first; None for all.
    """

    model: str
    output: str
    layer_ids: tuple[int, ...] = ()
    format: str = "legacy"
    max_len: int = 2048
    dtype: str = "auto"
    trust_remote_code: bool = False
    shard: Shard = field(default_factory=Shard)
    on_bad_sample: str = "skip"
    retry_bad: bool = False
    t2d: str | None = None
    d2t: str | None = None
    threads: int = 8
    slots: int = 3
    durable: bool = True
    stall_timeout: float = 300.0
    engine: dict[str, Any] = field(default_factory=dict)
    max_samples: int | None = None


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        total: samples of the source in this run's shard; None where the source does not say.
        kept: samples that earlier runs had finished.
        done: samples of this run that are on disk and recorded.
        bad: samples refused in this run.
        tokens: of the done ones.
        bytes: of the done ones' files.
        seconds: since the first sample was given to the engine.
        free_bytes: left on the target's file system.
        notes: what is worth saying.
    """

    total: int | None = None
    kept: int = 0
    done: int = 0
    bad: int = 0
    tokens: int = 0
    bytes: int = 0
    seconds: float = 0.0
    free_bytes: int = 0
    notes: list[str] = field(default_factory=list)


def extract(
    source: Source, options: Options, progress: Callable[[Progress], None] | None = None
) -> Progress:
    """Extract the states of every sample of ``source`` that the folder does not hold yet.

    Everything that can be refused before the model is loaded is. A run that is ended, however it
    is, goes on where it was when it is started again with the same options.

    Args:
        source: as ``samples.read_samples`` takes it.
        options: what and how.
        progress: called about twice a second, and once at the end.

    Returns:
        The last progress.

    Raises:
        VllmCompatError: with what was found, what is needed and what to do.
    """
    shape = read_shape(options.model, trust_remote_code=options.trust_remote_code)
    layer_ids = check_layer_ids(options.layer_ids or shape.eagle3_layers(), shape.num_layers)
    _refuse_pipeline(options)
    header = _header(options, shape, layer_ids)
    with Target(options.output, shard=options.shard, durable=options.durable) as target:
        done = target.resume(header, retry_bad=options.retry_bad)
        run = _Run(options, shape, header, target, done, progress or (lambda _: None))
        samples = read_samples(source, max_len=options.max_len, shard=options.shard)
        if options.max_samples is not None:
            most = options.max_samples
            samples = takewhile(lambda sample: sample.index < most, samples)
        return run(samples)


def _refuse_pipeline(options: Options) -> None:
    stages = options.engine.get("pipeline_parallel_size", 1)
    if stages != 1:
        raise CaptureError(
            "extraction over pipeline stages",
            found=f"pipeline_parallel_size={stages}: no stage sees the layers of the others",
            needed="pipeline_parallel_size=1",
            next_step="use tensor parallelism, over several nodes if one does not hold the model",
        )


def _header(options: Options, shape: ModelShape, layer_ids: list[int]) -> RunHeader:
    return RunHeader(
        format=options.format,
        layer_ids=tuple(layer_ids),
        model=str(options.model),
        model_config=config_hash(shape.config),
        hidden_size=shape.hidden_size,
        dtype=shape.run_dtype(options.dtype),
        max_len=options.max_len,
        t2d=options.t2d and file_hash(options.t2d),
        d2t=options.d2t and file_hash(options.d2t),
    )


class _Run:
    def __init__(  # noqa: PLR0917 - what a run is made of
        self,
        options: Options,
        shape: ModelShape,
        header: RunHeader,
        target: Target,
        done: Done,
        report: Callable[[Progress], None],
    ) -> None:
        self._options = options
        self._shape = shape
        self._header = header
        self._target = target
        self._done = done
        self._report = report
        self._waiting: dict[int, Sample] = {}  # given to the engine, not heard of yet
        self._progress = Progress(kept=len(done), notes=list(done.notes))
        self._token_bytes = len(header.layer_ids) * header.hidden_size
        self._token_bytes *= 4 if header.dtype == "float32" else 2

    def __call__(self, samples: Iterator[Sample]) -> Progress:
        todo = self._todo(samples)
        first = next(todo, None)
        if first is None:  # nothing left: no reason to load a model
            self._target.finish()
            self._report(self._progress)
            return self._progress
        with self._start() as engine:
            self._check_states(engine)
            started = time.monotonic()
            try:
                self._work(engine, first, todo, started)
            except BaseException:
                self._save(engine)
                raise
            self._take(engine.finish(self._options.stall_timeout), last=True)
            self._progress.seconds = time.monotonic() - started
        self._target.finish()
        self._report(self._progress)
        return self._progress

    def _work(self, engine: Engine, first: Sample, todo: Iterator[Sample], started: float) -> None:
        polled = started
        upcoming: Sample | None = first
        while upcoming is not None or engine.busy:
            while upcoming is not None and engine.wants_more:
                self._waiting[upcoming.index] = upcoming
                engine.add(upcoming)
                upcoming = next(todo, None)
            if engine.busy:
                engine.step()
            now = time.monotonic()
            if now - polled >= POLL_SECONDS:
                polled = now
                self._progress.seconds = now - started
                self._take(engine.poll())

    def _save(self, engine: Engine) -> None:
        """The run ends early: record what is finished, if that can still be asked for."""
        with suppress(Exception):
            outcomes = engine.finish(SAVE_SECONDS)["outcomes"]
            pairs = [(self._waiting[each["index"]], record_of(each)) for each in outcomes]
            self._target.record([written(sample, record) for sample, record in pairs if record])

    def _start(self) -> Engine:
        options = self._options
        settings = WorkerSettings(
            options.format,
            self._target.folder,
            self._header.layer_ids,
            options.threads,
            options.slots,
            options.durable,
            options.stall_timeout / 2,
        )
        arguments = {
            "model": options.model,
            "dtype": options.dtype,
            "trust_remote_code": options.trust_remote_code,
            # One token is generated, and not used.
            "max_model_len": options.max_len + 1,
            # A wrapper's processor is made of the tokenizer; nobody else asks for it here.
            "skip_tokenizer_init": not self._shape.multimodal,
            **options.engine,
        }
        return Engine(arguments, settings, stall_timeout=options.stall_timeout)

    def _check_states(self, engine: Engine) -> None:
        found = engine.hidden_size, engine.dtype
        needed = self._header.hidden_size, self._header.dtype
        if found != needed:
            raise CaptureError(
                "the model's states are not what its config says",
                found="hidden size {}, {}".format(*found),
                needed="hidden size {}, {}".format(*needed),
                next_step="give dtype as the model really runs; report the model otherwise",
            )

    def _todo(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """The samples to run; the others are checked and recorded on the way."""
        for sample in samples:
            if sample.index in self._done:
                self._done.check(sample)
            elif max(sample.token_ids) >= self._shape.vocab_size:
                reason = f"token id {max(sample.token_ids)} outside the vocabulary"
                self._refuse(sample, f"{reason} of {self._shape.vocab_size}")
            else:
                yield sample

    def _take(self, said: dict[str, Any], last: bool = False) -> None:
        """Record what the workers have finished; stop where they cannot go on."""
        entries, bad = [], []
        for outcome in said["outcomes"]:
            sample, record = self._waiting.pop(outcome["index"]), record_of(outcome)
            if record is None:
                bad.append((sample, outcome["reason"]))
                continue
            entries.append(written(sample, record))
            self._progress.done += 1
            self._progress.tokens += len(sample.token_ids)
            self._progress.bytes += record.bytes
        if entries:
            self._target.record(entries)
        for sample, reason in bad:  # after the others are recorded: it may end the run
            self._refuse(sample, reason)
        if said["failure"] is not None:
            raise TargetError(
                "the workers stopped writing",
                found=said["failure"],
                next_step="see above; the same run goes on where this one ended",
            )
        if last:
            for sample in list(self._waiting.values()):
                self._refuse(sample, "the engine did not compute all of its tokens")
            self._waiting.clear()
        self._progress.free_bytes = self._target.free_bytes()
        ahead = sum(len(sample.token_ids) for sample in self._waiting.values()) * self._token_bytes
        if self._progress.free_bytes < ahead + RESERVE_BYTES and not last:
            raise DiskFullError(
                f"the file system of {self._target.folder} is nearly full",
                found=f"{self._progress.free_bytes / 2**30:.2f} GiB left",
                needed=f"{ahead / 2**30:.2f} GiB for what is being extracted",
                next_step="make room and start the same run again: it goes on where this one ended",
            )
        self._report(self._progress)

    def _refuse(self, sample: Sample, reason: str) -> None:
        self._target.record([refused(sample, reason)])
        self._progress.bad += 1
        if len(self._progress.notes) < NOTES:
            self._progress.notes.append(f"sample {sample.index}: {reason}")
        if self._options.on_bad_sample == "stop":
            raise SampleError(
                f"sample {sample.index} was refused",
                found=reason,
                needed="finite states of every token",
                next_step='on_bad_sample "skip" records it and goes on',
            )
