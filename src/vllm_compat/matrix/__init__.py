"""Which speculators works on which vLLM, how, and what shows it.

- ``runs``     what real engines showed: one file a run, in ``runs/``
- ``cells``    one pair: the verdict out of the records, with its evidence
- ``writing``  ``compat_matrix.yaml`` and the table in the README: ``python -m vllm_compat.matrix``
"""

from vllm_compat.matrix.cells import (
    Cell,
    Verdict,
    cell,
    in_process_speculators,
    nearest_working,
    row,
)
from vllm_compat.matrix.runs import BadRunError, NoStart, Run, recorded_runs

__all__ = [
    "BadRunError",
    "Cell",
    "NoStart",
    "Run",
    "Verdict",
    "cell",
    "in_process_speculators",
    "nearest_working",
    "recorded_runs",
    "row",
]
