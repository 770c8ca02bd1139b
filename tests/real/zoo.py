"""Tiny random models in the layout of real checkpoints, made when a test needs one.

The weights are chosen to find faults: wide enough that every layer changes its input by a
good part (a neighbouring layer's output is then far from the right one), with random norm
weights and biases (a norm that is left out or applied twice shows), and in float32 (the
right answer is about 1e-6 away from transformers, a wrong one about 1).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 1000
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>", "<|media_pad|>")
PAD, BOS, EOS, UNK, MEDIA = range(len(SPECIAL_TOKENS))
GAIN = 1.4
"""How much a random matrix widens its input: see ``_randomise``."""
TEXT_MODEL = "text_model"
"""Folder inside a multimodal model's folder that holds its text model alone."""

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
_DENSE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
# For the families that vLLM knows with tied embeddings only.
_TIED: dict[str, Any] = {"tie_word_embeddings": True}
# 512 + 64 is the one latent cache width that vLLM's attention for a CPU is compiled for; 64 + 64
# is a head size that the same model also accepts when its latent attention is turned off.
_DEEPSEEK: dict[str, Any] = _DENSE | {
    "num_hidden_layers": 6,
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    # vLLM gives the router its bias and its sigmoid only when the config names them.
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    # As in the real checkpoints; also, vLLM's plain rotary kernel for a CPU is wrong for the
    # shape that this family hands it, and the one for yarn is right.
    "rope_theta": 10000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}


@dataclass(frozen=True)
class Family:
    """One architecture.

    ``residual`` says how vLLM's own decoder layer hands the residual stream on:
    "pair": (x, residual), the state is their sum; "tensor": the state itself;
    "full pair": (state, something older), adding the second would be wrong.
    """

    model_type: str
    residual: str
    config: Mapping[str, Any] = field(default_factory=lambda: _DENSE)
    finish: Callable[[Path], None] | None = None
    layer_types: tuple[str, ...] = ()


def _finish_kimi_k25(folder: Path) -> None:
    """Turn a deepseek_v3 folder into the text half of a Kimi K2.5 folder."""
    text_config = json.loads((folder / "config.json").read_text())
    text = load_file(folder / "model.safetensors")
    (folder / TEXT_MODEL).mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).rename(folder / TEXT_MODEL / name)

    vision_size, patch, table, mlp = 64, 14, 8, 64
    vision_config = {
        "model_type": "kimi_k25_vision",
        "patch_size": patch,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "hidden_size": vision_size,
        "intermediate_size": mlp,
        "merge_kernel_size": [2, 2],
        # vLLM's class and transformers' class name the same things differently.
        **{f"init_pos_emb_{axis}": table for axis in ("height", "width")},
        **{f"pos_emb_{axis}": table for axis in ("height", "width")},
        "init_pos_emb_time": 4,
        "pos_emb_time": 4,
        "mm_hidden_size": text_config["hidden_size"],
    }
    merged = 4 * vision_size
    block = "vision_tower.encoder.blocks.0"
    shapes: dict[str, tuple[int, ...]] = {
        "vision_tower.patch_embed.proj.weight": (vision_size, 3, patch, patch),
        "vision_tower.patch_embed.pos_emb.weight": (table, table, vision_size),
        f"{block}.wqkv.weight": (3 * vision_size, vision_size),
        f"{block}.wo.weight": (vision_size, vision_size),
        f"{block}.mlp.fc0.weight": (mlp, vision_size),
        f"{block}.mlp.fc1.weight": (vision_size, mlp),
        f"{block}.norm0.weight": (vision_size,),
        f"{block}.norm1.weight": (vision_size,),
        "vision_tower.encoder.final_layernorm.weight": (vision_size,),
        "mm_projector.pre_norm.weight": (vision_size,),
        "mm_projector.proj.0.weight": (merged, merged),
        "mm_projector.proj.2.weight": (text_config["hidden_size"], merged),
    }
    weights = {f"language_model.{name}": tensor for name, tensor in text.items()}
    for name, shape in shapes.items():
        weights[name] = torch.full(shape, 0.01)
        if name != "vision_tower.patch_embed.pos_emb.weight":
            weights[name.removesuffix("weight") + "bias"] = torch.zeros(shape[0])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    _write_json(
        folder / "config.json",
        {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "model_type": "kimi_k25",
            "auto_map": {"AutoConfig": "configuration_kimi_k25.KimiK25Config"},
            "dtype": "float32",
            "text_config": text_config,
            "vision_config": vision_config,
            "media_placeholder_token_id": MEDIA,
            "image_token_id": MEDIA,
            "tie_word_embeddings": False,
            **{key: _COMMON[key] for key in ("pad_token_id", "bos_token_id", "eos_token_id")},
        },
    )
    _write_json(
        folder / "preprocessor_config.json",
        {
            "auto_map": {"AutoImageProcessor": "processing_kimi_k25.KimiK25ImageProcessor"},
            "media_proc_cfg": {
                "patch_size": patch,
                "merge_kernel_size": 2,
                "temporal_merge_kernel_size": 4,
                "in_patch_limit": 64,
                "in_patch_limit_each_frame": 64,
                "in_patch_limit_video": None,
                "patch_limit_on_one_side": 512,
                "fixed_output_tokens": None,
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.5, 0.5, 0.5],
            },
        },
    )
    (folder / "configuration_kimi_k25.py").write_text(_KIMI_CONFIGURATION)
    (folder / "processing_kimi_k25.py").write_text(_KIMI_PROCESSING)


