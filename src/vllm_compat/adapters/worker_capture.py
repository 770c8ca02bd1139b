"""The worker extension's capture: hooks on the decoder layers in place of a forward of its own.

speculators replaces the model's forward with one it wrote for Llama. That loses every change vLLM
made to the models' own (the embedding's name, extra arguments of layers, states sharded between
layers), misreads layers that carry their residual in another way (Cohere, silently), finds the
layers under two names only, sorts them, and attributes rows by an order the batch need not have.
``vllm_compat.capture`` replaces what the extension's methods do; their names, arguments and replies
stay, but for the token ids, which follow the layers as one more tensor so that the parent can check
whose states it was given.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_compat.adapters.adapter import Adapter, Break, Decision, uncovered
from vllm_compat.context import WORKER, Context
from vllm_compat.patching import Patch, Wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CLASS = "HiddenStatesWorkerExtension"
# What every worker, and under it every model runner, is called with at each step.
EXECUTE = "vllm.v1.worker.worker_base:WorkerBase.execute_model"
# What the capture reads of a step, in vllm_compat.capture.batch and .recorder.
READS = {
    "vllm.v1.core.sched.output:SchedulerOutput": (
        "scheduled_new_reqs",
        "scheduled_cached_reqs",
        "num_scheduled_tokens",
        "total_num_scheduled_tokens",
        "finished_req_ids",
    ),
    "vllm.v1.core.sched.output:NewRequestData": (
        "req_id",
        "prompt_token_ids",
        "num_computed_tokens",
    ),
    "vllm.v1.core.sched.output:CachedRequestData": ("req_ids", "num_computed_tokens"),
}
# And of a step that model runner V2 has prepared, where there is such a runner.
PREPARE = "vllm.v1.worker.gpu.model_runner:GPUModelRunner.prepare_inputs"
PREPARED = "vllm.v1.worker.gpu.input_batch:InputBatch"
READS[PREPARED] = ("req_ids", "num_scheduled_tokens", "input_ids", "positions")


def needed(context: Context) -> Decision:
    execute = context.probe(EXECUTE)
    if execute.signature is None:
        problems = [f"{EXECUTE} is {execute.status}"]
    else:
        problems = [f"{EXECUTE}: {problem}" for problem in execute.signature.problems(1, ())]
    has_v2 = context.probe(PREPARE).signature is not None
    for symbol, fields in READS.items():
        signature = context.probe(symbol).signature
        if symbol != PREPARED or has_v2:
            problems += [
                f"{symbol} has no {field}"
                for field in fields
                if signature is None or not signature.accepts(field)
            ]
    if problems:
        return uncovered(
            "a worker's step is described in another way",
            found="; ".join(problems),
            needed="which request has which rows of a step, as the capture reads it",
        )
    return Decision("adapted", "captures through hooks on the model's own layers")


def setup(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> None:
    from vllm_compat.capture.recorder import Recorder

    (layer_ids,) = args or (kwargs["layer_ids"],)
    worker._recorder = Recorder(worker, layer_ids)


def reset(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> None:
    worker._recorder.reset()


def states_by_request(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    """As 0.4 wants it: request id -> one tensor a layer (and the ids)."""
    collected = worker._recorder.collect()
    return {name: [*states.layers, states.input_ids] for name, states in collected.items()} or None


def states_by_layer(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    """As 0.3 wants it: one tensor a layer (and the ids), the requests one after the other."""
    import torch

    collected = worker._recorder.collect()
    in_order = sorted(collected, key=lambda name: int(name.rpartition("_")[2]))
    rows = [[*collected[name].layers, collected[name].input_ids] for name in in_order]
    return [torch.cat(parts) for parts in zip(*rows, strict=True)] or None


def no_metadata(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> None:
    """The runner's own batch tells which rows are whose."""


def patches(context: Context) -> Sequence[Patch]:
    methods = {"_setup_hidden_states_capture": setup, "_reset_capture": reset}
    if context.consumer.defines(WORKER, f"{CLASS}._set_request_metadata"):
        methods |= {"_set_request_metadata": no_metadata, "_get_captured_states": states_by_request}
    else:
        methods |= {"_get_captured_states": states_by_layer}
    return [
        Wrap(WORKER, f"{CLASS}.{method}", wrapper, "worker-capture")
        for method, wrapper in methods.items()
    ]


ADAPTER = Adapter(
    name="worker-capture",
    symbol=EXECUTE,
    call_site=f"{WORKER}:{CLASS}",
    speculators=">=0.3,<0.5",
    broke=(
        Break("0.11.1", "27583", "get_input_embeddings -> embed_input_ids"),
        Break("0.12.0", "", "DeepseekV2DecoderLayer.forward takes llama_4_scaling"),
        Break("0.15.0", "33131", "Kimi-K2.5: language_model is a bare DeepseekV2Model"),
        Break("0.16.0", "33346", "Kimi-K2.5: language_model is a DeepseekV2ForCausalLM"),
        Break("0.22.0", "39337, 43458, 42667, 44443", "model runner V2 sorts its batch"),
        Break("0.25.0", "46635", "states sharded over TP ranks between layers"),
        Break("speculators 0.3.0", "", "reads residuals as Llama's; sorts layers; mixes rows"),
    ),
    removal="speculators drives vLLM through its public API (0.5.0 does)",
    needed=needed,
    patches=patches,
)
