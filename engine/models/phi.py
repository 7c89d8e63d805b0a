"""Phi-1, 1.5 and 2 (Gunasekar et al. 2023): attention and feed-forward layer beside each other, biases everywhere.

h = h + attention(norm(h)) + Wdown · gelu(Wup · norm(h) + b) + b
"""

from __future__ import annotations

from engine.layers.decoder_layer import DecoderLayer
from engine.layers.feed_forward import PlainFeedForward
from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant, SelfAttention
from engine.model_config.config_class import ConfigClass
from engine.models.decoder import Decoder

PHI = ConfigClass(
    "phi",
    {
        "vocab_size": 51200,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "hidden_act": "gelu_new",
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "partial_rotary_factor": None,
    },
    rope={"partial_rotary_factor": 0.5},
    norm_eps="layer_norm_eps",
)


def phi_layer(load: Loader, index: int) -> DecoderLayer:
    """One decoder layer."""
    name, config = f"model.layers.{index}", load.config
    variant = AttentionVariant(qkv_bias=True, output_bias=True)
    rotary = load.rotary(config.rope, config.head_dim)
    attention = SelfAttention(load, f"{name}.self_attn", index, rotary, variant, output="dense")
    mlp = PlainFeedForward(load, f"{name}.mlp", ("fc1", "fc2"), bias=True)
    return DecoderLayer((load.layer_norm(f"{name}.input_layernorm"), None), attention, mlp, parallel=True)


def phi(load: Loader) -> Decoder:
    """Phi-1 to Phi-2."""
    layers = (phi_layer(load, index) for index in range(load.config.layers))
    return Decoder(load, layers, norm=load.layer_norm("model.final_layernorm"), head_bias=True)
