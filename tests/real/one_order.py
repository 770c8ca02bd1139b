"""Run the events named on the command line in this process, checking after each of them."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import wrapt

import vllm_compat

GENERATOR = "speculators.data_generation.vllm_hidden_states_generator"
WORKER = "speculators.data_generation.custom_worker"
CLASSES = {GENERATOR: "VllmHiddenStatesGenerator", WORKER: "HiddenStatesWorkerExtension"}


def contents() -> dict[str, dict[str, int]]:
    """``vars()`` of the touched modules and classes that are imported, values by identity."""
    found = {}
    for name, cls in CLASSES.items():
        if name in sys.modules:
            module = vars(sys.modules[name])
            found[name] = {key: id(value) for key, value in module.items()}
            found[cls] = {key: id(value) for key, value in vars(module[cls]).items()}
    return found


def ours() -> list[str]:
    """Names in the touched modules and classes that hold a wrapper."""
    return [
        f"{name}.{key}"
        for name, cls in CLASSES.items()
        if name in sys.modules
        for holder in (sys.modules[name], vars(sys.modules[name])[cls])
        for key, value in vars(holder).items()
        if isinstance(value, (wrapt.ObjectProxy, wrapt.FunctionWrapper))
    ]


def main(events: list[str]) -> None:
    os.environ["VLLM_COMPAT_APPLIED"] = "as in the parent"
    finders, environment = list(sys.meta_path), dict(os.environ)
    pristine: dict[str, dict[str, int]] = {}
    on = False
    for event in events:
        if event == "import":
            import_module(WORKER)
            import_module(GENERATOR)
            environment = {**os.environ}  # vLLM sets variables of its own
            environment["VLLM_COMPAT_APPLIED"] = "as in the parent"
            finders = [f for f in sys.meta_path if "vllm_compat" not in type(f).__module__]
            pristine = {} if on else contents()
        else:
            on = event == "apply"
            getattr(vllm_compat, event)()
        assert (vllm_compat.status() is not None) is on
        if not on:
            assert sys.meta_path == finders, event
            assert dict(os.environ) == environment, event
            assert ours() == [], event
            assert not pristine or contents() == pristine, event
        elif GENERATOR in sys.modules:
            names = {f"{GENERATOR}.AutoTokenizer", f"{WORKER}._reset_capture"}
            assert names <= set(ours()), (event, ours())


if __name__ == "__main__":
    main(sys.argv[1:])
