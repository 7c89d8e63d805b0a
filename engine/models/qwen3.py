"""Qwen3 (Yang et al. 2025): Llama whose queries and keys are normalized, each head by itself, before they are turned."""

from __future__ import annotations

from collections.abc import Sequence

from engine.layers.self_attention import Variant
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.llama import LlamaLayer
from engine.models.qwen2 import qwen_windows
from engine.weights.loader import Loader


def qwen3_variants(config: ModelConfig, windows: Sequence[int]) -> list[Variant]:
    """The attention of each layer, which has this window."""
    bias = config.attention_bias
    return [Variant(window=window, qk_norm=True, qkv_bias=bias, output_bias=bias) for window in windows]


def qwen3(load: Loader) -> Decoder:
    """Qwen3, dense."""
    variants = qwen3_variants(load.config, qwen_windows(load.config))
    return Decoder(load, [LlamaLayer(load, index, variant) for index, variant in enumerate(variants)])
