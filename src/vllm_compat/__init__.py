"""Makes unmodified speculators run, correctly, on whichever vLLM is installed.

import vllm_compat
vllm_compat.apply()
"""

from vllm_compat.errors import (
    CaptureError,
    IncompatibleVllmError,
    NotInstalledError,
    PatchError,
    PromptError,
    UnsupportedModelError,
    VllmCompatError,
    WorkerNotAdaptedError,
)
from vllm_compat.report import CallSite, Report
from vllm_compat.session import apply, revert, status

__version__ = "0.1.0"

__all__ = [
    "CallSite",
    "CaptureError",
    "IncompatibleVllmError",
    "NotInstalledError",
    "PatchError",
    "PromptError",
    "Report",
    "UnsupportedModelError",
    "VllmCompatError",
    "WorkerNotAdaptedError",
    "apply",
    "revert",
    "status",
]
