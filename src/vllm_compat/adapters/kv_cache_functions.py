"""``vllm.v1.core.kv_cache_utils``: three functions moved to ``kv_cache_planning``.

speculators imports them by name, so the import itself fails. They are put back under their old
names, and taken away again by ``revert``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from types import ModuleType

from vllm_compat.adapters import kv_cache_config
from vllm_compat.adapters.adapter import Adapter, Break, Decision, uncovered
from vllm_compat.adapters.arguments import check_calls
from vllm_compat.adapters.premise import Premise
from vllm_compat.context import GENERATOR, Context
from vllm_compat.patching import Add, Patch
from vllm_compat.probe import Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OLD, NEW = "vllm.v1.core.kv_cache_utils", "vllm.v1.core.kv_cache_planning"


def _found(context: Context) -> dict[str, Finding]:
    """Names that speculators imports from the old module, with what the installed vLLM has."""
    names = [
        imported.symbol.partition(":")[2]
        for imported in context.consumer.imports
        if imported.symbol.startswith(OLD + ":")
    ]
    return {name: context.probe(f"{OLD}:{name}", f"{NEW}:{name}") for name in names}


def needed(context: Context) -> Decision:
    found = _found(context)
    if not found:
        return Decision("unused", f"this speculators imports nothing from {OLD}")
    gone = [name for name, finding in found.items() if finding.status == "absent"]
    if gone:
        return uncovered(f"{OLD} lost names", found=f"no {', '.join(gone)}", needed="all of them")
    moved = [name for name, finding in found.items() if finding.status == "moved"]
    if not moved:
        return Decision("fits", f"all {len(found)} names are where speculators looks")
    for name in moved:
        # Of the ones that stayed the judge sees it; of this one its own adapter does.
        if f"{OLD}:{name}" != kv_cache_config.ADAPTER.symbol:
            other = check_calls(context, name, found[name])
            if other is not None:
                return other
    return Decision("adapted", f"puts back {', '.join(moved)} from {NEW}")


def _from_new_home(module: ModuleType, *, name: str) -> Any:
    return getattr(import_module(NEW), name)


def patches(context: Context) -> Sequence[Patch]:
    return [
        Add(OLD, name, partial(_from_new_home, name=name), "kv-cache-functions")
        for name, finding in _found(context).items()
        if finding.status == "moved"
    ]


ADAPTER = Adapter(
    name="kv-cache-functions",
    symbol=OLD,
    call_site=GENERATOR,
    speculators=">=0.3,<0.5",
    broke=(Break("0.33.0", "53558", "moved to kv_cache_planning: the import fails"),),
    removal="speculators drives vLLM through its public API (0.5.0 does)",
    needed=needed,
    patches=patches,
    premises=(Premise(OLD),),
)
