"""Mixtral (Jiang et al. 2024): Mistral with mixtures of experts as feed-forward layers.

h = h + attention(norm(h))
h = h + Σ over the two best experts of softmax over the two(Wgate · norm(h)) · expert(norm(h))
"""

from __future__ import annotations

from engine.layers.decoder_layer import DecoderLayer, llama_norms
from engine.layers.feed_forward import load_experts
from engine.layers.loader import Loader
from engine.layers.moe import MixtureOfExperts, TopExperts
from engine.layers.self_attention import AttentionVariant, layer_attention
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


def mixtral_layer(load: Loader, index: int, window: int) -> DecoderLayer:
    """One decoder layer."""
    name, fields = f"model.layers.{index}.block_sparse_moe", load.config.fields
    attention = layer_attention(load, index, AttentionVariant(window=window))
    count = fields.integer("num_local_experts")
    ranks = fields.integer("num_experts_per_tok", most=count)
    experts = load_experts(load, f"{name}.experts", count, load.config.intermediate, ("w1", "w3", "w2"))
    moe = MixtureOfExperts(load.gate(f"{name}.gate", count), TopExperts(ranks, normalize=True), *experts)
    return DecoderLayer(llama_norms(load, index), attention, moe)


def mixtral(load: Loader) -> Decoder:
    """Mixtral."""
    config = load.config
    windows = config.same_windows(config.fields.count("sliding_window"))
    return Decoder(load, (mixtral_layer(load, index, window) for index, window in enumerate(windows)))
