"""Every call site of speculators, judged against the installed vLLM from their sources."""

from __future__ import annotations

from vllm_compat.adapters import REGISTRY
from vllm_compat.adapters.adapter import Adapter, Decision, uncovered
from vllm_compat.adapters.arguments import check_calls
from vllm_compat.context import Consumer, Context, Settings
from vllm_compat.discovery import Installed, find_speculators, find_vllm
from vllm_compat.errors import NotInstalledError
from vllm_compat.patching import Add
from vllm_compat.probe import SourceTree
from vllm_compat.report import CallSite, Report
from vllm_compat.versions import newer_than_known


def installed_context(settings: Settings) -> Context:
    """The installed pair.

    Raises:
        NotInstalledError: vLLM or speculators is not where Python looks.
    """
    vllm, speculators = installed_vllm(), installed_speculators()
    return Context(SourceTree(vllm.root, "vllm"), vllm, Consumer(speculators), settings)


def installed_vllm() -> Installed:
    """The installed vLLM.

    Raises:
        NotInstalledError: there is none.
    """
    return _there("vllm", find_vllm())


def installed_speculators() -> Installed:
    """The installed speculators.

    Raises:
        NotInstalledError: there is none.
    """
    return _there("speculators", find_speculators())


def _there(name: str, found: Installed | None) -> Installed:
    if found is None:
        raise NotInstalledError(
            f"{name} is not installed",
            needed=f"the package {name}, under any distribution name",
            next_step=f"install {name} in the environment that runs this Python",
        )
    return found


def judge(context: Context) -> tuple[Report, tuple[Adapter, ...]]:
    """The report, and the adapters it takes, in order."""
    if not context.consumer.in_process:
        return _report(context, ()), ()
    sites: list[CallSite] = []
    taken: list[Adapter] = []
    for adapter in REGISTRY:
        decision = adapter.decide(context)
        sites.append(CallSite(adapter.name, adapter.symbol, adapter.call_site, decision))
        if decision.state == "adapted":
            taken.append(adapter)
    sites += _unadapted_imports(context, taken)
    return _report(context, tuple(sites)), tuple(taken)


def _report(context: Context, sites: tuple[CallSite, ...]) -> Report:
    version = context.vllm_installed.version or "unknown"
    return Report(
        version,
        context.consumer.installed.version or "unknown",
        newer_than_known(version),
        sites,
    )


def _unadapted_imports(context: Context, taken: list[Adapter]) -> list[CallSite]:
    """What speculators imports from vLLM and no adapter answers for: it must be there, and calls of
    it must bind."""
    answered = {adapter.symbol for adapter in REGISTRY}
    provided = {
        f"{patch.module}:{patch.path}"
        for adapter in taken
        for patch in adapter.patches(context)
        if isinstance(patch, Add)
    }
    sites = []
    for imported in context.consumer.imports:
        if imported.symbol in answered or imported.symbol in provided:
            continue
        name = imported.symbol.partition(":")[2]
        where = f"{imported.module}:{imported.line}"
        finding = context.probe(imported.symbol)
        if finding.status == "absent":
            decision = uncovered(
                f"cannot import {name}", found=finding.note or "absent", needed=imported.symbol
            )
        else:
            fits = Decision("fits", "imported and called as vLLM has it")
            decision = check_calls(context, name, finding) or fits
        sites.append(CallSite(imported.symbol, imported.symbol, where, decision))
    return sites
