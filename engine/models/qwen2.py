"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on Q, K and V; upper layers may have a sliding window. Also
the language part of Qwen2.5-VL (Bai et al. 2025)."""

from __future__ import annotations

from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant
from engine.model_config.config import ModelConfig
from engine.model_config.config_class import TEXT_POSITIONS, ConfigClass
from engine.models.decoder import Decoder
from engine.models.llama import llama_layer

QWEN2 = ConfigClass(
    "qwen2",
    {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "layer_types": None,
    },
)
QWEN2_5_VL_TEXT = ConfigClass(
    "qwen2_5_vl_text",
    {
        "vocab_size": 152064,
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": None,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 80,
        "layer_types": None,
    },
    rope_theta=1_000_000.0,
    # Time, height and width of a text's token are one number: what they turn is turned as by a plain position.
    rope_kinds=TEXT_POSITIONS,
)


def qwen_windows(config: ModelConfig) -> tuple[int, ...]:
    """The window of each layer: if windows are used, layers from `max_window_layers` on have one."""
    fields = config.fields
    window = fields.count("sliding_window") if fields.flag("use_sliding_window") else 0
    below = fields.count("max_window_layers")
    return config.windows(window, lambda index: index >= below)


def qwen2(load: Loader) -> Decoder:
    """Qwen2 and Qwen2.5, dense, and the language part of Qwen2.5-VL."""
    windows = qwen_windows(load.config)
    variants = [AttentionVariant(window=window, qkv_bias=True) for window in windows]
    return Decoder(load, (llama_layer(load, index, variant) for index, variant in enumerate(variants)))
