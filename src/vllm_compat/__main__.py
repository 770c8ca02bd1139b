"""``python -m vllm_compat``."""

import sys

from vllm_compat.cli import main

if __name__ == "__main__":
    sys.exit(main())
