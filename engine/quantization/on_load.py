"""Quantizes the weights of linear layers while they are loaded (the setting `quantize`)."""

from __future__ import annotations

import torch

from engine.options import Quantize
from engine.quantization import fp8, mxfp4
from engine.quantization.packed import PackedWeight, decoded


def encoded(weight: torch.Tensor, into: Quantize) -> PackedWeight | None:
    """[outputs, inputs] encoded in the format; None for "none". Raises ValueError for a shape that it cannot hold."""
    match into:
        case "fp8":
            return fp8.stored(*fp8.encode(weight))
        case "mxfp4":
            return mxfp4.Mxfp4Weight(*mxfp4.encode(weight))
    return None


def quantized(weight: torch.Tensor, into: Quantize) -> torch.Tensor:
    """[outputs, inputs] rounded to the format, in its own type. Raises ValueError as `encoded` does."""
    packed = encoded(weight, into)
    return weight if packed is None else decoded(packed).to(weight)
