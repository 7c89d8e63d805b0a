"""OLMo 2 (Ai2 2024): norms behind each part and none before, queries and keys normalized as whole vectors.

h = h + norm(attention(h))
h = h + norm(Wdown · (silu(Wgate · h) ⊙ Wup · h))
"""

from __future__ import annotations

from engine.layers.decoder_layer import DecoderLayer
from engine.layers.feed_forward import FeedForward
from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant, layer_attention
from engine.model_config.config_class import ConfigClass
from engine.models.decoder import Decoder

OLMO2 = ConfigClass(
    "olmo2",
    {
        "vocab_size": 50304,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "attention_bias": False,
    },
)


def olmo2_layer(load: Loader, index: int) -> DecoderLayer:
    """One decoder layer."""
    name, bias = f"model.layers.{index}", load.config.attention_bias
    attention = layer_attention(load, index, AttentionVariant(qkv_bias=bias, output_bias=bias, wide_norms=True))
    mlp = FeedForward(load, f"{name}.mlp", load.config.intermediate)
    out = load.norm(f"{name}.post_attention_layernorm"), load.norm(f"{name}.post_feedforward_layernorm")
    return DecoderLayer((None, None), attention, mlp, out_norms=out)


def olmo2(load: Loader) -> Decoder:
    """OLMo 2."""
    return Decoder(load, (olmo2_layer(load, index) for index in range(load.config.layers)))
