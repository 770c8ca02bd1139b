"""One speculators beside one vLLM, line by line.

- ``check``     everything together
- ``pair``      the two, judged
- ``binding``   imports and calls that do not bind
- ``declared``  what no signature shows and an adapter declares
- ``history``   the release that brought a change
"""

from vllm_compat.checking.speculators.check import check
from vllm_compat.checking.speculators.pair import named_pair

__all__ = ["check", "named_pair"]
