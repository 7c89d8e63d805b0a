"""Llama (Touvron et al. 2023, Grattafiori et al. 2024): pre-norm decoder, rotary positions, grouped queries, SwiGLU.

h = h + attention(norm(h))
h = h + Wdown · (silu(Wgate · norm(h)) ⊙ Wup · norm(h))
"""

from __future__ import annotations

import torch

from engine.layers.feed_forward import FeedForward
from engine.layers.forward import Forward
from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant, SelfAttention
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


class LlamaLayer:
    """One decoder layer. `variant`: how the attention differs from Llama's, for families derived from it."""

    def __init__(self, load: Loader, index: int, variant: AttentionVariant) -> None:
        name, config = f"model.layers.{index}", load.config
        rotary = load.rotary(config.rope, config.head_dim)
        self.attention_norm = load.norm(f"{name}.input_layernorm")
        self.attention = SelfAttention(load, f"{name}.self_attn", index, rotary, variant)
        self.mlp_norm = load.norm(f"{name}.post_attention_layernorm")
        self.mlp = FeedForward(load, f"{name}.mlp", config.intermediate)

    def __call__(self, h: torch.Tensor, forward: Forward) -> torch.Tensor:
        """[rows, hidden] → the same."""
        h = self.attention(self.attention_norm(h), forward, plus=h)
        return self.mlp(self.mlp_norm(h), plus=h)


def llama(load: Loader) -> Decoder:
    """Llama 2 and 3.x."""
    bias = load.config.attention_bias
    variant = AttentionVariant(qkv_bias=bias, output_bias=bias)
    return Decoder(load, (LlamaLayer(load, index, variant) for index in range(load.config.layers)))
