"""``vllm-compat check``: what will break, before anything is loaded."""

from __future__ import annotations

import argparse
import gc
from typing import TYPE_CHECKING

from vllm_compat.cli import Exit, options

if TYPE_CHECKING:
    from vllm_compat.cli.output import Outcome

# speculators 0.5 and later.
SERVER = "it imports nothing from vLLM, it talks to a server"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "check",
        help="what breaks in the installed speculators, or another package, on the installed vLLM",
        description="Reads the sources of the installed pair, or the records of the releases that"
        " are named, and lists everything that does not work as it is, with the adapter that"
        " covers it.",
    )
    parser.add_argument(
        "--vllm",
        metavar="VERSION",
        type=options.version,
        help="a recorded vLLM in place of the installed one",
    )
    consumer = parser.add_mutually_exclusive_group()
    consumer.add_argument(
        "--speculators",
        metavar="VERSION",
        type=options.version,
        help="a recorded speculators in place of the installed one",
    )
    consumer.add_argument(
        "--package",
        metavar="NAME_OR_PATH",
        help="another package or script, in place of speculators",
    )
    options.add_format(parser)
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1 for changes of vLLM that are covered, too",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check, write, and say how it is."""
    from vllm_compat.cli.output import write

    collecting = gc.isenabled()
    gc.disable()  # the sources become tens of thousands of nodes, in use until the end
    try:
        outcome = _package(arguments) if arguments.package else _speculators(arguments)
    finally:
        if collecting:
            gc.enable()
    write(outcome, arguments.format)
    found = outcome.incompatibilities
    failing = any(not one.covered_by or (arguments.strict and one.is_drift) for one in found)
    return Exit.NOT_COVERED if failing else Exit.FINE


def _speculators(arguments: argparse.Namespace) -> Outcome:
    from vllm_compat.checking import check, named_pair
    from vllm_compat.cli.output import Outcome
    from vllm_compat.contracts.recorded import releases, speculators_releases
    from vllm_compat.versions import newer_than_known

    context = named_pair(
        arguments.vllm and options.recorded(arguments.vllm, releases()),
        arguments.speculators and options.recorded(arguments.speculators, speculators_releases()),
    )
    vllm = context.vllm_installed.version or "unknown"
    speculators = context.consumer.installed.version or "unknown"
    newer = newer_than_known(vllm)
    notes = [f"vLLM {vllm} is newer than any that the adapters were tested with."] if newer else []
    title = f"speculators {speculators} on vLLM {vllm}"
    facts = {"vllm": vllm, "speculators": speculators, "newer_than_known": newer}
    if not context.consumer.in_process:
        return Outcome(title, (), facts, nothing=SERVER)
    found = check(context)
    facts["evidence"], evidence = _evidence(speculators, vllm)
    notes.append(evidence)
    if any(not one.covered_by for one in found):
        from vllm_compat.matrix import nearest_working

        facts["nearest_working"] = nearest = nearest_working(speculators, vllm)
        notes.append(f"The nearest vLLM that works with it: {nearest or 'none known'}.")
    return Outcome(title, found, facts, tuple(notes))


def _evidence(speculators: str, vllm: str) -> tuple[list[str], str]:
    """What has shown that the pair works: the levels, and a line for a reader."""
    from vllm_compat.contracts import NotRecordedError
    from vllm_compat.matrix import cell

    try:
        known = cell(speculators, vllm)
    except NotRecordedError:
        return [], "Judged from the sources alone: this pair is not among the recorded ones."
    levels: list[str] = list(known.evidence)
    runs = "; ".join(
        f"{run.device} run of {run.date} ({run.runner}, {run.cases} tests, worst error"
        f" {run.worst_error:.1e})"
        for run in known.runs
    )
    return levels, f"Evidence: {runs or ', '.join(levels) or 'none'}."


def _package(arguments: argparse.Namespace) -> Outcome:
    from vllm_compat.checking import judge_package
    from vllm_compat.cli.output import Outcome
    from vllm_compat.contracts.recorded import load_vllm, releases
    from vllm_compat.judge import installed_vllm
    from vllm_compat.probe import SourceTree

    if arguments.vllm:
        vllm = options.recorded(arguments.vllm, releases())
        report = judge_package(arguments.package, load_vllm(vllm))
    else:
        installed = installed_vllm()
        report = judge_package(arguments.package, SourceTree(installed.root, "vllm"))
        vllm = installed.version or "unknown"
    not_judged = [entry._asdict() for entry in report.not_judged]
    notes = [f"{report.looked_at} uses of vLLM were looked at, {len(not_judged)} not judged."]
    return Outcome(
        f"{arguments.package} on vLLM {vllm}",
        report.incompatibilities,
        {
            "vllm": vllm,
            "package": arguments.package,
            "looked_at": report.looked_at,
            "not_judged": not_judged,
        },
        tuple(notes),
    )
