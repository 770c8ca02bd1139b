"""``vllm.utils.hashing.get_hash_fn_by_name``: a module of its own since 0.11.1.

speculators 0.4 imports it from there; 0.11.0 has the function in ``vllm.utils``.
"""

from collections.abc import Sequence
from types import ModuleType

from vllm_compat.adapters.adapter import Adapter, Break, Decision, uncovered
from vllm_compat.adapters.arguments import check_calls
from vllm_compat.context import GENERATOR, Context
from vllm_compat.patching import AddModule, Patch

SYMBOL, OLD = "vllm.utils.hashing:get_hash_fn_by_name", "vllm.utils:get_hash_fn_by_name"


def needed(context: Context) -> Decision:
    if not context.consumer.calls("get_hash_fn_by_name"):
        return Decision("unused", "this speculators hashes no blocks")
    finding = context.probe(SYMBOL, OLD)
    if other := check_calls(context, "get_hash_fn_by_name", finding):
        return other
    if finding.status == "found":
        return Decision("fits", "the function is where speculators looks")
    if finding.status == "moved":
        return Decision("adapted", "provides vllm.utils.hashing from vllm.utils")
    return uncovered("the hash function is gone", found=finding.note or "absent", needed=SYMBOL)


def hashing(utils: ModuleType) -> ModuleType:
    module = ModuleType("vllm.utils.hashing")
    vars(module)["get_hash_fn_by_name"] = vars(utils)["get_hash_fn_by_name"]
    return module


def patches(context: Context) -> Sequence[Patch]:
    return [AddModule("vllm.utils", "hashing", hashing, "hash-function")]


ADAPTER = Adapter(
    name="hash-function",
    symbol=SYMBOL,
    call_site=GENERATOR,
    speculators=">=0.4,<0.5",
    broke=(Break("0.11.1", "27151", "vllm.utils -> vllm.utils.hashing"),),
    removal="vLLM 0.11.0 is no longer supported",
    needed=needed,
    patches=patches,
)
