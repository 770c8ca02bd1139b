"""``vllm-compat extract``: the hidden states of a data set, into a folder that training reads."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from vllm_compat.cli import Exit

if TYPE_CHECKING:
    from vllm_compat.extraction.run import Options, Progress

# vLLM's own arguments that have an option here; any other through --engine-arg.
ENGINE_OPTIONS: dict[str, Any] = {
    "tensor_parallel_size": int,
    "gpu_memory_utilization": float,
    "max_num_batched_tokens": int,
    "max_num_seqs": int,
    "load_format": str,
    "quantization": str,
    "tokenizer": str,
    "distributed_executor_backend": str,
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "extract",
        help="extract the hidden states of a data set",
        description="Extracts the hidden states of every sample that the folder does not hold yet."
        " Started again after whatever ended it, it goes on where it was.",
    )
    add_options(parser)
    parser.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """The options of an extraction; ``defaults`` in place of their own."""
    parser.add_argument("--model", "--target-model-path", required="model" not in defaults)
    parser.add_argument(
        "--data",
        "--train-data-path",
        required=True,
        help="a .jsonl file with input_ids (and loss_mask), or a folder that speculators'"
        " prepare-data saved",
    )
    parser.add_argument("--output-dir", required=True, help="made where it is not there")
    parser.add_argument(
        "--layer-ids",
        type=int,
        nargs="+",
        help="decoder layers, 0-based: id i is the output of layer i (default: EAGLE-3's three and"
        " the last one)",
    )
    parser.add_argument(
        "--format",
        choices=("legacy", "native"),
        default="legacy",
        help="data_{i}.pt, which speculators 0.3 and 0.4 train from, or hs_{i}.safetensors, which"
        " 0.5 and later do (default: legacy)",
    )
    parser.add_argument(
        "--seq-length", type=int, default=2048, help="longer samples are cut (default: 2048)"
    )
    parser.add_argument("--max-samples", type=int, help="only so many, from the first")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run the Python code in the model's folder, with your rights; read it first",
    )
    for name, kind in ENGINE_OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=argparse.SUPPRESS)
    parser.add_argument(
        "--engine-arg",
        action="append",
        default=[],
        type=_engine_argument,
        metavar="NAME=JSON",
        help="an argument of vLLM's LLM; "
        + ", ".join(f"--{name.replace('_', '-')}" for name in ENGINE_OPTIONS)
        + " are there as well",
    )
    parser.add_argument(
        "--shard",
        default="0/1",
        metavar="I/N",
        help="the part of the samples this process does; auto: as torchrun, srun or mpirun say",
    )
    parser.add_argument(
        "--on-bad-sample",
        choices=("skip", "stop"),
        default="skip",
        help="a sample with NaN or missing states is recorded as bad; then go on, or stop",
    )
    parser.add_argument("--retry-bad", action="store_true", help="try recorded bad samples again")
    parser.add_argument("--t2d", help="the draft vocabulary's mapping; its hash is recorded")
    parser.add_argument("--d2t", help="likewise")
    parser.add_argument("--write-threads", type=int, default=8)
    parser.add_argument(
        "--not-durable",
        action="store_true",
        help="do not sync files: faster, lost with the machine",
    )
    parser.add_argument(
        "--stall-timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="an engine or a disk that does not move for so long is given up (default: 300)",
    )
    parser.set_defaults(**defaults)


def run(arguments: argparse.Namespace) -> int:
    """Extract; 0 if every sample is there, 1 if some were refused."""
    from vllm_compat.extraction.run import extract

    with _Bar() as bar:
        progress = extract(arguments.data, options_of(arguments), bar)
    print(summary(progress), file=sys.stderr)
    return Exit.NOT_COVERED if progress.bad else Exit.FINE


def options_of(arguments: argparse.Namespace) -> Options:
    """The library's options out of the command's."""
    from vllm_compat.extraction.run import Options
    from vllm_compat.extraction.shards import parse_shard

    engine = {
        name: value
        for name in ENGINE_OPTIONS
        if (value := getattr(arguments, name, None)) is not None
    }
    engine.update(arguments.engine_arg)
    return Options(
        model=arguments.model,
        output=arguments.output_dir,
        layer_ids=tuple(arguments.layer_ids or ()),
        format=arguments.format,
        max_len=arguments.seq_length,
        max_samples=arguments.max_samples,
        dtype=arguments.dtype,
        trust_remote_code=arguments.trust_remote_code,
        shard=parse_shard(arguments.shard, os.environ),
        on_bad_sample=arguments.on_bad_sample,
        retry_bad=arguments.retry_bad,
        t2d=arguments.t2d,
        d2t=arguments.d2t,
        threads=arguments.write_threads,
        durable=not arguments.not_durable,
        stall_timeout=arguments.stall_timeout,
        engine=engine,
    )


def _engine_argument(text: str) -> tuple[str, Any]:
    """The type of ``--engine-arg``.

    Raises:
        ArgumentTypeError: it is no name and JSON.
    """
    name, _, value = text.partition("=")
    name = name.lstrip("-").replace("-", "_")
    try:
        if name.isidentifier():
            return name, json.loads(value)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is no NAME=JSON such as seed=7")


def summary(progress: Progress) -> str:
    """A few lines on what a run did."""
    lines = [
        f"{progress.done} samples extracted, {progress.kept} were there, {progress.bad} refused",
        f"{progress.tokens:,} tokens, {progress.bytes / 1e9:.2f} GB in {progress.seconds:.0f} s"
        + (f", {progress.tokens / progress.seconds:,.0f} tokens/s" if progress.seconds else ""),
    ]
    return "\n".join(lines + [f"  {note}" for note in progress.notes])


class _Bar:
    """A progress bar on a terminal, and nothing elsewhere."""

    def __enter__(self) -> _Bar:
        from tqdm import tqdm

        self._bar = tqdm(unit=" samples", disable=None, dynamic_ncols=True, file=sys.stderr)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def __call__(self, progress: Progress) -> None:
        if progress.seconds:
            self._bar.set_postfix_str(
                f"{progress.tokens / progress.seconds:,.0f} tok/s,"
                f" {progress.bytes / progress.seconds / 1e9:.2f} GB/s,"
                f" {progress.free_bytes / 1e9:,.0f} GB left",
                refresh=False,
            )
        self._bar.total = progress.total
        self._bar.initial = progress.kept
        self._bar.n = progress.kept + progress.done + progress.bad
        self._bar.refresh()
