"""Qwen3-MoE (Yang et al. 2025): Qwen3 whose feed-forward layers are mixtures of many small experts.

The router takes the softmax over all experts, then the best experts; whether their weights are normalized again is
configured. Layers in `mlp_only_layers`, or off the `decoder_sparse_step`, are dense. If there is a sliding window, all
layers have it.
"""

from __future__ import annotations

from engine.layers.decoder_layer import DecoderLayer, llama_norms
from engine.layers.feed_forward import FeedForward, load_experts
from engine.layers.loader import Loader
from engine.layers.moe import MixtureOfExperts, TopExperts
from engine.layers.self_attention import AttentionVariant, layer_attention
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


def qwen3_moe_layer(load: Loader, index: int, variant: AttentionVariant, *, sparse: bool) -> DecoderLayer:
    """One decoder layer. `sparse`: its feed-forward layer is a mixture of experts."""
    attention = layer_attention(load, index, variant)
    name = f"model.layers.{index}.mlp"
    mlp = qwen_mixture(load, name) if sparse else FeedForward(load, name, load.config.intermediate)
    return DecoderLayer(llama_norms(load, index), attention, mlp, fused_sums=not sparse)


def qwen_mixture(load: Loader, name: str) -> MixtureOfExperts:
    """The mixture of experts `name` of Qwen2-MoE and Qwen3-MoE."""
    fields = load.config.fields
    inner, count = fields.integer("moe_intermediate_size"), fields.integer("num_experts")
    ranks, normalize = fields.integer("num_experts_per_tok", most=count), fields.flag("norm_topk_prob")
    experts = load_experts(load, f"{name}.experts", count, inner)
    return MixtureOfExperts(load.gate(f"{name}.gate", count), TopExperts(ranks, normalize), *experts)


def qwen3_moe(load: Loader) -> Decoder:
    """Qwen3-MoE."""
    fields = load.config.fields
    window = fields.count("sliding_window") if fields.flag("use_sliding_window") else 0
    variants = qwen3_variants(load.config, load.config.same_windows(window))
    step, dense = fields.integer("decoder_sparse_step"), fields.integers("mlp_only_layers")
    return Decoder(
        load,
        (
            qwen3_moe_layer(load, index, variant, sparse=index not in dense and (index + 1) % step == 0)
            for index, variant in enumerate(variants)
        ),
    )
