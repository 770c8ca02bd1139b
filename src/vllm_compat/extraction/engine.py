"""vLLM's own ``LLM``, kept filled with requests, with the extraction in its workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from vllm_compat.errors import CaptureError
from vllm_compat.extraction.calls import Calls, EngineError
from vllm_compat.extraction.formats.writer import FileRecord
from vllm_compat.extraction.processes import Started
from vllm_compat.extraction.samples import Sample
from vllm_compat.extraction.worker import KEY, WorkerSettings

EXTENSION = "vllm_compat.extraction.worker.ExtractionExtension"
# What the extraction relies on: hooks run in eager mode only, and a cached prefix has no states.
REQUIRED = {"enforce_eager": True, "enable_prefix_caching": False}
# Steps' worth of tokens that wait in the engine, so that it never runs dry.
STEPS_AHEAD = 3
PROBE_TOKENS = 8


class Engine:
    """An engine that runs prompts for their states alone.

    Args:
        arguments: of vLLM's ``LLM``.
        settings: for the workers.
        stall_timeout: seconds without an answer after which it is taken for hung.

    Raises:
        EngineError: it does not start.
        CaptureError: states of the model cannot be captured with certainty.
    """

    def __init__(
        self, arguments: dict[str, Any], settings: WorkerSettings, *, stall_timeout: float
    ) -> None:
        from vllm import LLM

        self._processes = Started()
        try:
            self._llm = LLM(**{**arguments, **REQUIRED, "worker_extension_cls": EXTENSION})
        except BaseException as error:
            self._processes.end()
            if not isinstance(error, Exception):
                raise
            raise EngineError(
                "vLLM's engine does not start",
                found=f"{type(error).__name__}: {error}",
                next_step="what its processes printed above says why",
            ) from error
        self._processes.look()
        self._call = Calls(stall_timeout, self._ended)
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
            EngineError: the engine has ended, or hangs.
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
        prompt = {"prompt_token_ids": token_ids}
        self._call("add_request", self._llm.llm_engine.add_request, name, prompt, parameters)

    def _step(self) -> list[str]:
        outputs = self._call("a step", self._llm.llm_engine.step)
        return [output.request_id for output in outputs if output.finished]

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        replies: list[Any] = self._call(
            method, lambda: self._llm.collective_rpc(method, args=arguments)
        )
        return replies

    def _ended(self) -> bool:
        """Whether vLLM's client has noticed that its engine core is gone."""
        core = getattr(self._llm.llm_engine, "engine_core", None)
        return bool(getattr(getattr(core, "resources", None), "engine_dead", False))

    def close(self) -> None:
        """End the engine and every process it started; more than once is fine."""
        self._call.stop()
        core = getattr(self._llm.llm_engine, "engine_core", None)
        try:
            # Where a call was given up, vLLM's client is in the middle of it.
            if core is not None and self._call.given_up is None:
                core.shutdown()
        finally:
            self._processes.end()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


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
