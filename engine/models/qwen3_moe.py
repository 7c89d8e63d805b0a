"""Qwen3-MoE (Yang et al. 2025): Qwen3 whose feed-forward layers are mixtures of many small experts.

The router takes the softmax over all experts, then the best experts; whether their weights are normalized again is
configured. Layers in `mlp_only_layers`, or off the `decoder_sparse_step`, are dense. If there is a sliding window, all
layers have it.
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
from engine.models.qwen3 import qwen3_variants

QWEN3_MOE = ConfigClass(
    "qwen3_moe",
    {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    },
    aliases={"num_local_experts": "num_experts"},
    ignored=frozenset({"max_window_layers"}),
)


class Qwen3MoeLayer:
    """One decoder layer. `sparse`: its feed-forward layer is a mixture of experts."""

    def __init__(self, load: Loader, index: int, variant: AttentionVariant, *, sparse: bool) -> None:
        name, config, fields = f"model.layers.{index}", load.config, load.config.fields
        self.normalize = fields.flag("norm_topk_prob")
        self.attention_norm = load.norm(f"{name}.input_layernorm")
        rotary = load.rotary(config.rope, config.head_dim)
        self.attention = SelfAttention(load, f"{name}.self_attn", index, rotary, variant)
        self.mlp_norm = load.norm(f"{name}.post_attention_layernorm")
        self.mlp: FeedForward | MixtureOfExperts
        if not sparse:
            self.mlp = FeedForward(load, f"{name}.mlp", config.intermediate)
            return
        inner = fields.integer("moe_intermediate_size")
        count = fields.integer("num_experts")
        self.ranks = fields.integer("num_experts_per_tok", most=count)
        experts = [FeedForward(load, f"{name}.mlp.experts.{expert}", inner) for expert in range(count)]
        self.mlp = MixtureOfExperts(load.gate(f"{name}.mlp.gate", count), self._route, experts)

    def _route(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = softmax(logits)
        chosen = highest(scores, self.ranks)
        weights = scores.gather(1, chosen)
        return chosen, normalized(weights) if self.normalize else weights

    def __call__(self, h: torch.Tensor, forward: Forward) -> torch.Tensor:
        """[rows, hidden] → the same."""
        h = h + self.attention(self.attention_norm(h), forward)
        return h + self.mlp(self.mlp_norm(h))


def qwen3_moe(load: Loader) -> Decoder:
    """Qwen3-MoE."""
    fields = load.config.fields
    window = fields.count("sliding_window") if fields.flag("use_sliding_window") else 0
    variants = qwen3_variants(load.config, load.config.same_windows(window))
    step, dense = fields.integer("decoder_sparse_step"), fields.integers("mlp_only_layers")
    return Decoder(
        load,
        (
            Qwen3MoeLayer(load, index, variant, sparse=index not in dense and (index + 1) % step == 0)
            for index, variant in enumerate(variants)
        ),
    )
