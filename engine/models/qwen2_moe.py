"""Qwen2-MoE (Yang et al. 2024): Qwen2 with mixtures of experts, beside which a gated expert is shared by all tokens.

h = h + attention(norm(h))
h = h + Σ over the chosen experts of weight · expert(norm(h)) + sigmoid(w · norm(h)) · shared(norm(h))
"""

from __future__ import annotations

from engine.layers.decoder_layer import DecoderLayer, llama_norms
from engine.layers.feed_forward import FeedForward, SigmoidGated
from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant, layer_attention
from engine.model_config.config_class import ConfigClass
from engine.models.decoder import Decoder
from engine.models.qwen3_moe import qwen_mixture

QWEN2_MOE = ConfigClass(
    "qwen2_moe",
    {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "qkv_bias": True,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "layer_types": None,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "norm_topk_prob": False,
    },
)


def qwen2_moe_layer(load: Loader, index: int, window: int, *, sparse: bool) -> DecoderLayer:
    """One decoder layer. `sparse`: its feed-forward layer is a mixture of experts."""
    fields, name = load.config.fields, f"model.layers.{index}.mlp"
    attention = layer_attention(load, index, AttentionVariant(window=window, qkv_bias=fields.flag("qkv_bias")))
    norms = llama_norms(load, index)
    if not sparse:
        return DecoderLayer(norms, attention, FeedForward(load, name, load.config.intermediate))
    shared = FeedForward(load, f"{name}.shared_expert", fields.integer("shared_expert_intermediate_size"))
    gated = SigmoidGated(load, f"{name}.shared_expert_gate", shared)
    return DecoderLayer(norms, attention, qwen_mixture(load, name), shared=gated)


def qwen2_moe(load: Loader) -> Decoder:
    """Qwen1.5-MoE and Qwen2-MoE. Without `layer_types`, every other layer below `max_window_layers` has the window."""
    config, fields = load.config, load.config.fields
    window = fields.count("sliding_window") if fields.flag("use_sliding_window") else 0
    below = fields.count("max_window_layers")
    windows = config.windows(window, lambda index: index % 2 == 0 and index < below)
    step, dense = fields.integer("decoder_sparse_step"), fields.integers("mlp_only_layers")
    return Decoder(
        load,
        (
            qwen2_moe_layer(load, index, size, sparse=index not in dense and (index + 1) % step == 0)
            for index, size in enumerate(windows)
        ),
    )
