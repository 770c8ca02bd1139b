"""``apply``, ``revert`` and ``status``: one set of patches a process, all of it or none."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from _thread import RLock  # as threading's, whose import takes a millisecond

from vllm_compat.context import Settings
from vllm_compat.errors import IncompatibleVllmError, WorkerNotAdaptedError
from vllm_compat.judge import installed_context, judge
from vllm_compat.named_tuple import NamedTuple
from vllm_compat.patching import PatchSet
from vllm_compat.report import Report

# Carries the decision to the engine core and the workers: "<trust_remote_code>:<adapters>". The
# prefix is one that vLLM's Ray executors copy to their actors.
VARIABLE = "VLLM_COMPAT_APPLIED"


class IncompatibleVllmWarning(UserWarning):
    """Call sites that will break, with ``apply(strict=False)``."""


class _Session(NamedTuple):
    settings: Settings
    report: Report
    adapters: tuple[str, ...]
    patches: PatchSet
    variable_before: str | None


_lock = RLock()
_session: _Session | None = None


def apply(*, strict: bool = True, trust_remote_code: bool = False) -> Report:
    """Make the installed speculators run on the installed vLLM, in this process and its workers.

    Imports neither: their sources are read, and what is patched is patched when it is imported.
    Calling it again changes nothing, unless with other settings.

    Args:
        strict: refuse a vLLM on which a call site would break. False warns instead and adapts the
            rest.
        trust_remote_code: let the tokenizer of a model be code that came with the model.

    Returns:
        What was found and decided for each call site.

    Raises:
        NotInstalledError: vLLM or speculators is not installed.
        IncompatibleVllmError: call sites that no adapter makes work, all of them (``strict`` only).
        PatchError: a target is not as its source says, or is patched by another session.
    """
    global _session
    settings = Settings(trust_remote_code)
    with _lock:
        current = _current()
        if current is not None and current.settings == settings:
            return current.report
        revert()
        # The sources become tens of thousands of nodes that are all in use until the judge is
        # done; the collector would walk them again and again, for nothing.
        collecting = gc.isenabled()
        gc.disable()
        try:
            context = installed_context(settings)
            report, adapters = judge(context)
        finally:
            if collecting:
                gc.enable()
        if report.uncovered:
            _refuse(report, strict)
        patches = PatchSet([patch for adapter in adapters for patch in adapter.patches(context)])
        patches.install()
        report = report._replace(foreign=patches.foreign)
        names = tuple(adapter.name for adapter in adapters)
        _session = _Session(settings, report, names, patches, os.environ.get(VARIABLE))
        os.environ[VARIABLE] = f"{int(settings.trust_remote_code)}:{','.join(names)}"
        _log(report.summary())
        return report


def revert() -> None:
    """Take everything off again, exactly: no touched module, class or variable keeps a trace.

    Generators that exist already keep the adapters they were made with.

    Raises:
        PatchError: somebody else patched a target after us; nothing is changed then.
    """
    global _session
    with _lock:
        if _session is None:
            return
        _session.patches.revert()
        if _session.variable_before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = _session.variable_before
        _session = None


def status() -> Report | None:
    """The report of the adapters now on, None when there are none."""
    session = _current()
    return None if session is None else session.report


def active_adapters() -> tuple[str, ...]:
    """The names of the adapters now on in this process, in order."""
    session = _current()
    return () if session is None else session.adapters


def _current() -> _Session | None:
    # A patch that failed at a later import has taken the whole set off, and raised there.
    return _session if _session is not None and _session.patches.installed else None


def apply_as_parent() -> None:
    """Put on what the parent process put on; nothing where it did not.

    The entry point ``vllm.general_plugins``, which vLLM calls in its engine core and in each worker
    before it looks for the worker extension. An error here stops the worker's start.

    Raises:
        WorkerNotAdaptedError: this process comes to other adapters than its parent.
    """
    decision = os.environ.get(VARIABLE)
    if decision is None:
        return
    trust, _, names = decision.partition(":")
    apply(strict=False, trust_remote_code=trust == "1")
    here = ",".join(active_adapters())
    if here != names:
        raise WorkerNotAdaptedError(
            "this process comes to other adapters than its parent",
            found=here or "none",
            needed=names,
            next_step="run workers with the same Python, vLLM, speculators and vllm-compat",
        )


def _log(line: str) -> None:
    # Where nobody has imported logging, nobody listens, and importing it takes 4 ms.
    if "logging" in sys.modules:
        sys.modules["logging"].getLogger("vllm_compat").info(line)


def _refuse(report: Report, strict: bool) -> None:
    error = IncompatibleVllmError(
        f"speculators {report.speculators} cannot run on vLLM {report.vllm}",
        tuple(site.offence() for site in report.uncovered),
        next_step=f"{_another(report)}apply(strict=False) adapts the rest and leaves these to fail",
    )
    if strict:
        raise error
    warnings.warn(str(error), IncompatibleVllmWarning, stacklevel=3)


def _another(report: Report) -> str:
    from vllm_compat.matrix import nearest_working

    nearest = nearest_working(report.speculators, report.vllm)
    return f"vLLM {nearest} is the nearest that works with this speculators; " if nearest else ""
