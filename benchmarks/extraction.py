"""How fast states come out, against plain prefill, vLLM's native extraction, and speculators alone.

    python benchmarks/extraction.py all --shape kimi --seconds 60 --output /dev/shm/states

Each way runs in a process of its own, on a model of random weights that is made on the spot: no
download. Prompts of 2,000 tokens, bfloat16, eager, four layers. Needs vLLM and vllm-compat, and
speculators 0.4 for the two ways that use its generator; `all` goes on without it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

WAYS = ("plain", "native", "legacy", "adapted", "engine", "disk")
PROMPT_TOKENS, ROUND_PROMPTS, STEP_TOKENS = 2000, 96, 16384

_ATTENTION = {"max_position_embeddings": 8192, "torch_dtype": "bfloat16"}
SHAPES: dict[str, dict[str, Any]] = {
    # Kimi-K2's layer, with 32 of its 384 experts, eight times.
    "kimi": _ATTENTION
    | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "num_hidden_layers": 8,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 32,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 1,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.827,
        "vocab_size": 163840,
    },
    "llama": _ATTENTION
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    },
    # To try this script itself on a CPU.
    "tiny": _ATTENTION
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "vocab_size": 1000,
    },
}


def make_model(shape: str, folder: Path) -> Path:
    """A folder with a config and a tokenizer that nobody uses; the weights are made by vLLM."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    config = SHAPES[shape] | {"bos_token_id": 1, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"})
    )
    return folder


def prompts(shape: str, tokens: int, seed: int = 0) -> Iterator[list[int]]:
    """Random prompts without end."""
    import random

    source = random.Random(seed)
    vocabulary = SHAPES[shape]["vocab_size"]
    while True:
        yield [source.randrange(10, vocabulary) for _ in range(tokens)]


