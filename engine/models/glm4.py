"""GLM-4 (GLM Team 2024, 2025): norms before and after each part, the first half of each head turned, in pairs of
neighbours; and GLM-4.5, with mixtures of experts as DeepSeek-V3's, pairs as Llama's, and norms before parts alone.
"""

from __future__ import annotations

from engine.layers.decoder_layer import DecoderLayer, llama_norms
from engine.layers.feed_forward import FeedForward
from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant, layer_attention
from engine.model_config.config_class import ConfigClass
from engine.models.decoder import Decoder
from engine.models.deepseek import v3_feed_forward

GLM4 = ConfigClass(
    "glm4",
    {
        "vocab_size": 151552,
        "hidden_size": 4096,
        "intermediate_size": 13696,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 0.00000015625,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "partial_rotary_factor": None,
    },
    rope={"partial_rotary_factor": 0.5},
)
GLM4_MOE = ConfigClass(
    "glm4_moe",
    {
        "vocab_size": 151552,
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "partial_rotary_factor": None,
        "use_qk_norm": False,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 1,
    },
    rope={"partial_rotary_factor": 0.5},
    aliases={
        "num_local_experts": "n_routed_experts",
        "num_experts": "n_routed_experts",
        "num_mtp_layers": "num_nextn_predict_layers",
    },
)


def glm4_layer(load: Loader, index: int) -> DecoderLayer:
    """One decoder layer of GLM-4."""
    name, config = f"model.layers.{index}", load.config
    attention = layer_attention(load, index, AttentionVariant(qkv_bias=config.attention_bias, interleaved=True))
    mlp = FeedForward(load, f"{name}.mlp", config.intermediate)
    out = load.norm(f"{name}.post_self_attn_layernorm"), load.norm(f"{name}.post_mlp_layernorm")
    return DecoderLayer(llama_norms(load, index), attention, mlp, out_norms=out)


def glm4(load: Loader) -> Decoder:
    """GLM-4 of 2025, dense."""
    return Decoder(load, (glm4_layer(load, index) for index in range(load.config.layers)))


def glm4_moe(load: Loader) -> Decoder:
    """GLM-4.5 and 4.6. Layers for multi-token prediction, behind the last one, are not loaded."""
    config = load.config
    variant = AttentionVariant(qkv_bias=config.attention_bias, qk_norm=config.fields.flag("use_qk_norm"))

    def layer(index: int) -> DecoderLayer:
        attention, norms = layer_attention(load, index, variant), llama_norms(load, index)
        mlp, shared = v3_feed_forward(load, index)
        return DecoderLayer(norms, attention, mlp, shared=shared)

    return Decoder(load, (layer(index) for index in range(config.layers)))
