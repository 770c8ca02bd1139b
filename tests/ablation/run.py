"""A short battery on one engine: exits 0 when everything in it is right."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import vllm_compat


def main(folder: Path) -> None:
    from tests.real.engines import Engines, prompts
    from tests.real.zoo import build

    engines = Engines(folder)
    model_with_code(build("llama", folder / "llama"))

    os.environ["VLLM_PLUGINS"] = "another_plugin"
    try:
        engines.start("llama")
    except vllm_compat.WorkerNotAdaptedError:
        del os.environ["VLLM_PLUGINS"]
    else:
        raise AssertionError("workers without adapters were not found")

    engine = engines.start("llama", [5, 0, 7, 3, 5])
    (prefix,) = prompts(64)
    engine.check([prefix, [*prefix, 99], *prompts(*[300] * 36), *prompts(*[9] * 40, seed=1)])
    maps = Path("/proc/self/maps").read_text()
    assert "memfd:vllm_compat" in maps, "the states came through the pickled queue"
    engine.check([[*prefix, 98], prefix])
    try:
        engine.generator.generate([[]])
    except vllm_compat.PromptError:
        engine.check(prompts(20))
    else:
        raise AssertionError("an empty prompt was taken")
    engines.stop()


def model_with_code(folder: Path) -> None:
    """Give the model a tokenizer that is code of its own, which loads where that is allowed."""
    import json

    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": [None, "tokenization_own.OwnTokenizer"]}
    config["tokenizer_class"] = "OwnTokenizer"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "tokenization_own.py").write_text(
        "from transformers import PreTrainedTokenizerFast\n"
        "class OwnTokenizer(PreTrainedTokenizerFast):\n"
        "    pass\n"
    )


if __name__ == "__main__":
    vllm_compat.apply(trust_remote_code=True)
    main(Path(sys.argv[1]))
