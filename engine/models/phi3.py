"""Phi-3 and Phi-4 mini (Abdin et al. 2024): Llama with fused projections, heads turned in part, LongRoPE, and in the
smallest one a sliding window.
"""

from __future__ import annotations

from engine.layers.self_attention import Variant
from engine.models.decoder import Decoder
from engine.models.llama import LlamaLayer
from engine.weights.loader import Loader


def phi3(load: Loader) -> Decoder:
    """Phi-3 and its relatives of the same type."""
    config = load.config
    windows = config.windows(config.fields.count("sliding_window"), lambda _: True)
    return Decoder(load, [LlamaLayer(load, index, Variant(window=window)) for index, window in enumerate(windows)])
