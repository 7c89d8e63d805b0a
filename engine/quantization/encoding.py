"""Encodes weights on loading, in the format that `quantize` says."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.options import Quantize
from engine.quantization import fp4, fp8, int4
from engine.quantization.packed import PackedWeight, decoded

ENCODERS: dict[Quantize, Callable[[torch.Tensor], PackedWeight]] = {
    "fp8": lambda weight: fp8.stored(*fp8.encode(weight)),
    "mxfp4": fp4.encode_mxfp4,
    "nvfp4": fp4.encode_nvfp4,
    "int4": lambda weight: int4.encode(weight, 128),
    "int4-g64": lambda weight: int4.encode(weight, 64),
    "int4-g32": lambda weight: int4.encode(weight, 32),
}


def encoded(weight: torch.Tensor, into: Quantize) -> PackedWeight:
    """[outputs, inputs] encoded in a format other than "none". Raises ValueError for a shape that it cannot hold."""
    return ENCODERS[into](weight)


def quantized(weight: torch.Tensor, into: Quantize) -> torch.Tensor:
    """[outputs, inputs] rounded to the format, in its own type. Raises ValueError as `encoded` does."""
    return weight if into == "none" else decoded(encoded(weight, into)).to(weight)
