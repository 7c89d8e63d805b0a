"""Phi-3 and Phi-4 mini (Abdin et al. 2024): Llama with fused projections, partial rotary embedding, LongRoPE, and a
sliding window in the smallest one.
"""

from __future__ import annotations

from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant
from engine.model_config.config_class import ConfigClass
from engine.models.decoder import Decoder
from engine.models.llama import llama_layer

PHI3 = ConfigClass(
    "phi3",
    {
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "partial_rotary_factor": None,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "sliding_window": None,
    },
    # The first configurations used other names for LongRoPE.
    rope_kinds={"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"},
)


def phi3(load: Loader) -> Decoder:
    """Phi-3 and its relatives of the same type."""
    config = load.config
    windows = config.same_windows(config.fields.count("sliding_window"))
    return Decoder(
        load, (llama_layer(load, index, AttentionVariant(window=window)) for index, window in enumerate(windows))
    )
