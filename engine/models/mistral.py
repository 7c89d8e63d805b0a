"""Mistral (Jiang et al. 2023): Llama with a sliding window, in the versions that have one."""

from __future__ import annotations

from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant
from engine.model_config.config_class import ConfigClass
from engine.models.decoder import Decoder
from engine.models.llama import llama_layer

MISTRAL = ConfigClass(
    "mistral",
    {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "sliding_window": 4096,
        "layer_types": None,
    },
)


def mistral(load: Loader) -> Decoder:
    """Mistral and Ministral. `sliding_window` null means no window; a missing one means that of version 0.1."""
    config = load.config
    windows = config.windows(config.fields.count("sliding_window"), lambda _: True)
    return Decoder(
        load, (llama_layer(load, index, AttentionVariant(window=size)) for index, size in enumerate(windows))
    )
