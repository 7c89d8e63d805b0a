"""Seed-OSS (ByteDance Seed 2025): Llama with biases on Q, K and V, and a context of half a million tokens."""

from __future__ import annotations

from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant
from engine.model_config.config_class import ConfigClass
from engine.models.decoder import Decoder
from engine.models.llama import llama_layer

SEED_OSS = ConfigClass(
    "seed_oss",
    {
        "vocab_size": 155136,
        "hidden_size": 4096,
        "intermediate_size": 27648,
        "num_hidden_layers": 64,
        "num_attention_heads": 80,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 524288,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "attention_out_bias": False,
        "mlp_bias": False,
    },
)


def seed_oss(load: Loader) -> Decoder:
    """Seed-OSS."""
    config = load.config
    variant = AttentionVariant(qkv_bias=config.attention_bias, output_bias=config.fields.flag("attention_out_bias"))
    return Decoder(load, (llama_layer(load, index, variant) for index in range(config.layers)))
