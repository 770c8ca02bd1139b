"""What every vLLM release has under every symbol that speculators relies on, recorded.

So any vLLM and any speculators can be judged as a pair with neither installed:

- ``usage``     everything that a package imports, calls and inherits from vLLM
- ``reached``   what speculators calls through instances, which no import shows
- ``recording`` makes the contract of one release from its sources
- ``sources``   where those come from: the environment, a folder, a file, the package index
- ``table``     many contracts as one file, in runs of releases that agree
- ``recorded``  a vLLM and a speculators out of those files, for the judge
"""

from vllm_compat.contracts.recorded import (
    NotRecordedError,
    RecordedConsumer,
    RecordedTree,
    consumer_record,
    load_speculators,
    load_vllm,
    recorded_context,
    releases,
    speculators_releases,
    vllm_table,
)
from vllm_compat.contracts.recording import UnreadableVllmError, record
from vllm_compat.contracts.sources import (
    DownloadError,
    record_folder,
    record_installed,
    record_release,
)
from vllm_compat.contracts.table import Contract, Table, dump, update
from vllm_compat.contracts.usage import Use, uses

__all__ = [
    "Contract",
    "DownloadError",
    "NotRecordedError",
    "RecordedConsumer",
    "RecordedTree",
    "Table",
    "UnreadableVllmError",
    "Use",
    "consumer_record",
    "dump",
    "load_speculators",
    "load_vllm",
    "record",
    "record_folder",
    "record_installed",
    "record_release",
    "recorded_context",
    "releases",
    "speculators_releases",
    "update",
    "uses",
    "vllm_table",
]
