"""Any package or script that uses vLLM, beside one vLLM.

- ``judging``      every import, call and subclass
- ``lookup``       what the vLLM has under a name, and whether that is certain
- ``whereabouts``  where something is that is no longer where it was
- ``lazy``         what a module's ``__getattr__`` refuses
- ``guards``       uses that a ``try`` or a test of the version excuses
- ``overrides``    methods that no longer fit what they override
"""

from vllm_compat.checking.packages.judging import NotJudged, PackageReport, judge_package

__all__ = ["NotJudged", "PackageReport", "judge_package"]
