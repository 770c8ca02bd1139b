"""``extract-kimi-k25``: ``vllm-compat extract`` with what Kimi-K2.5 needs on one node of 8 GPUs.

    extract-kimi-k25 --data prepared/ --output-dir states/ --trust-remote-code

A mixture of experts of 10^12 parameters in a multimodal wrapper: latent attention, hidden size
7168, 61 decoder layers, vocabulary 163840, INT4 weights of 547 GB. Four layers' states in bfloat16
are 57 KB a token.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from vllm_compat.cli import Exit, extract
from vllm_compat.errors import VllmCompatError

MODEL = "moonshotai/Kimi-K2.5"
# EAGLE-3's three, and the last one, which the draft model's head learns from.
LAYER_IDS = [2, 30, 58, 60]
DEFAULTS = {
    "model": MODEL,
    "layer_ids": LAYER_IDS,
    # The weights' INT4 is in their config, and what is computed is this.
    "dtype": "bfloat16",
    "tensor_parallel_size": 8,
    "gpu_memory_utilization": 0.92,
    "max_num_batched_tokens": 16384,
}
REMOTE_CODE = f"""\
{MODEL}'s config and processor are Python code that comes with its weights, written by Moonshot AI.
--trust-remote-code runs it, with your rights; without it the model cannot be loaded.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    parser = argparse.ArgumentParser(
        "extract-kimi-k25",
        description="Extracts hidden states of Kimi-K2.5 for EAGLE-3 training.",
        epilog=REMOTE_CODE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    extract.add_options(parser, **DEFAULTS)
    arguments = parser.parse_args(argv)
    if not arguments.trust_remote_code:
        print(REMOTE_CODE, file=sys.stderr, end="")
    try:
        return int(extract.run(arguments))
    except VllmCompatError as error:
        print(f"extract-kimi-k25: {error}", file=sys.stderr)
        return Exit.COULD_NOT_LOOK


if __name__ == "__main__":
    sys.exit(main())
