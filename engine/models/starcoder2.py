"""StarCoder2 (Lozhkov et al. 2024): norms of mean and variance, a feed-forward layer without gates, biases everywhere.

h = h + attention(norm(h))
h = h + Wdown · gelu(Wup · norm(h) + b) + b
"""

from __future__ import annotations

from engine.layers.decoder_layer import DecoderLayer
from engine.layers.feed_forward import PlainFeedForward
from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant, layer_attention
from engine.model_config.config_class import ConfigClass
from engine.models.decoder import Decoder

STARCODER2 = ConfigClass(
    "starcoder2",
    {
        "vocab_size": 49152,
        "hidden_size": 3072,
        "intermediate_size": 12288,
        "num_hidden_layers": 30,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096,
        "norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "use_bias": True,
        "sliding_window": None,
    },
    fixed={"mlp_type": (None, "default"), "norm_type": (None, "layer_norm")},
    ignored=frozenset({"activation_function", "embedding_dropout", "layer_norm_epsilon"}),
    norm_eps="norm_epsilon",
)


def starcoder2_layer(load: Loader, index: int, window: int) -> DecoderLayer:
    """One decoder layer."""
    name, bias = f"model.layers.{index}", load.config.fields.flag("use_bias")
    attention = layer_attention(load, index, AttentionVariant(window=window, qkv_bias=bias, output_bias=bias))
    mlp = PlainFeedForward(load, f"{name}.mlp", ("c_fc", "c_proj"), bias=bias)
    norms = load.layer_norm(f"{name}.input_layernorm"), load.layer_norm(f"{name}.post_attention_layernorm")
    return DecoderLayer(norms, attention, mlp)


def starcoder2(load: Loader) -> Decoder:
    """StarCoder2."""
    windows = load.config.same_windows(load.config.fields.count("sliding_window"))
    layers = (starcoder2_layer(load, index, window) for index, window in enumerate(windows))
    return Decoder(load, layers, norm=load.layer_norm("model.norm"))
