"""What does not work on a vLLM, found without running anything: what the commands are made of.

``apply()`` has no use for any of this.

- ``speculators``      every line of speculators that does not work as it is, covered or not
- ``packages``         the same of any package or script, for what sources show
- ``difference``       what changed from one vLLM to another
- ``incompatibility``  the value that the first two give
"""

from vllm_compat.checking.difference import Difference, difference
from vllm_compat.checking.incompatibility import Incompatibility
from vllm_compat.checking.packages import NotJudged, PackageReport, judge_package
from vllm_compat.checking.speculators import check, named_pair

__all__ = [
    "Difference",
    "Incompatibility",
    "NotJudged",
    "PackageReport",
    "check",
    "difference",
    "judge_package",
    "named_pair",
]