_KIMI_CONFIGURATION = """\
from transformers import DeepseekV3Config, PretrainedConfig


class KimiK25Config(PretrainedConfig):
    model_type = "kimi_k25"

    def __init__(self, text_config=None, vision_config=None, **kwargs):
        self.text_config = DeepseekV3Config(**(text_config or {}))
        self.vision_config = PretrainedConfig(**(vision_config or {}))
        super().__init__(**kwargs)
"""

# The tests send no images; vLLM sizes its buffers with this class all the same, while it starts.
_KIMI_PROCESSING = """\
import torch
from transformers import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor


class KimiK25ImageProcessor(BaseImageProcessor):
    num_frames_per_chunk = 4

    def __init__(self, media_proc_cfg=None, **kwargs):
        super().__init__(**kwargs)
        self.media_proc_cfg = media_proc_cfg

    def media_tokens_calculator(self, media):
        return 16

    def preprocess(self, medias, **kwargs):
        frames = [1 if media["type"] == "image" else len(media["video_chunk"]) for media in medias]
        return BatchFeature(
            {
                "pixel_values": torch.zeros(64 * sum(frames), 3, 14, 14),
                "grid_thws": torch.tensor([[count, 8, 8] for count in frames]),
            }
        )
"""


FAMILIES: dict[str, Family] = {
    "llama": Family("llama", "pair"),
    "mistral": Family("mistral", "pair", _DENSE | {"sliding_window": None}),
    "qwen2": Family("qwen2", "pair; biases on q, k, v"),
    "qwen3": Family("qwen3", "pair; norms on q, k", _DENSE | {"head_dim": 32}),
    "phi3": Family("phi3", "pair; fused projections"),
    "gemma2": Family(
        "gemma2",
        "pair; norms after each block too",
        _DENSE
        | _TIED
        | {
            "head_dim": 32,
            "sliding_window": 16,
            "query_pre_attn_scalar": 32,
            # vLLM reads this one, transformers hidden_activation; checkpoints have both.
            "hidden_act": "gelu_pytorch_tanh",
        },
        layer_types=("sliding_attention", "full_attention"),
    ),
    "gemma3": Family(
        "gemma3_text",
        "pair; norms after each block too; mixed attention windows",
        _DENSE | _TIED | {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32},
        layer_types=("sliding_attention", "sliding_attention", "full_attention"),
    ),
    "glm4": Family("glm4", "pair; norms after each block too", _DENSE | {"head_dim": 32}),
    "nemotron": Family("nemotron", "pair; layer norm with 1 + weight"),
    "cohere": Family(
        "cohere",
        "full pair (state, the layer's input); parallel blocks",
        _DENSE | _TIED,
    ),
    # With a window that no prompt fills: later releases of vLLM count one token more in it
    # than transformers does.
    "cohere2": Family(
        "cohere2",
        "full pair (state, the layer's input); parallel blocks; no rotary positions in some layers",
        _DENSE | _TIED | {"sliding_window": 2048},
        layer_types=("sliding_attention", "sliding_attention", "full_attention"),
    ),
    "exaone4": Family(
        "exaone4",
        "full pair (state, the state between the blocks); norms only after each block",
        _DENSE | {"sliding_window": 16},
        layer_types=("sliding_attention", "sliding_attention", "full_attention"),
    ),
    "stablelm": Family("stablelm", "full pair (state, the state between the blocks)"),
    "granite": Family(
        "granite",
        "tensor; blocks scaled by residual_multiplier",
        _DENSE
        | {
            "residual_multiplier": 0.5,
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.2,
            "logits_scaling": 4.0,
        },
    ),
    "olmo": Family("olmo", "tensor; norms without weights", _DENSE | {"num_key_value_heads": 4}),
    "olmo2": Family("olmo2", "tensor; norms only after each block"),
    "gpt_neox": Family(
        "gpt_neox",
        "tensor; parallel blocks",
        {key: value for key, value in _DENSE.items() if key != "num_key_value_heads"},
    ),
    "phi": Family(
        "phi",
        "tensor; parallel blocks, one norm",
        _DENSE | {"num_key_value_heads": 4, "intermediate_size": 512},
    ),
    "starcoder2": Family("starcoder2", "tensor", _DENSE | {"sliding_window": None}),
    "gpt2": Family(
        "gpt2",
        "tensor; learned positions",
        {"n_embd": 128, "n_layer": 8, "n_head": 4, "n_inner": 256, "n_positions": 2048},
    ),
    "gptj": Family(
        "gptj",
        "tensor; parallel blocks",
        {
            "n_embd": 128,
            "n_layer": 8,
            "n_head": 4,
            "n_inner": 256,
            "n_positions": 2048,
            "rotary_dim": 16,
        },
    ),
    "opt": Family(
        "opt",
        "tensor; learned positions",
        {
            "hidden_size": 128,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "ffn_dim": 256,
            "word_embed_proj_dim": 128,
        },
    ),
    "falcon": Family(
        "falcon",
        "tensor; parallel blocks",
        {
            "hidden_size": 128,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
            "new_decoder_architecture": True,
            "parallel_attn": True,
            "bias": False,
            "alibi": False,
        },
    ),
    "qwen3_moe": Family(
        "qwen3_moe",
        "pair; routed experts",
        _DENSE
        | {
            "num_hidden_layers": 6,
            "head_dim": 32,
            "moe_intermediate_size": 64,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
        },
    ),
    "mixtral": Family(
        "mixtral",
        "pair; routed experts",
        _DENSE
        | {
            "num_hidden_layers": 6,
            "intermediate_size": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": None,
        },
    ),
    "granitemoe": Family(
        "granitemoe",
        "tensor; routed experts; blocks scaled by residual_multiplier",
        _DENSE
        | {
            "num_hidden_layers": 6,
            "intermediate_size": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
            "embedding_multiplier": 6.0,
        },
    ),
    "deepseek_v3": Family(
        "deepseek_v3", "pair; latent attention; grouped, biased routing", _DEEPSEEK
    ),
    "kimi_k25": Family(
        "deepseek_v3",
        "pair, inside a multimodal wrapper: the text model is deepseek_v3",
        _DEEPSEEK,
        finish=_finish_kimi_k25,
    ),
}


