"""What speculators calls on instances: of classes it imports, and of the model in its worker.

No import shows these, so the names that speculators gives the instances stand here.
"""

from __future__ import annotations

from typing import NamedTuple

_EXECUTOR = "vllm.v1.executor.multiproc_executor:MultiprocExecutor"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
# Of the models, Llama's is the one that speculators wrote its forward after.
_MODEL = "vllm.model_executor.models.llama:LlamaModel"


class Method(NamedTuple):
    """A method that is called through an instance.

    Attributes:
        symbol: what is called.
        adapter: the one that answers for it, if any.
        homes: where else it was or will be.
    """

    symbol: str
    adapter: str = ""
    homes: tuple[str, ...] = ()


# By the call, as the source spells it.
REACHED = {
    "self.executor.collective_rpc": Method(f"{_EXECUTOR}.collective_rpc", "rpc-reply"),
    "self.executor.execute_model": Method(f"{_EXECUTOR}.execute_model", "engine-steps"),
    "self.executor.sample_tokens": Method(f"{_EXECUTOR}.sample_tokens", "engine-steps"),
    "self.executor.initialize_from_config": Method(f"{_EXECUTOR}.initialize_from_config"),
    "self.executor.shutdown": Method(f"{_EXECUTOR}.shutdown"),
    "self.scheduler.add_request": Method(f"{_SCHEDULER}.add_request"),
    "self.scheduler.schedule": Method(f"{_SCHEDULER}.schedule", "engine-steps"),
    "self.scheduler.finish_requests": Method(f"{_SCHEDULER}.finish_requests", "engine-steps"),
    "self.get_input_embeddings": Method(
        f"{_MODEL}.get_input_embeddings", "worker-capture", (f"{_MODEL}.embed_input_ids",)
    ),
    "self.embed_input_ids": Method(
        f"{_MODEL}.embed_input_ids", "worker-capture", (f"{_MODEL}.get_input_embeddings",)
    ),
    "layer": Method("vllm.model_executor.models.llama:LlamaDecoderLayer.forward", "worker-capture"),
}
