"""Takes one adapter out of the registry in every process that starts with this on its path."""

import os

without = os.environ.get("ABLATION_WITHOUT")
if without:
    from vllm_compat import adapters, judge

    judge.REGISTRY = adapters.REGISTRY = adapters.Registry(
        [adapter for adapter in adapters.REGISTRY if adapter.name != without]
    )
