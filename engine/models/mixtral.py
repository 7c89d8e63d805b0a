"""Mixtral (Jiang et al. 2024): Mistral with mixtures of experts as feed-forward layers.

h = h + attention(norm(h))
h = h + Σ over the two best experts of softmax over the two(Wgate · norm(h)) · expert(norm(h))
"""

from __future__ import annotations

import torch

from engine.layers.feed_forward import FeedForward
from engine.layers.forward import Forward
from engine.layers.loader import Loader
from engine.layers.moe import MixtureOfExperts, highest, normalized, softmax
from engine.layers.self_attention import AttentionVariant, SelfAttention
from engine.model_config.config_class import ConfigClass
from engine.models.decoder import Decoder

MIXTRAL = ConfigClass(
    "mixtral",
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
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "sliding_window": None,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    rope_theta=1_000_000.0,
    aliases={"num_experts": "num_local_experts"},
)


class MixtralLayer:
    """One decoder layer."""

    def __init__(self, load: Loader, index: int, window: int) -> None:
        name, config = f"model.layers.{index}", load.config
        self.attention_norm = load.norm(f"{name}.input_layernorm")
        rotary = load.rotary(config.rope, config.head_dim)
        self.attention = SelfAttention(load, f"{name}.self_attn", index, rotary, AttentionVariant(window=window))
        self.mlp_norm = load.norm(f"{name}.post_attention_layernorm")
        count = config.fields.integer("num_local_experts")
        self.ranks = config.fields.integer("num_experts_per_tok", most=count)
        experts = [
            FeedForward(load, f"{name}.block_sparse_moe.experts.{expert}", config.intermediate, ("w1", "w3", "w2"))
            for expert in range(count)
        ]
        gate = load.gate(f"{name}.block_sparse_moe.gate", count)
        self.moe = MixtureOfExperts(gate, self._route, experts)

    def _route(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = softmax(logits)
        chosen = highest(weights, self.ranks)
        return chosen, normalized(weights.gather(1, chosen))

    def __call__(self, h: torch.Tensor, forward: Forward) -> torch.Tensor:
        """[rows, hidden] → the same."""
        h = h + self.attention(self.attention_norm(h), forward)
        return h + self.moe(self.mlp_norm(h))


def mixtral(load: Loader) -> Decoder:
    """Mixtral."""
    config = load.config
    windows = config.same_windows(config.fields.count("sliding_window"))
    return Decoder(load, (MixtralLayer(load, index, window) for index, window in enumerate(windows)))
