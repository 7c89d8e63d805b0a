"""Llama (Touvron et al. 2023, Grattafiori et al. 2024): pre-norm decoder, rotary positions, grouped queries, SwiGLU.

h = h + attention(norm(h))
h = h + Wdown · (silu(Wgate · norm(h)) ⊙ Wup · norm(h))
"""

from __future__ import annotations

from engine.layers.decoder_layer import DecoderLayer, llama_norms
from engine.layers.feed_forward import FeedForward
from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant, layer_attention
from engine.model_config.config_class import ConfigClass
from engine.models.decoder import Decoder

LLAMA = ConfigClass(
    "llama",
    {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    },
)


def llama_layer(load: Loader, index: int, variant: AttentionVariant) -> DecoderLayer:
    """One decoder layer. `variant`: how the attention differs from Llama's, for families derived from it."""
    attention = layer_attention(load, index, variant)
    mlp = FeedForward(load, f"model.layers.{index}.mlp", load.config.intermediate)
    return DecoderLayer(llama_norms(load, index), attention, mlp, fused_sums=True)


def llama(load: Loader) -> Decoder:
    """Llama 2 and 3.x."""
    bias = load.config.attention_bias
    variant = AttentionVariant(qkv_bias=bias, output_bias=bias)
    return Decoder(load, (llama_layer(load, index, variant) for index in range(load.config.layers)))
