"""Models of published shapes with random weights, made on the device: never zeros, whose products are quicker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from engine.layers.linear import Tiling
from engine.layers.loader import Loader
from engine.model_config.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.registry import FAMILIES

_DEVIATION = 0.02

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    },
    "llama-3.2-1b": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    },
    "qwen3-8b": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    },
    "qwen3-tiny": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    },
}  # fmt: skip


def write_shape(folder: Path, shape: str) -> Path:
    """A model folder that has the configuration alone."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPES[shape]))
    return folder


class _RandomTensors:
    """Stands for a checkpoint that has every tensor that it is asked for, but no fused ones."""

    folder = Path("random")

    def load(self, name: str, into: torch.Tensor) -> None:
        if name.endswith("norm.weight"):
            into.fill_(1.0)
        else:
            into.normal_(0.0, _DEVIATION)

    def has_part(self, name: str) -> bool:
        return not name.endswith(("qkv_proj", "gate_up_proj"))

    def is_quantized(self) -> bool:
        return False

    def same(self, first: str, second: str) -> bool:
        return first == second

    def packed(self, name: str, shape: tuple[int, int]) -> None:
        return None


def load_random(
    folder: Path, config: ModelConfig, like: torch.Tensor, tiling: Tiling, context_tokens: int, **kept: Any
) -> Decoder:
    """As `engine.models.registry.load_model`, with random weights."""
    torch.manual_seed(0)
    with torch.inference_mode():
        kept.pop("weights", None)
        tensors: Any = _RandomTensors()
        load = Loader(tensors, config, like, tiling, context_tokens, **kept, packed=kept.get("quantize") == "fp8")
        return FAMILIES[config.model_type].build(load)
