"""Models of published shapes with random weights, made on the device: never zeros, whose products are quicker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.layers.linear import Tiling
from engine.layers.loader import Loader
from engine.model_config.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.registry import FAMILIES, kept_in_tiles
from engine.options import Tiles

_DEVIATION = 0.02
_WITH_EXPERTS = frozenset({"deepseek_v2", "deepseek_v3", "gpt_oss", "mixtral", "qwen3_moe"})


class _RandomTensors:
    """Stands for a checkpoint that has every tensor that it is asked for, but no fused ones.

    `apart`: tokens differ more, so that rows choose other experts although their contexts are alike.
    """

    folder = Path("random")
    norms_are_whole = False

    def __init__(self, *, apart: bool) -> None:
        self._embedding = 1.0 if apart else _DEVIATION

    def load(self, name: str, into: torch.Tensor) -> None:
        if name.endswith("norm.weight"):
            into.fill_(1.0)
        else:
            into.normal_(0.0, self._embedding if name.endswith("embed_tokens.weight") else _DEVIATION)
        if into.dtype == torch.float32 and name.endswith("gate.weight"):
            into.copy_(into.bfloat16())  # as routers are stored, whatever they compute in

    def has_part(self, name: str) -> bool:
        return not name.endswith(("qkv_proj", "gate_up_proj"))

    def __contains__(self, _name: str) -> bool:
        return False

    def is_quantized(self) -> bool:
        return False

    def same(self, first: str, second: str) -> bool:
        return first == second

    def packed(self, name: str, shape: tuple[int, int], device: torch.device) -> None:
        return None


def load_random(
    folder: Path, config: ModelConfig, like: torch.Tensor, tiling: Tiling, context_tokens: int, **kept: Any
) -> Decoder:
    """As `engine.models.registry.load_model`, with random weights."""
    torch.manual_seed(0)
    with torch.inference_mode():
        weights, quantize = kept.pop("weights", "auto"), kept.get("quantize", "none")
        tensors: Any = _RandomTensors(apart=config.model_type in _WITH_EXPERTS)
        tiles: Tiles = "none"
        if quantize not in ("none", "fp8"):
            tiles = kept_in_tiles(config.model_type, weights, like, lambda: 0)
        load = Loader(tensors, config, like, tiling, context_tokens, **kept, packed=quantize == "fp8", tiles=tiles)
        return FAMILIES[config.model_type].build(load)