def build(family: str, folder: Path, *, seed: int = 0, **config_overrides: Any) -> Path:
    """Write a model of the family into the folder and return the folder.

    The overrides are fields of the (text) model's config. The same arguments give the same
    weights under the same release of transformers.
    """
    member = FAMILIES[family]
    fields = {**_COMMON, **member.config, **config_overrides}
    if member.layer_types:
        layers = fields["num_hidden_layers"]
        fields["layer_types"] = [
            member.layer_types[index % len(member.layer_types)] for index in range(layers)
        ]
    config = AutoConfig.for_model(member.model_type, **fields)
    model = AutoModelForCausalLM.from_config(config)
    _randomise(model, seed)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    if member.finish is not None:
        member.finish(folder)
    _write_tokenizer(folder)
    return folder


def _randomise(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    seen: set[int] = set()
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.data_ptr() in seen:  # two names for one tied weight
            continue
        seen.add(tensor.data_ptr())
        noise = torch.empty_like(tensor)
        if tensor.ndim > 1:
            # With less, neighbouring layers look alike; with more, attention is a choice that
            # rounding can flip.
            spread = GAIN / tensor.shape[-1] ** 0.5
            tensor.copy_(noise.normal_(0.0, spread, generator=generator))
        elif name.endswith("weight"):
            # A norm; some families store the weight, others the weight minus one: both move.
            tensor.add_(noise.uniform_(-0.5, 0.5, generator=generator))
        elif name.endswith("e_score_correction_bias"):
            # Positive, as after training: transformers gives experts out of reach a score of
            # zero, vLLM one of minus infinity.
            tensor.copy_(noise.uniform_(0.0, 0.5, generator=generator))
        else:
            tensor.copy_(noise.normal_(0.0, 0.2, generator=generator))


def _write_tokenizer(folder: Path) -> None:
    words = [*SPECIAL_TOKENS, *(f"w{index}" for index in range(len(SPECIAL_TOKENS), VOCABULARY))]
    backend = Tokenizer(
        WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>")
    )
    backend.pre_tokenizer = WhitespaceSplit()
    backend.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL_TOKENS])
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["<|media_pad|>"],
    ).save_pretrained(folder)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