def layers(shape: str) -> list[int]:
    n = SHAPES[shape]["num_hidden_layers"]
    return [2, n // 2, n - 3, n - 1]


class Sweeper:
    """Keeps a memory disk from filling: what is complete and recorded is removed, oldest first."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.bytes = self.files = 0
        self._folder, self._keep = folder, keep
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(0.25):
            self.sweep(self._keep)

    def sweep(self, keep: int) -> None:
        files = [
            entry
            for entry in os.scandir(self._folder)
            if entry.name.endswith((".pt", ".safetensors")) and not entry.name.startswith(".")
        ]
        sizes = {entry.path: entry.stat().st_size for entry in files}
        total = sum(sizes.values())
        for path in sorted(sizes, key=os.path.getmtime):
            if total <= keep:
                break
            total -= sizes[path]
            self.bytes += sizes[path]
            self.files += 1
            os.unlink(path)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self.sweep(0)


def arguments(args: argparse.Namespace, model: Path) -> dict[str, Any]:
    return {
        "model": str(model),
        "load_format": "dummy",
        "max_model_len": args.tokens + 1,
        "max_num_batched_tokens": args.step_tokens,
        "gpu_memory_utilization": args.gpu_memory_utilization,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "skip_tokenizer_init": True,
        "dtype": args.dtype,
    }


def in_rounds(args: argparse.Namespace, run: Callable[[list[list[int]]], None]) -> dict[str, Any]:
    """Tokens a second of rounds, for as long as asked; the first one warms up and is not timed."""
    source = prompts(args.shape, args.tokens)
    size = args.batch
    batch = [next(source) for _ in range(size)]
    run(batch)
    rates: list[float] = []
    begun = time.monotonic()
    while not rates or time.monotonic() - begun < args.seconds:
        started = time.monotonic()
        run(batch)
        rates.append(size * args.tokens / (time.monotonic() - started))
    seconds = time.monotonic() - begun
    return {
        "tokens_per_s": len(rates) * size * args.tokens / seconds,
        "median_round": statistics.median(rates),
        "seconds": seconds,
        "rounds": len(rates),
    }


def run_plain(args: argparse.Namespace, model: Path) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    llm = LLM(**arguments(args, model))
    return in_rounds(args, lambda batch: generate(llm, SamplingParams, batch))


def generate(llm: Any, parameters: Any, batch: list[list[int]]) -> None:
    llm.generate(
        [{"prompt_token_ids": ids} for ids in batch],
        parameters(max_tokens=1, temperature=0.0, detokenize=False),
        use_tqdm=False,
    )


def run_native(args: argparse.Namespace, model: Path) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    folder = Path(args.output) / "native"
    folder.mkdir(parents=True)
    ids = [layer + 1 for layer in layers(args.shape)]
    llm = LLM(
        **arguments(args, model),
        speculative_config={
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": ids}},
        },
        kv_transfer_config={
            "kv_connector": "ExampleHiddenStatesConnector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(folder)},
        },
    )
    sweeper = Sweeper(folder, args.keep_gb << 30)
    result = in_rounds(args, lambda batch: generate(llm, SamplingParams, batch))
    sweeper.stop()
    return result


def run_engine(args: argparse.Namespace, model: Path) -> dict[str, Any]:
    """The engine, from the first sample to the last one recorded in the manifest."""
    from vllm_compat.extraction.run import Options, extract

    folder = Path(args.output) / "engine"
    warm = make_warm(args)
    marks: list[tuple[float, int]] = []

    def source() -> Iterator[list[int]]:
        yield from warm
        begun: float | None = None
        for prompt in prompts(args.shape, args.tokens, seed=1):
            begun = begun or (time.monotonic() if marks else None)
            if begun is not None and time.monotonic() - begun > args.seconds:
                return
            yield prompt

    def progress(now: Any) -> None:
        if now.tokens >= len(warm) * args.tokens:
            marks.append((time.monotonic(), now.tokens))

    engine = arguments(args, model)
    for name in ("model", "max_model_len", "dtype", "enforce_eager", "enable_prefix_caching"):
        engine.pop(name)
    folder.mkdir(parents=True)
    sweeper = Sweeper(folder, args.keep_gb << 30)
    done = extract(
        source(),
        Options(
            model=str(model),
            output=str(folder),
            layer_ids=tuple(layers(args.shape)),
            format=args.format,
            max_len=args.tokens,
            dtype=args.dtype,
            durable=args.durable,
            engine=engine,
            threads=args.threads,
        ),
        progress,
    )
    sweeper.stop()
    # The last but one is the end: everything is in files and recorded. The last one comes when
    # vLLM has shut down.
    (start, first), (end, last) = marks[0], marks[-2]
    return {
        "tokens_per_s": (last - first) / (end - start),
        "seconds": end - start,
        "samples": done.done,
        "bad": done.bad,
        "files_seen": sweeper.files,
        "gb_per_s": done.bytes / done.tokens * (last - first) / (end - start) / 1e9,
    }


def run_disk(args: argparse.Namespace) -> dict[str, Any]:
    """No model: what the file system takes of such files, each of them synced."""
    from concurrent.futures import ThreadPoolExecutor

    from vllm_compat.extraction.files import write_atomically

    folder = Path(args.output) / "disk"
    folder.mkdir(parents=True)
    sweeper = Sweeper(folder, args.keep_gb << 30)
    hidden = SHAPES[args.shape]["hidden_size"]
    sample = os.urandom(args.tokens * len(layers(args.shape)) * hidden * 2)
    begun = time.monotonic()

    def write(thread: int) -> int:
        count = 0
        while time.monotonic() - begun < args.seconds:
            path = folder / f"hs_{count * args.threads + thread}.safetensors"
            write_atomically(str(path), [sample])
            count += 1
        return count

    with ThreadPoolExecutor(args.threads) as pool:
        files = sum(pool.map(write, range(args.threads)))
    seconds = time.monotonic() - begun
    sweeper.stop()
    return {
        "tokens_per_s": files * args.tokens / seconds,
        "seconds": seconds,
        "files": files,
        "gb_per_s": files * len(sample) / seconds / 1e9,
    }


def make_warm(args: argparse.Namespace) -> list[list[int]]:
    source = prompts(args.shape, args.tokens, seed=2)
    return [next(source) for _ in range(args.warm)]


def run_generator(args: argparse.Namespace, model: Path, adapted: bool) -> dict[str, Any]:
    """speculators' generator: with vllm-compat, or with the least by hand that makes it run."""
    if adapted:
        import vllm_compat

        vllm_compat.apply()
    from speculators.data_generation import vllm_hidden_states_generator as module
    from vllm.config import LoadConfig

    module.LoadConfig = lambda: LoadConfig(load_format="dummy")
    if not adapted:
        request = module.Request
        module.Request = lambda **call: request(
            **{name: value for name, value in call.items() if name != "eos_token_id"}
        )
    generator = module.VllmHiddenStatesGenerator(
        str(model),
        layers(args.shape),
        max_model_len=args.tokens + 1,
        gpu_memory_utilization=args.gpu_memory_utilization,
        max_num_batched_tokens=args.step_tokens,
    )
    result = in_rounds(args, generator.generate)
    generator.executor.shutdown()
    return result


def run_way(args: argparse.Namespace) -> None:
    with TemporaryDirectory() as home:
        model = make_model(args.shape, Path(home) / "model")
        if args.way in ("legacy", "adapted"):
            result = run_generator(args, model, adapted=args.way == "adapted")
        else:
            runs = {"plain": run_plain, "native": run_native, "engine": run_engine}
            result = run_disk(args) if args.way == "disk" else runs[args.way](args, model)
    from importlib.metadata import version

    result["torch"] = version("torch")
    Path(args.result).write_text(json.dumps(result))


def run_all(args: argparse.Namespace) -> None:
    """Each way in its own process, one after the other; a table at the end."""
    results: dict[str, Any] = {}
    for way in args.ways:
        shutil.rmtree(args.output, ignore_errors=True)
        Path(args.output).mkdir(parents=True)
        generator = way in ("legacy", "adapted")
        with TemporaryDirectory() as folder:
            result = Path(folder) / "result.json"
            command = [sys.executable, __file__, way, "--result", str(result)]
            for name in ("shape", "tokens", "step_tokens", "output", "keep_gb", "format",
                         "threads", "warm", "dtype", "gpu_memory_utilization"):  # fmt: skip
                command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
            seconds = min(args.seconds, args.generator_seconds) if generator else args.seconds
            command += ["--seconds", str(seconds), *(["--durable"] if args.durable else [])]
            command += ["--batch", str(8 if generator else args.batch)]
            # The generator by itself knows model runner V1 only.
            by_hand = {}
            if way == "legacy":
                path = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
                by_hand = {"VLLM_USE_V2_MODEL_RUNNER": "0", "PYTHONPATH": path}
                # A name that transformers 5 took away, for every process that misses it.
                (Path(folder) / "sitecustomize.py").write_text(
                    "import builtins, torch\nbuiltins.torch = torch\n"
                )
            started = time.monotonic()
            log = Path(args.logs) / f"{args.shape}-{way}.log"
            with log.open("w") as output:
                environment = {**os.environ, **by_hand}
                code = subprocess.run(
                    command, env=environment, stdout=output, stderr=output, check=False
                ).returncode
            whole = time.monotonic() - started
            if code or not result.exists():
                print(f"{way:8} failed ({code}), see {log}", flush=True)
                continue
            results[way] = json.loads(result.read_text()) | {"whole_run_s": whole}
            print(f"{way:8} {json.dumps(results[way])}", flush=True)
    shutil.rmtree(args.output, ignore_errors=True)
    plain = results.get("plain", {}).get("tokens_per_s")
    for way, result in results.items():
        ratio = f"{result['tokens_per_s'] / plain:6.2f} of plain" if plain else ""
        print(f"{args.shape:6} {way:8} {result['tokens_per_s']:10,.0f} tok/s {ratio}")
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("way", choices=(*WAYS, "all"))
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--shape", choices=tuple(SHAPES), default="kimi")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--generator-seconds", type=float, default=15)
    parser.add_argument("--tokens", type=int, default=PROMPT_TOKENS)
    parser.add_argument("--batch", type=int, default=ROUND_PROMPTS)
    parser.add_argument("--step-tokens", type=int, default=STEP_TOKENS)
    parser.add_argument("--output", default="/dev/shm/vllm_compat-benchmark")
    parser.add_argument("--keep-gb", type=int, default=40, help="files left before they are swept")
    parser.add_argument("--format", choices=("native", "legacy"), default="native")
    parser.add_argument("--durable", action="store_true", help="sync every file")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--warm", type=int, default=ROUND_PROMPTS)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.8)
    parser.add_argument("--result", default="/dev/null")
    parser.add_argument("--logs", default=".")
    parser.add_argument("--json")
    args = parser.parse_args()
    run_all(args) if args.way == "all" else run_way(args)


if __name__ == "__main__":
    main()
