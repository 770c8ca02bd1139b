"""States of small models in bfloat16 on an accelerator, against transformers.

    python benchmarks/correctness.py [--family llama deepseek_v3] [--json FILE]

Random weights; the reference is transformers in float32 on the same weights rounded to bfloat16.
The error of a token is the norm of the difference over the norm of what is right. bfloat16 gives
errors of some hundredths; another layer's states are off by 0.5 and more, which is shown beside.
A mixture of experts may choose another expert for a token where two scores are all but equal; that
token is then off by as much as another layer would be. How often that happens transformers shows
itself, in bfloat16 against the same reference.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

LENGTHS = [1, 3, 17, 64, 130, 300, 700, *[40] * 20]
# Latent attention has kernels for the real sizes only.
REAL_SIZES = {
    "deepseek_v3": {
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": 512,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    },
    "llama": {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 4},
}
ENGINE = {"max_num_batched_tokens": 512, "gpu_memory_utilization": 0.3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--family", nargs="*", default=["llama", "deepseek_v3"])
    parser.add_argument("--way", nargs="*", default=["engine", "adapted", "transformers"])
    parser.add_argument("--json")
    args = parser.parse_args()
    results = {}
    for family in args.family:
        with TemporaryDirectory() as home:
            folder = make(family, Path(home) / "model")
            data = prompts(folder)
            right = reference(folder, data)
            for way in args.way:
                got = WAYS[way](folder, data)
                results[f"{family} {way}"] = errors = compare(got, right)
                print(family, way, json.dumps(errors), flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))


def make(family: str, folder: Path) -> Path:
    """The family's model in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM

    from tests.real.zoo import build

    build(family, folder, **REAL_SIZES[family])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def prompts(folder: Path) -> list[list[int]]:
    import torch
    from transformers import AutoConfig

    vocabulary = AutoConfig.from_pretrained(folder).vocab_size
    source = torch.Generator().manual_seed(0)
    return [
        torch.randint(10, vocabulary, (length,), generator=source).tolist() for length in LENGTHS
    ]


def reference(folder: Path, data: list[list[int]]) -> list[list[Any]]:
    from tests.real.reference import reference_states

    return reference_states(folder, data)


def by_engine(folder: Path, data: list[list[int]]) -> list[list[Any]]:
    from vllm_compat.extraction.formats import get_format
    from vllm_compat.extraction.run import Options, extract

    form = get_format("native")
    layers = tuple(range(layers_of(folder)))
    with TemporaryDirectory() as output:
        options = Options(
            str(folder), output, layers, "native", max_len=1024, dtype="bfloat16", engine=ENGINE
        )
        done = extract(data, options)
        assert (done.done, done.bad) == (len(data), 0), done
        stored = [form.load(os.path.join(output, form.file_name(n))) for n in range(len(data))]
        assert [each.token_ids.tolist() for each in stored] == data
        return [[layer.clone() for layer in each.layers] for each in stored]


def by_generator(folder: Path, data: list[list[int]]) -> list[list[Any]]:
    import vllm_compat

    vllm_compat.apply()
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    generator = VllmHiddenStatesGenerator(
        str(folder),
        list(range(layers_of(folder))),
        max_model_len=1025,
        gpu_memory_utilization=0.3,
        max_num_batched_tokens=1536,
    )
    results = generator.generate(data)
    generator.executor.shutdown()
    assert [result["input_ids"].tolist() for result in results] == data
    return [result["hidden_states"] for result in results]


def by_transformers(folder: Path, data: list[list[int]]) -> list[list[Any]]:
    """The same model in bfloat16, without vLLM: what rounding alone does."""
    import torch
    from transformers import AutoModelForCausalLM

    from tests.real.reference import decoder_layers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval().to(device)
    states: list[Any] = []

    def keep(_module: object, _args: object, output: Any) -> None:
        state = output[0] if isinstance(output, tuple) else output
        states[-1].append(state.reshape(-1, state.shape[-1]).cpu())

    for layer in decoder_layers(model):
        layer.register_forward_hook(keep)
    for prompt in data:
        states.append([])
        with torch.inference_mode():
            model(torch.tensor([prompt], device=device), use_cache=False)
    return states


WAYS = {"engine": by_engine, "adapted": by_generator, "transformers": by_transformers}


def layers_of(folder: Path) -> int:
    layers: int = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    return layers


def compare(got: list[list[Any]], right: list[list[Any]]) -> dict[str, float]:
    import torch

    def errors(shift: int) -> Any:
        found = []
        for states, reference in zip(got, right, strict=True):
            for layer in range(len(reference) - shift):
                state, expected = states[layer + shift].double(), reference[layer].double()
                found.append((state - expected).norm(dim=-1) / expected.norm(dim=-1))
        return torch.cat(found)

    own, other = errors(0), errors(1)
    return {
        "median": float(own.median()),
        "p99": float(own.quantile(0.99)),
        "worst": float(own.max()),
        "layer_above_median": float(other.median()),
        "tokens_x_layers": own.numel(),
    }


if __name__ == "__main__":
    main()
