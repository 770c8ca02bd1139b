"""Calls into an engine that ends, hangs, or fails."""

import threading
import time

import pytest

from vllm_compat.errors import CaptureError
from vllm_compat.extraction import calls
from vllm_compat.extraction.calls import Calls, EngineError

FOR_EVER = threading.Event().wait


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(calls, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(calls, "GRACE_SECONDS", 0.2)


def test_an_answer():
    call = Calls(60, lambda: False)
    assert [call("a step", divmod, 7, each) for each in (2, 3)] == [(3, 1), (2, 1)]
    call.stop()


def test_an_engine_that_hangs():
    call, start = Calls(0.3, lambda: False), time.monotonic()
    with pytest.raises(EngineError, match="vLLM's engine hung in a step") as error:
        call("a step", FOR_EVER)
    assert 0.3 <= time.monotonic() - start < 5
    assert error.value.found == "no answer for 0 s"
    with pytest.raises(EngineError) as again:
        call("another", divmod, 7, 2)
    assert again.value is error.value is call.given_up


def test_an_engine_that_was_killed():
    call, start = Calls(600, lambda: time.monotonic() - start > 0.3), time.monotonic()
    with pytest.raises(EngineError, match="vLLM's engine ended in a step") as error:
        call("a step", FOR_EVER)
    assert 0.5 <= time.monotonic() - start < 10
    assert error.value.found == "one of its processes was killed"
    assert "goes on where this one ended" in str(error.value)


def test_an_engine_that_was_killed_and_says_why():
    def fail():
        time.sleep(0.15)
        raise RuntimeError("boom")

    call = Calls(600, lambda: True)
    with pytest.raises(EngineError, match="vLLM's engine ended in a step") as error:
        call("a step", fail)
    assert error.value.found == "RuntimeError: boom"
    assert call.given_up is None


def test_errors_that_say_it_themselves():
    def fail():
        raise CaptureError("ours")

    with pytest.raises(CaptureError, match="ours"):
        Calls(60, lambda: False)("a step", fail)


def test_slow_calls_that_are_in_time():
    call = Calls(0.6, lambda: False)
    for _ in range(3):
        call("a step", time.sleep, 0.3)
    assert call.given_up is None
