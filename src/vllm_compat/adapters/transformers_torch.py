"""``transformers.configuration_utils.torch``: a name that annotations need and nobody imports.

From transformers 5 on (which vLLM 0.24 and later require) the module imports torch for type
checkers only, while its annotations say ``torch.dtype``. speculators' config classes, pydantic
models that inherit from it, resolve those annotations at import and fail: in the parent, and again
in every worker.
"""

import os
import re
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from vllm_compat.adapters.adapter import Adapter, Break, Decision, uncovered
from vllm_compat.context import Context
from vllm_compat.discovery import package_root
from vllm_compat.patching import Add, Patch

MODULE = "transformers.configuration_utils"


# A field of a class, annotated with a name out of torch; and an import that runs.
FIELD = re.compile(rb"(?m)^    \w+\s*:[^=\n]*\btorch\.")
IMPORT = re.compile(rb"(?m)^(import torch\b|if is_torch_available\(\):\s+import torch\b)")


def needed(context: Context) -> Decision:
    root = package_root("transformers")
    source = b""
    if root is not None:
        try:
            with open(os.path.join(root, "configuration_utils.py"), "rb") as file:
                source = file.read()
        except OSError as error:
            return uncovered(
                "transformers keeps its configurations elsewhere",
                found=str(error),
                needed=f"{MODULE}, one file",
            )
    if not FIELD.search(source) or IMPORT.search(source):
        return Decision("fits", "this transformers has no such annotation, or imports torch")
    return Decision("adapted", "gives the module the name its annotations use")


def _torch(module: ModuleType) -> ModuleType:
    return import_module("torch")


def patches(context: Context) -> Sequence[Patch]:
    return [Add(MODULE, "torch", _torch, "transformers-torch")]


ADAPTER = Adapter(
    name="transformers-torch",
    symbol=f"{MODULE}:torch",
    call_site="speculators.config",
    speculators=">=0.3,<0.5",
    broke=(
        Break(
            "0.24.0",
            "",
            "requires transformers 5: PydanticUndefinedAnnotation 'torch'",
            kind="environment",
            at="PretrainedConfig",
        ),
    ),
    removal="speculators' configs no longer inherit from pydantic and transformers at once",
    needed=needed,
    patches=patches,
)
