"""The main job on real texts: extract hidden states with speculators, compare with transformers.

    python demo/run.py [--keep DIR]

Makes a small random model, so nothing is downloaded. Exit code 0 if every state is right, else 1.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

TEXTS = Path(__file__).with_name("texts.jsonl")
LAYERS = [2, 4, 5, 7]
# In float32 a right state is about 1e-5 away from transformers, a wrong one about 1.
BOUND = 1e-4
# vLLM reads these when it is imported, here and in its workers: a cache of 1 GiB, no hub, no
# pinning of cores that others use too, no usage report.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class Passage(NamedTuple):
    """One text, tokenized."""

    title: str
    tokens: list[int]


class Row(NamedTuple):
    """A passage's worst relative error, and how far off a neighbouring layer would have been."""

    title: str
    tokens: int
    error: float
    neighbour: float

    @property
    def ok(self) -> bool:
        """Whether every state is right."""
        return self.error < BOUND


def prepare(folder: Path) -> list[Passage]:
    """Write a tokenizer and a model into the folder; return the tokenized passages."""
    records = [json.loads(line) for line in TEXTS.read_text(encoding="utf-8").splitlines()]
    tokenizer = train_tokenizer([record["text"] for record in records], folder)
    make_model(len(tokenizer), folder)
    return [Passage(record["title"], tokenizer(record["text"])["input_ids"]) for record in records]


def train_tokenizer(texts: list[str], folder: Path) -> Any:
    """A byte-level BPE tokenizer of these texts."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(BPE())
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=2000,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained(folder)
    return tokenizer


def make_model(vocabulary: int, folder: Path) -> None:
    """A small random Llama in which every layer changes its input by a good part."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(0)
    for _, tensor in sorted(model.state_dict().items()):
        if tensor.ndim > 1:  # wide: neighbouring layers must not look alike
            tensor.normal_(0.0, 1.4 / tensor.shape[-1] ** 0.5, generator=generator)
        else:  # a norm
            tensor.uniform_(0.5, 1.5, generator=generator)
    model.save_pretrained(folder)


def extract(folder: Path, passages: list[Passage]) -> tuple[list[dict[str, Any]], float]:
    """Run speculators' own generator on all passages in one call; its results and seconds."""
    import vllm_compat

    vllm_compat.apply()

    from speculators.data_generation import vllm_hidden_states_generator as speculators

    # For this comparison only: speculators says dtype="auto", for which vLLM makes bfloat16 of a
    # float32 model, and that rounds too coarsely to compare closely.
    model_config = speculators.ModelConfig
    speculators.ModelConfig = lambda **given: model_config(**{**given, "dtype": "float32"})

    generator = speculators.VllmHiddenStatesGenerator(str(folder), layer_ids=LAYERS)
    start = time.perf_counter()
    results = generator.generate([passage.tokens for passage in passages])
    seconds = time.perf_counter() - start
    # speculators stops its workers when the generator goes: here, rather than at exit.
    del generator
    gc.collect()
    return results, seconds


def compare(folder: Path, passages: list[Passage], results: list[dict[str, Any]]) -> list[Row]:
    """Hold every state of every passage against transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    rows = []
    for passage, result in zip(passages, results, strict=True):
        error = neighbour = float("inf")
        states = result["hidden_states"]
        if result["input_ids"].tolist() == passage.tokens and len(states) == len(LAYERS):
            expected = layer_outputs(model, passage.tokens)
            pairs = list(zip(LAYERS, states, strict=True))
            error = max(relative_error(state, expected[layer]) for layer, state in pairs)
            neighbour = min(relative_error(state, expected[layer - 1]) for layer, state in pairs)
        rows.append(Row(passage.title, len(passage.tokens), error, neighbour))
    return rows


def layer_outputs(model: Any, tokens: list[int]) -> list[torch.Tensor]:
    """What each decoder layer puts out for the tokens, in transformers."""
    import torch

    outputs: list[torch.Tensor] = []

    def keep(_layer: object, _args: object, output: Any) -> None:
        # Some releases return the state in a tuple, later ones the state itself.
        state = output[0] if isinstance(output, tuple) else output
        outputs.append(state.reshape(len(tokens), -1))

    hooks = [layer.register_forward_hook(keep) for layer in model.model.layers]
    with torch.inference_mode():
        model(torch.tensor([tokens]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return outputs


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference over the norm of what was expected; the worst token's."""
    if got.shape != expected.shape:
        return float("inf")
    error = (got.double() - expected.double()).norm(dim=-1) / expected.double().norm(dim=-1)
    # A NaN is neither above a bound nor below it; infinity is above every one.
    return float("inf") if error.isnan().any() else float(error.max())


def show(rows: list[Row], seconds: float) -> None:
    """Print the table and the summary."""
    import torch
    import transformers

    import vllm_compat

    print(f"\n{'passage':<36}{'tokens':>8}{'worst error':>15}")
    for row in rows:
        print(f"{row.title:<36}{row.tokens:>8}{row.error:>15.1e}  {'ok' if row.ok else 'WRONG'}")
    tokens = sum(row.tokens for row in rows)
    worst, neighbour = max(row.error for row in rows), min(row.neighbour for row in rows)
    summary = {
        "versions": f"python {platform.python_version()}, torch {torch.__version__},"
        f" transformers {transformers.__version__}, vllm-compat {vllm_compat.__version__}",
        "apply()": vllm_compat.apply().summary(),  # on already: the report of the first call
        "samples": f"{len(rows)}, {tokens} tokens, {tokens / seconds:.0f} tokens/s",
        "worst error": f"{worst:.1e} at layers {', '.join(map(str, LAYERS))}; bound {BOUND:.0e},"
        f" the layer before would show {neighbour:.1g} or more",
        "result": f"{sum(row.ok for row in rows)} of {len(rows)} passages right",
    }
    print()
    for label, text in summary.items():
        print(f"{label:<14}{text}")


@contextmanager
def phase(title: str, log: Path) -> Iterator[None]:
    """Show that something long runs; its own output, also that of its workers, goes to the log."""
    print(f"{title + ' ':.<70}", end=" ", flush=True)
    start = time.perf_counter()
    # The file descriptors, not sys.stdout: worker processes and C++ libraries write to those.
    terminal = os.dup(1), os.dup(2)
    with log.open("ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    outcome = "failed"
    try:
        yield
        outcome = f"{time.perf_counter() - start:5.1f} s"
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, saved in zip((1, 2), terminal, strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)
        print(outcome, flush=True)


def main() -> int:
    """Prepare, extract, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make the model here, and keep it")
    keep: Path | None = parser.parse_args().keep
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)

    with tempfile.TemporaryDirectory(prefix="vllm-compat-demo-") as temporary:
        folder = keep.resolve() if keep else Path(temporary)
        log = folder.with_name(f"{folder.name}.log")
        print(f"vLLM's log: {log}")
        with phase("prepare: train a tokenizer, make a model", log):
            passages = prepare(folder)
        with phase("extract: speculators on vLLM, in a worker process", log):
            results, seconds = extract(folder, passages)
        with phase("compare: transformers, one passage at a time", log):
            rows = compare(folder, passages, results)
    show(rows, seconds)
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
