"""Gemma 1, 2 and 3 (Gemma Team 2024, 2025): norms before and after each part, embeddings scaled by √hidden, GELU gates,
and layers with a sliding window between layers without.

    h = h + norm(attention(norm(h)))
    h = h + norm(Wdown · (gelu(Wgate · norm(h)) ⊙ Wup · norm(h)))

Gemma 1 has the norms before parts alone, and no windows. Gemma 2 has soft caps on attention scores and logits. Gemma 3
normalizes queries and keys instead, and its window layers have a smaller rotary base. All norms are stored as w − 1.
"""

from __future__ import annotations

import math

from engine.layers.decoder_layer import DecoderLayer
from engine.layers.feed_forward import FeedForward
from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant, SelfAttention, layer_attention
from engine.model_config.config_class import NOT_SET, ConfigClass
from engine.model_config.rope import RopeConfig, read_rope
from engine.models.decoder import Decoder

GEMMA = ConfigClass(
    "gemma",
    {
        "vocab_size": 256000,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "attention_bias": False,
    },
    fixed={"hidden_activation": (None, "gelu_pytorch_tanh")},
)
GEMMA2 = ConfigClass(
    "gemma2",
    {
        "vocab_size": 256000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "layer_types": None,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
    ignored=frozenset({"hidden_act", "cache_implementation"}),
)
GEMMA3_TEXT = ConfigClass(
    "gemma3_text",
    {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "layer_types": None,
        "sliding_window_pattern": None,
        "final_logit_softcapping": None,
        "rope_local_base_freq": None,
    },
    rope_theta=1_000_000.0,
    local_theta=10_000.0,
    # transformers' class has the field, and its attention passes over it.
    fixed={"attn_logit_softcapping": NOT_SET},
    ignored=frozenset({"hidden_act", "cache_implementation", "_sliding_window_pattern"}),
)


def gemma_layer(load: Loader, index: int, rope: RopeConfig, variant: AttentionVariant) -> DecoderLayer:
    """One decoder layer."""
    name, config = f"model.layers.{index}", load.config
    attention = SelfAttention(load, f"{name}.self_attn", index, load.rotary(rope, config.head_dim), variant)
    mlp = FeedForward(load, f"{name}.mlp", config.intermediate)
    places = ("input", "pre_feedforward", "post_attention", "post_feedforward")
    first, second, *out = (load.norm(f"{name}.{place}_layernorm", plus_one=True) for place in places)
    return DecoderLayer((first, second), attention, mlp, out_norms=(out[0], out[1]))


def _cap(load: Loader, name: str) -> float | None:
    """The soft cap in this field; None if it is null."""
    fields = load.config.fields
    return fields.number(name) if name in fields else None


def _scale(load: Loader) -> float:
    """The scale of attention scores: 1/√`query_pre_attn_scalar`, which may differ from the head size."""
    return 1.0 / math.sqrt(load.config.fields.number("query_pre_attn_scalar"))


def gemma(load: Loader) -> Decoder:
    """Gemma 1. Its first files say gelu and mean the approximation by tanh."""
    config = load.config
    bias = config.attention_bias
    activation = "gelu_pytorch_tanh" if config.activation == "gelu" else config.activation

    def layer(index: int) -> DecoderLayer:
        name = f"model.layers.{index}"
        attention = layer_attention(load, index, AttentionVariant(qkv_bias=bias, output_bias=bias))
        mlp = FeedForward(load, f"{name}.mlp", config.intermediate, activation=activation)
        places = ("input", "post_attention")
        first, second = (load.norm(f"{name}.{place}_layernorm", plus_one=True) for place in places)
        return DecoderLayer((first, second), attention, mlp)

    layers = (layer(index) for index in range(config.layers))
    return Decoder(load, layers, embedding_scale=math.sqrt(config.hidden), plus_one=True)


def gemma2(load: Loader) -> Decoder:
    """Gemma 2: every second layer has the window, beginning with the first."""
    config = load.config
    scale, soft_cap = _scale(load), _cap(load, "attn_logit_softcapping")
    windows = config.windows(config.fields.count("sliding_window"), lambda index: index % 2 == 0)
    bias = config.attention_bias
    layers = (
        gemma_layer(
            load,
            index,
            config.rope,
            AttentionVariant(window=window, scale=scale, soft_cap=soft_cap, qkv_bias=bias, output_bias=bias),
        )
        for index, window in enumerate(windows)
    )
    return Decoder(
        load,
        layers,
        embedding_scale=math.sqrt(config.hidden),
        plus_one=True,
        logit_cap=_cap(load, "final_logit_softcapping"),
    )


def gemma3(load: Loader) -> Decoder:
    """Gemma 3, text only: five layers with the window, then one without."""
    config, fields = load.config, load.config.fields
    pattern = fields.integer("sliding_window_pattern", 6)
    windows = config.windows(fields.count("sliding_window"), lambda index: (index + 1) % pattern != 0)
    local = read_rope(fields, GEMMA3_TEXT, "sliding_attention")
    bias = config.attention_bias
    layers = (
        gemma_layer(
            load,
            index,
            local if window else config.rope,
            AttentionVariant(
                window=window, scale=_scale(load), qk_norm=True, plus_one=True, qkv_bias=bias, output_bias=bias
            ),
        )
        for index, window in enumerate(windows)
    )
    return Decoder(
        load,
        layers,
        embedding_scale=math.sqrt(config.hidden),
        plus_one=True,
        logit_cap=_cap(load, "final_logit_softcapping"),
    )
