"""vLLM's own ``LLM``, kept filled with requests, with the extraction in its workers."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Any

from vllm_compat.errors import CaptureError, VllmCompatError
from vllm_compat.extraction.formats.writer import FileRecord
from vllm_compat.extraction.samples import Sample
from vllm_compat.extraction.worker import KEY, WorkerSettings, process_started

EXTENSION = "vllm_compat.extraction.worker.ExtractionExtension"
# What the extraction relies on: hooks run in eager mode only, and a cached prefix has no states.
REQUIRED = {"enforce_eager": True, "enable_prefix_caching": False}
# Steps' worth of tokens that wait in the engine, so that it never runs dry.
STEPS_AHEAD = 3
PROBE_TOKENS = 8


class EngineError(VllmCompatError):
    """vLLM's engine ended, or stopped moving."""


class Engine:
    """An engine that runs prompts for their states alone.

    Args:
        arguments: of vLLM's ``LLM``.
        settings: for the workers.
        stall_timeout: seconds without a finished step after which it is taken for hung and ended.

    Raises:
        EngineError: it does not start.
        CaptureError: states of the model cannot be captured with certainty.
    """

    def __init__(
        self, arguments: dict[str, Any], settings: WorkerSettings, *, stall_timeout: float
    ) -> None:
        from vllm import LLM

        before = _children()
        try:
            self._llm = LLM(**{**arguments, **REQUIRED, "worker_extension_cls": EXTENSION})
        except Exception as error:
            _end(_children() - before)
            raise EngineError(
                "vLLM's engine does not start",
                found=f"{type(error).__name__}: {error}",
                next_step="what its processes printed above says why",
            ) from error
        self._processes = _children() - before
        self._watch = _Watchdog(stall_timeout, lambda: _end(self._processes))
        self._in_flight: dict[str, Sample] = {}
        self._tokens = 0
        try:
            config = self._llm.llm_engine.vllm_config
            self.step_tokens: int = config.scheduler_config.max_num_batched_tokens
            self._ask("extraction_start", asdict(settings))
            self.hidden_size, self.dtype = self._probe(config.model_config.get_vocab_size())
        except BaseException:
            self.close()
            raise

    def _probe(self, vocabulary: int) -> tuple[int, str]:
        """Settle how the model carries its residual, on a prompt that is not kept."""
        self._request("probe", [(7 * n + 1) % vocabulary for n in range(PROBE_TOKENS)], None)
        while self._llm.llm_engine.has_unfinished_requests():
            self._step()
        states = self.poll()["states"]
        if states is None:
            raise CaptureError(
                "no worker captured the states of a first prompt",
                needed="one that does",
                next_step="report this vLLM and model",
            )
        return states[0], states[1]

    # -- work -----------------------------------------------------------------------------------

    @property
    def wants_more(self) -> bool:
        """Whether the engine could run dry."""
        return self._tokens < STEPS_AHEAD * self.step_tokens

    @property
    def busy(self) -> bool:
        """Whether prompts are being run."""
        return bool(self._in_flight)

    def add(self, sample: Sample) -> None:
        """Give it a sample to run."""
        mask = sample.loss_mask or [1] * len(sample.token_ids)
        name = str(sample.index)
        self._request(name, sample.token_ids, {"index": sample.index, "loss_mask": bytes(mask)})
        self._in_flight[name] = sample
        self._tokens += len(sample.token_ids)

    def step(self) -> None:
        """Wait for the engine's next outputs.

        Raises:
            EngineError: the engine has ended, or hangs and was ended.
        """
        for name in self._step():
            sample = self._in_flight.pop(name, None)
            if sample is not None:
                self._tokens -= len(sample.token_ids)

    def poll(self) -> dict[str, Any]:
        """What the workers say: as ``ExtractionExtension.extraction_poll``, of all of them."""
        return _merged(self._ask("extraction_poll"))

    def finish(self, timeout: float) -> dict[str, Any]:
        """Wait until all is written; then the same."""
        return _merged(self._ask("extraction_finish", timeout))

    def _request(self, name: str, token_ids: list[int], ours: dict[str, Any] | None) -> None:
        from vllm import SamplingParams

        parameters = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            detokenize=False,
            extra_args=None if ours is None else {KEY: ours},
        )
        self._llm.llm_engine.add_request(name, {"prompt_token_ids": token_ids}, parameters)

    def _step(self) -> list[str]:
        with self._guarded("a step"):
            outputs = self._llm.llm_engine.step()
        return [output.request_id for output in outputs if output.finished]

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        with self._guarded(method):
            replies: list[Any] = self._llm.collective_rpc(method, args=arguments)
        return replies

    def _guarded(self, what: str) -> _Guard:
        return _Guard(self._watch, what)

    def close(self) -> None:
        """End the engine and every process it started; more than once is fine."""
        self._watch.stop()
        core = getattr(self._llm.llm_engine, "engine_core", None)
        try:
            if core is not None and hasattr(core, "shutdown"):
                core.shutdown()
        finally:
            _end(self._processes)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Watchdog:
    """Ends the engine's processes when one call into it takes too long."""

    def __init__(self, timeout: float, end: Any) -> None:
        self.timeout = timeout
        self.barked = False
        self._end = end
        self._since: float | None = None
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="vllm_compat-watchdog", daemon=True).start()

    def enter(self) -> None:
        self._since = time.monotonic()

    def leave(self) -> None:
        self._since = None

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(min(1.0, self.timeout / 4)):
            since = self._since
            if since is not None and time.monotonic() - since > self.timeout:
                self.barked = True
                self._end()
                return


class _Guard:
    """Times a call into the engine, and says of its failure what it means."""

    def __init__(self, watch: _Watchdog, what: str) -> None:
        self._watch = watch
        self._what = what

    def __enter__(self) -> None:
        self._watch.enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.leave()
        if not isinstance(error, Exception) or isinstance(error, VllmCompatError):
            return
        if self._watch.barked:
            raise EngineError(
                f"vLLM's engine hung in {self._what}",
                found=f"no answer for {self._watch.timeout:.0f} s; its processes were ended",
                next_step="start the same run again: it goes on where this one ended",
            ) from error
        raise EngineError(
            f"vLLM's engine ended in {self._what}",
            found=f"{type(error).__name__}: {error}",
            next_step="what its processes printed says why; the same run goes on where this one"
            " ended",
        ) from error


def driver_identity() -> tuple[str, int, float]:
    """This process, for workers that are to end with it."""
    started = process_started(os.getpid())
    assert started is not None
    return socket.gethostname(), os.getpid(), started


def record_of(outcome: dict[str, Any]) -> FileRecord | None:
    """The file of a sample, out of what a worker said."""
    record = outcome["record"]
    return None if record is None else FileRecord(**{**record, "shape": tuple(record["shape"])})


def _merged(replies: Iterable[dict[str, Any]]) -> dict[str, Any]:
    said = list(replies)
    return {
        "states": next((each["states"] for each in said if each["states"]), None),
        "outcomes": [outcome for each in said for outcome in each["outcomes"]],
        "failure": next((each["failure"] for each in said if each["failure"]), None),
    }


def _children() -> set[Any]:
    import psutil

    return set(psutil.Process().children(recursive=True))


def _end(processes: set[Any]) -> None:
    """End processes that are still there, and wait until they are gone."""
    import psutil

    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(processes, timeout=30)
