"""Mistral (Jiang et al. 2023): Llama whose layers attend to a sliding window, in the versions that have one."""

from __future__ import annotations

from engine.layers.self_attention import Variant
from engine.models.decoder import Decoder
from engine.models.llama import LlamaLayer
from engine.weights.loader import Loader

_WINDOW = 4096


def mistral(load: Loader) -> Decoder:
    """Mistral and Ministral; `sliding_window` null says that there is none, a missing one means that of version 0.1."""
    config = load.config
    missing = "sliding_window" not in config.fields.fields
    window = config.fields.count("sliding_window", _WINDOW if missing else 0)
    windows = config.windows(window, lambda _: True)
    return Decoder(load, [LlamaLayer(load, index, Variant(window=size)) for index, size in enumerate(windows)])
