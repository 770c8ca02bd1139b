"""Calls into vLLM's engine that come back, whatever happens to it.

vLLM's client waits for ever for an engine core that was killed, or that hangs. So it is called from
a thread of its own, which is given up where no answer can come.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from vllm_compat.errors import VllmCompatError

LOOK_SECONDS = 1.0
# From when the engine is known to have ended: vLLM may still say why.
GRACE_SECONDS = 5.0
RESUME = "the same run goes on where this one ended"


class EngineError(VllmCompatError):
    """vLLM's engine ended, or stopped moving."""


class Calls:
    """Makes calls, one at a time.

    Args:
        timeout: seconds after which a call is taken for hung.
        ended: whether the engine is known to have ended.
    """

    def __init__(self, timeout: float, ended: Callable[[], bool]) -> None:
        self._timeout = timeout
        self._ended = ended
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.given_up: EngineError | None = None
        threading.Thread(target=self._run, name="vllm_compat-engine", daemon=True).start()

    def __call__(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What ``function`` returns; ``what`` names it in errors.

        Raises:
            EngineError: it failed, the engine has ended, or no answer came in time; then, of every
                later call too.
        """
        if self.given_up is not None:
            raise self.given_up
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._calls.put((function, arguments, answers))
        value, error = self._wait(what, answers)
        if isinstance(error, VllmCompatError):
            raise error
        if error is not None:
            raise EngineError(
                f"vLLM's engine ended in {what}",
                found=f"{type(error).__name__}: {error}",
                next_step=f"what its processes printed says why; {RESUME}",
            ) from error
        return value

    def stop(self) -> None:
        """No more calls."""
        self._calls.put(None)

    def _wait(self, what: str, answers: queue.SimpleQueue[Any]) -> Any:
        deadline, ending = time.monotonic() + self._timeout, False
        while True:
            try:
                return answers.get(timeout=min(LOOK_SECONDS, self._timeout))
            except queue.Empty:
                now = time.monotonic()
            if not ending and self._ended():
                deadline, ending = min(deadline, now + GRACE_SECONDS), True
            if now >= deadline:
                self.given_up = EngineError(
                    f"vLLM's engine {'ended' if ending else 'hung'} in {what}",
                    found="one of its processes was killed"
                    if ending
                    else f"no answer for {self._timeout:.0f} s",
                    next_step=f"start it again: {RESUME}",
                )
                raise self.given_up

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            function, arguments, answers = call
            try:
                answers.put((function(*arguments), None))
            except Exception as error:
                answers.put((None, error))
