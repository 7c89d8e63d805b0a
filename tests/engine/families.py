"""Tiny random models of every family, made by transformers, and what transformers computes with them."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

VOCABULARY = 131
WINDOW = 50
BASE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LAYERS = ["sliding_attention", "full_attention"]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.6],
    "long_factor": [1.0, 1.5, 3.0, 7.0],
    "original_max_position_embeddings": 64,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}
# Name → model type and what is changed of BASE. Every family with windows has a full layer as well, but Mistral and
# Phi-3, whose layers are all alike.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama 3": ("llama", {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True}),
    "llama tied": ("llama", {"tie_word_embeddings": True, "hidden_act": "gelu"}),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "llama linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "mistral": ("mistral", {"sliding_window": WINDOW}),
    "mistral full": ("mistral", {"sliding_window": None, "head_dim": 16}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "phi3": ("phi3", {"sliding_window": WINDOW}),
    "phi3 longrope": (
        "phi3",
        {
            "rope_parameters": LONGROPE,
            "original_max_position_embeddings": 64,  # this one is the one that transformers takes
            "partial_rotary_factor": 0.5,
            "hidden_size": 64,
        },
    ),
    "mixtral": ("mixtral", {"num_local_experts": 4}),
    "qwen3 moe": (
        "qwen3_moe",
        {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 1,
        },
    ),
    "qwen3 moe partly": (
        "qwen3_moe",
        {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "mlp_only_layers": [0]},
    ),
    "gpt-oss": (
        "gpt_oss",
        {
            "head_dim": 16,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "sliding_window": WINDOW,
            "layer_types": LAYERS,
        },
    ),
    "deepseek v2": (
        "deepseek_v2",
        {
            **LATENT,
            "q_lora_rank": None,
            "topk_method": "group_limited_greedy",
            "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7},
        },
    ),
    "deepseek v3": (
        "deepseek_v3",
        {**LATENT, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}, "rms_norm_eps": 0.01},
    ),
    "gemma2": (
        "gemma2",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 5.0,
            "attention_bias": True,
        },
    ),
    "gemma3": ("gemma3_text", {"head_dim": 16, "sliding_window": WINDOW, "layer_types": LAYERS}),
    "gemma3 capped": (
        "gemma3_text",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "layer_types": LAYERS,
            "attention_bias": True,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma": ("gemma", {"head_dim": 16, "attention_bias": True}),
    "qwen2 moe": (
        "qwen2_moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [0],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 1,
        },
    ),
    "smollm3": (
        "smollm3",
        {
            "num_hidden_layers": 3,
            "no_rope_layers": [1, 0, 1],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "tie_word_embeddings": False,
        },
    ),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.4,
            "logits_scaling": 2.0,
            "attention_bias": True,
        },
    ),
    "olmo2": ("olmo2", {"attention_bias": True}),
    "seed oss": ("seed_oss", {"head_dim": 16, "attention_out_bias": True, "mlp_bias": True}),
    "glm4": ("glm4", {"head_dim": 16}),
    "glm4 moe": (
        "glm4_moe",
        {
            **{name: value for name, value in LATENT.items() if "_head_dim" not in name and "_rank" not in name},
            "num_key_value_heads": 2,
            "head_dim": 16,
            "attention_bias": True,
            "use_qk_norm": True,
            "num_experts_per_tok": 2,
        },
    ),
    "starcoder2": ("starcoder2", {"sliding_window": WINDOW, "tie_word_embeddings": False}),
    "phi": ("phi", {"hidden_size": 64}),
}

SEEING = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
"""The part of a model of images and text that we leave alone."""


MULTIMODAL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma3": (FAMILIES["gemma3"][1], {"vision_config": {**SEEING, "image_size": 28, "patch_size": 14}}),
    "mistral3": (
        {"model_type": "mistral", "head_dim": 16, "sliding_window": None},
        {"vision_config": {**SEEING, "model_type": "pixtral", "image_size": 28, "patch_size": 14, "head_dim": 8}},
    ),
    "qwen2_5_vl": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}},
        {
            "vision_config": {
                "depth": 1,
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_heads": 2,
                "out_hidden_size": 48,
            }
        },
    ),
    "qwen3_vl": (
        {
            "head_dim": 16,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]},
        },
        {
            "vision_config": {
                **{"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 48},
                "deepstack_visual_indexes": [0],
            }
        },
    ),
}
"""Models of images and text: what is changed of BASE in the language part, and the rest of the configuration."""


def write_multimodal(folder: Path, name: str = "gemma3") -> Path:
    """A folder with a tiny model of images and text."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    text, rest = MULTIMODAL[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(3)
        config = AutoConfig.for_model(name, text_config={**BASE, **text}, **rest)
        AutoModelForImageTextToText.from_config(config).save_pretrained(folder, max_shard_size="40KB")
    return folder


def write_family(name: str, folder: Path, **changes: object) -> Path:
    """A folder with the family's tiny model, as transformers saves it; biases and norms are random as well."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, own = FAMILIES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(len(name))
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**BASE, **own, **changes}))
        with torch.no_grad():
            for parameter in [*model.parameters(), *model.buffers()]:
                # What is initialized to zeros or ones would hide that it is not loaded.
                if parameter.is_floating_point() and parameter.std().isnan() | (parameter.std() == 0):
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(folder, max_shard_size="40KB")
    return folder


class KeptFamilies:
    """Gives each family's folder by its name; it is written when it is first asked for, unless one is left of an
    earlier run.

    They lie in a folder of `base` whose name says what they are made with, and so whether they are still what would be
    written.
    """

    def __init__(self, base: Path) -> None:
        made_with = [Path(__file__).read_bytes(), *(version(name).encode() for name in ("torch", "transformers"))]
        self._folder = base / sha256(b"\0".join(made_with)).hexdigest()[:16]
        self._folder.mkdir(exist_ok=True)

    def __call__(self, name: str) -> Path:
        folder = self._folder / name
        if not folder.exists():
            written = Path(tempfile.mkdtemp(dir=self._folder)) / name
            with torch.random.fork_rng(devices=[]):  # what a test draws does not depend on what was left
                write_family(name, written)
            try:
                written.rename(folder)
            except OSError:
                if not folder.exists():
                    raise
                shutil.rmtree(written)  # another worker was faster
            written.parent.rmdir()
        return folder


def by_transformers(folder: Path, tokens: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The logits [tokens, vocabulary] after each token, with eager attention in this type."""
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


def in_hub_style(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration as hubs have it from before version 5: what is in one place now was in several, or left out."""
    old = {name: value for name, value in config.items() if name not in {"dtype", "rope_parameters", "layer_types"}}
    old["torch_dtype"] = config["dtype"]
    rope = config["rope_parameters"]
    if "sliding_attention" in rope:
        old["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        old["sliding_window_pattern"] = 2  # which layers slide was said by a number
        rope = rope["full_attention"]
    scaling = {name: value for name, value in rope.items() if name not in {"rope_theta", "partial_rotary_factor"}}
    old["rope_theta"] = rope["rope_theta"]
    old |= {name: rope[name] for name in ("partial_rotary_factor",) if name in rope}
    kind = scaling.pop("rope_type")
    old["rope_scaling"] = None if kind == "default" else {"type": kind, **scaling}
    return old
