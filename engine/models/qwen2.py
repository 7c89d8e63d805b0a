"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on Q, K and V; upper layers may have a sliding window."""

from __future__ import annotations

from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant
from engine.model_config.config import ModelConfig
from engine.model_config.config_class import ConfigClass
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


def qwen_windows(config: ModelConfig) -> tuple[int, ...]:
    """The window of each layer: if windows are used, layers from `max_window_layers` on have one."""
    fields = config.fields
    window = fields.count("sliding_window") if fields.flag("use_sliding_window") else 0
    below = fields.count("max_window_layers")
    return config.windows(window, lambda index: index >= below)


def qwen2(load: Loader) -> Decoder:
    """Qwen2 and Qwen2.5, dense."""
    windows = qwen_windows(load.config)
    variants = [AttentionVariant(window=window, qkv_bias=True) for window in windows]
    return Decoder(load, (llama_layer(load, index, variant) for index, variant in enumerate(variants)))
