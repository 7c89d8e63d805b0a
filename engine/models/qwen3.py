"""Qwen3 (Yang et al. 2025): Llama with queries and keys normalized per head before rotary embedding. Also the language
part of Qwen3-VL."""

from __future__ import annotations

from collections.abc import Sequence

from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant
from engine.model_config.config import ModelConfig
from engine.model_config.config_class import TEXT_POSITIONS, ConfigClass
from engine.models.decoder import Decoder
from engine.models.llama import llama_layer
from engine.models.qwen2 import qwen_windows

QWEN3 = ConfigClass(
    "qwen3",
    {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "layer_types": None,
    },
)
QWEN3_VL_TEXT = ConfigClass(
    "qwen3_vl_text",
    {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 128000,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": None,
        "attention_bias": False,
    },
    rope_theta=500_000.0,
    rope_kinds=TEXT_POSITIONS,
)


def qwen3_variants(config: ModelConfig, windows: Sequence[int]) -> list[AttentionVariant]:
    """The attention variant of each layer, by its window."""
    bias = config.attention_bias
    return [AttentionVariant(window=window, qk_norm=True, qkv_bias=bias, output_bias=bias) for window in windows]


def qwen3(load: Loader) -> Decoder:
    """Qwen3, dense."""
    variants = qwen3_variants(load.config, qwen_windows(load.config))
    return Decoder(load, (llama_layer(load, index, variant) for index, variant in enumerate(variants)))


def qwen3_vl(load: Loader) -> Decoder:
    """The language part of Qwen3-VL, dense."""
    variants = qwen3_variants(load.config, [0] * load.config.layers)
    return Decoder(load, (llama_layer(load, index, variant) for index, variant in enumerate(variants)))
