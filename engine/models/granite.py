"""Granite (IBM 2024): Llama with factors for embeddings, for what layers add, for attention scores and for logits."""

from __future__ import annotations

from engine.layers.decoder_layer import DecoderLayer, llama_norms
from engine.layers.feed_forward import FeedForward
from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant, layer_attention
from engine.model_config.config_class import ConfigClass
from engine.models.decoder import Decoder
from engine.models.llama import LLAMA

GRANITE = ConfigClass(
    "granite",
    {
        **{name: default for name, default in LLAMA.defaults.items() if name != "head_dim"},
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
)


def granite_layer(load: Loader, index: int) -> DecoderLayer:
    """One decoder layer."""
    config, fields = load.config, load.config.fields
    bias, factor = config.attention_bias, fields.number("residual_multiplier")
    variant = AttentionVariant(scale=fields.number("attention_multiplier"), qkv_bias=bias, output_bias=bias)
    attention = layer_attention(load, index, variant)
    mlp = FeedForward(load, f"model.layers.{index}.mlp", config.intermediate)
    # Without the factor a layer is Llama's, which kernels compute.
    return DecoderLayer(llama_norms(load, index), attention, mlp, factor=factor, fused_sums=factor == 1.0)


def granite(load: Loader) -> Decoder:
    """Granite 3 and later, dense."""
    fields = load.config.fields
    scale = fields.number("embedding_multiplier")
    return Decoder(
        load,
        (granite_layer(load, index) for index in range(load.config.layers)),
        embedding_scale=None if scale == 1.0 else scale,
        logit_divisor=fields.number("logits_scaling"),
    )
