"""Quantizes weights while they are loaded: each linear layer's weight becomes what the format can hold of it."""

from __future__ import annotations

import torch

from engine.options import Quantize
from engine.quantization import fp8, mxfp4


def quantized(weight: torch.Tensor, into: Quantize) -> torch.Tensor:
    """[outputs, inputs] rounded to the format, in the type it had.

    Raises ValueError for a shape that the format cannot hold.
    """
    match into:
        case "fp8":
            return fp8.decode(*fp8.encode(weight)).to(weight)
        case "mxfp4":
            return mxfp4.decode(*mxfp4.encode(weight)).to(weight)
    return weight
