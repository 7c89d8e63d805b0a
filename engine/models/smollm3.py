"""SmolLM3 (Hugging Face 2025): Llama in which every fourth layer turns no heads (NoPE, Kazemnejad et al. 2023)."""

from __future__ import annotations

from engine.errors import ModelError
from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant
from engine.model_config.config_class import ConfigClass
from engine.models.decoder import Decoder
from engine.models.llama import llama_layer

SMOLLM3 = ConfigClass(
    "smollm3",
    {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "layer_types": None,
        "no_rope_layers": None,
        "no_rope_layer_interval": 4,
    },
    rope_theta=2_000_000.0,
)


def _turned(load: Loader) -> list[bool]:
    """Which layers turn heads: those with a 1 in `no_rope_layers`."""
    config, fields = load.config, load.config.fields
    given = fields.integers("no_rope_layers")
    if given and len(given) != config.layers:
        raise ModelError(
            f"{fields.path}: field no_rope_layers has {len(given)} entries, num_hidden_layers is {config.layers}"
        )
    interval = fields.integer("no_rope_layer_interval")
    return [bool(flag) for flag in given] or [(index + 1) % interval != 0 for index in range(config.layers)]


def smollm3(load: Loader) -> Decoder:
    """SmolLM3. If windows are used, the layers of `layer_types` have one; without those, layers that turn no heads."""
    config, fields = load.config, load.config.fields
    turned, bias = _turned(load), config.attention_bias
    slides = fields.flag("use_sliding_window") or bool(fields.texts("layer_types"))
    windows = config.windows(fields.count("sliding_window") if slides else 0, lambda index: not turned[index])
    variants = [
        AttentionVariant(window=size, qkv_bias=bias, output_bias=bias, turned=turned[index])
        for index, size in enumerate(windows)
    ]
    return Decoder(load, (llama_layer(load, index, variant) for index, variant in enumerate(variants)))
