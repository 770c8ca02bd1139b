"""The worker extension's capture: hooks on the decoder layers in place of a forward of its own.

speculators replaces the model's forward with one it wrote for Llama. That loses every change vLLM
made to the models' own (the embedding's name, extra arguments of layers, states sharded between
layers), misreads layers that carry their residual in another way (Cohere, silently), finds the
layers under two names only, sorts them, and attributes rows by an order the batch need not have.
``vllm_compat.capture`` replaces what the extension's methods do; their names, arguments and replies
stay, but for two tensors that follow the layers, so that the parent can check what it was given:
which states are finite, and the token ids.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_compat.adapters.adapter import Adapter, Break, Decision
from vllm_compat.adapters.premise import Premise
from vllm_compat.context import WORKER, Context
from vllm_compat.patching import Patch, Wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CLASS = "HiddenStatesWorkerExtension"
# What every worker, and under it every model runner, is called with at each step.
EXECUTE = "vllm.v1.worker.worker_base:WorkerBase.execute_model"
OUTPUT = "vllm.v1.core.sched.output"
V2_RUNNER = "vllm.v1.worker.gpu"
PREMISES = (
    Premise(EXECUTE, positional=1),
    # What the capture reads of a step, in vllm_compat.capture.batch and .recorder.
    Premise(
        f"{OUTPUT}:SchedulerOutput",
        takes=(
            "scheduled_new_reqs",
            "scheduled_cached_reqs",
            "num_scheduled_tokens",
            "total_num_scheduled_tokens",
            "finished_req_ids",
        ),
    ),
    Premise(
        f"{OUTPUT}:NewRequestData", takes=("req_id", "prompt_token_ids", "num_computed_tokens")
    ),
    Premise(f"{OUTPUT}:CachedRequestData", takes=("req_ids", "num_computed_tokens")),
    # And of a step that model runner V2 has prepared.
    Premise(f"{V2_RUNNER}.model_runner:GPUModelRunner.prepare_inputs", since="0.12.0"),
    Premise(
        f"{V2_RUNNER}.input_batch:InputBatch",
        since="0.12.0",
        takes=("req_ids", "num_scheduled_tokens", "input_ids", "positions"),
    ),
    # What puts together states that are sharded between layers, in vllm_compat.capture.steps.
    Premise("vllm.distributed:get_tp_group", positional=0),
    Premise("vllm.distributed:tensor_model_parallel_all_gather", positional=2),
)
LLAMA, DEEPSEEK = "vllm.model_executor.models.llama", "vllm.model_executor.models.deepseek_v2"
V2_PRS = "39337, 43458, 42667, 44443"
V2_MODELS = "Qwen3 from 0.22; Llama 0.23; DeepSeek 0.24; dense models 0.25; all 0.29"


def needed(context: Context) -> Decision:
    return Decision("adapted", "captures through hooks on the model's own layers")


def setup(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> None:
    from vllm_compat.capture.recorder import Recorder

    (layer_ids,) = args or (kwargs["layer_ids"],)
    worker._recorder = Recorder(worker, layer_ids)


def reset(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> None:
    worker._recorder.reset()


def states_by_request(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    """As 0.4 wants it: request id -> one tensor a layer (and what comes with them)."""
    collected = worker._recorder.collect()
    return {
        name: [*states.layers, states.finite, states.input_ids]
        for name, states in collected.items()
    } or None


def states_by_layer(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    """As 0.3 wants it: one tensor a layer (and what comes with them), the requests one after the
    other."""
    import torch

    recorder = worker._recorder
    collected = recorder.collect()
    if not collected:
        return None
    in_order = [collected[name] for name in sorted(collected, key=_place_in_call)]
    layers = []
    for parts in zip(*(states.layers for states in in_order), strict=True):
        shape = (sum(len(part) for part in parts), parts[0].shape[1])
        layers.append(torch.cat(parts, out=recorder.arena.empty(shape, parts[0].dtype)))
    return [
        *layers,
        torch.cat([states.finite for states in in_order]),
        torch.cat([states.input_ids for states in in_order]),
    ]


def _place_in_call(request_id: str) -> int:
    return int(request_id.rpartition("_")[2])


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
        Break(
            "0.12.0",
            "",
            "DeepseekV2DecoderLayer.forward takes llama_4_scaling, which is not passed",
            kind="parameter added",
            symbol=f"{DEEPSEEK}:DeepseekV2DecoderLayer.forward",
            at="layer",
            shows=f"{DEEPSEEK}:DeepseekV2DecoderLayer.forward(llama_4_scaling)",
            line="0.3",
        ),
        Break(
            "0.15.0",
            "",
            "LlamaModel.forward takes keywords for its layers, which are not passed on",
            kind="parameter added",
            symbol=f"{LLAMA}:LlamaModel.forward",
            at="layer",
            shows=f"{LLAMA}:LlamaModel.forward(extra_layer_kwargs)",
        ),
        Break(
            "0.15.0",
            "33131",
            "Kimi-K2.5: language_model is a bare DeepseekV2Model, which has no .model",
            kind="behaviour changed",
            symbol="vllm.model_executor.models.kimi_k25:KimiK25ForConditionalGeneration",
            at="model.get_language_model",
            until="0.16.0",
        ),
        Break("0.16.0", "33346", "Kimi-K2.5: language_model is a DeepseekV2ForCausalLM"),
        Break(
            "0.22.0",
            V2_PRS,
            f"model runner V2 ({V2_MODELS}) sorts its batch: rows go to other prompts",
            kind="behaviour changed",
            symbol="vllm.v1.worker.gpu.model_runner:GPUModelRunner",
            at="extension._store_captured_states",
            line="0.3",
        ),
        Break(
            "0.22.0",
            V2_PRS,
            f"model runner V2 ({V2_MODELS}) has no input_batch",
            kind="behaviour changed",
            symbol="vllm.v1.worker.gpu.model_runner:GPUModelRunner",
            at="self.model_runner.input_batch",
        ),
        Break(
            "0.25.0",
            "46635",
            "DeepSeek, Kimi: states sharded over TP ranks between layers; rank 0 has a part",
            kind="behaviour changed",
            symbol=f"{DEEPSEEK}:DeepseekV2Model.forward",
            at="get_tp_group",
        ),
        Break(
            "speculators 0.3.0",
            "",
            "reads each residual as Llama's: Cohere silently wrong, Granite and OLMo-2 crash",
            kind="fault",
            symbol=f"{LLAMA}:LlamaDecoderLayer.forward",
            at="layer",
        ),
        Break(
            "speculators 0.3.0",
            "",
            "states come back in the order of the layers, not of layer_ids; repeats collapse",
            kind="fault",
            symbol=f"{LLAMA}:LlamaDecoderLayer.forward",
            at="aux_hidden_states.append",
        ),
        Break(
            "speculators 0.3.0",
            "",
            "takes only models that vLLM lists for EAGLE-3",
            kind="fault",
            symbol="vllm.model_executor.models.interfaces:supports_eagle3",
            at="supports_eagle3",
        ),
        Break(
            "speculators 0.4.0",
            "",
            "llama_4_scaling is not passed to DeepseekV2DecoderLayer.forward",
            kind="fault",
            symbol=f"{DEEPSEEK}:DeepseekV2DecoderLayer.forward",
            at="layer",
            shows=f"{DEEPSEEK}:DeepseekV2DecoderLayer.forward(llama_4_scaling)",
            line="0.4",
        ),
        Break(
            "speculators 0.4.0",
            "",
            "finds layers under model.layers only: no GPT-NeoX, no OPT",
            kind="fault",
            symbol=f"{LLAMA}:LlamaModel",
            at="AttributeError",
        ),
    ),
    removal="speculators drives vLLM through its public API (0.5.0 does)",
    needed=needed,
    patches=patches,
    premises=PREMISES,
)
