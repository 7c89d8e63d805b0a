"""Weights in floats of 4 bits, e2m1: MXFP4 (OCP Microscaling Formats 1.0) and NVFP4.

MXFP4: 32 inputs share a power of two as scale, a byte that is its exponent plus 127. NVFP4: 16 inputs share a scale in
e4m3, and a tensor has one more in fp32. A byte holds two values, the first in its low half. e2m1 · 2^e and e2m1 · e4m3
are exact in bf16 and fp32.
"""

from __future__ import annotations

import torch

from engine.quantization.code_types import E2M1, E8M0, numbers, pack, to_e2m1
from engine.quantization.fp8 import LARGEST as LARGEST_E4M3
from engine.quantization.packed import PackedWeight

MX_GROUP, NV_GROUP = 32, 16
_LARGEST = E2M1.largest
_LARGEST_EXPONENT = 2
"""The exponent of e2m1's largest value: 6 = 1.5 · 2²."""


def _check(codes: torch.Tensor, scales: torch.Tensor, group: int, name: str, scale_dtype: torch.dtype) -> None:
    """Raise ValueError unless these are codes and scales [outputs, groups] of one weight."""
    if codes.dtype != torch.uint8 or scales.dtype != scale_dtype:
        raise ValueError(f"{name} has values in bytes and scales in {scale_dtype}, not {codes.dtype}, {scales.dtype}")
    if codes.dim() != 2 or not codes.numel():
        raise ValueError(f"values of shape {list(codes.shape)} are not those of a weight")
    if scales.dim() != 2 or codes.shape != (len(scales), scales.shape[1] * group // 2):
        raise ValueError(f"scales of shape {list(scales.shape)} do not fit values of {list(codes.shape)} in {name}")


def stored_mxfp4(codes: torch.Tensor, scales: torch.Tensor) -> PackedWeight:
    """The weight of bytes [outputs, inputs / 2] and scale bytes [outputs, inputs / 32]. Raises ValueError."""
    _check(codes, scales, MX_GROUP, "MXFP4", torch.uint8)
    return PackedWeight("mxfp4", codes, E2M1, scales, (1, MX_GROUP), codes.shape[1] * 2).checked()


def stored_nvfp4(codes: torch.Tensor, scales: torch.Tensor, tensor_scale: torch.Tensor) -> PackedWeight:
    """The weight of bytes [outputs, inputs / 2], scales [outputs, inputs / 16] in e4m3, and the scale of the tensor,
    one number or one for each output. Raises ValueError."""
    _check(codes, scales, NV_GROUP, "NVFP4", torch.float8_e4m3fn)
    if not tensor_scale.is_floating_point() or tensor_scale.numel() not in {1, len(codes)}:
        raise ValueError(
            f"the tensor's scale is {list(tensor_scale.shape)} of {tensor_scale.dtype}, not one number of fp32"
        )
    if bool((scales.view(torch.uint8) > 127).any()):
        raise ValueError("scales of blocks are not all positive")
    each = tensor_scale.detach().float().reshape(-1).expand(len(codes)).contiguous()
    inputs = codes.shape[1] * 2
    return PackedWeight("nvfp4", codes, E2M1, scales, (1, NV_GROUP), inputs, output_scales=each).checked()


def _groups(weight: torch.Tensor, group: int) -> torch.Tensor:
    outputs, inputs = weight.shape
    if inputs % group:
        raise ValueError(f"{inputs} inputs are not whole groups of {group}")
    return weight.float().view(outputs, inputs // group, group)


def encode_mxfp4(weight: torch.Tensor) -> PackedWeight:
    """[outputs, inputs] in MXFP4. Raises ValueError if inputs are not whole groups.

    By the standard: the scale is the largest power of two not above the group's largest value, divided by that of e2m1;
    values are rounded to nearest, ties to even, and clamped at 6.
    """
    groups = _groups(weight, MX_GROUP)
    exponent = torch.frexp(groups.abs().amax(-1)).exponent - 1 - _LARGEST_EXPONENT
    # Beyond, 6 times the scale would not be finite.
    exponent = exponent.clamp(-127, 125)
    scaled = groups * numbers((127 - exponent).to(torch.uint8), E8M0)[..., None]
    codes = pack(to_e2m1(scaled).flatten(1), 4)
    return stored_mxfp4(codes, (exponent + 127).to(torch.uint8))


def encode_nvfp4(weight: torch.Tensor) -> PackedWeight:
    """[outputs, inputs] in NVFP4, with a scale of fp32 for each output in place of the whole tensor. Raises ValueError
    if inputs are not whole groups.

    That is no less exact, and the same whichever projections are one product. The largest value of an output becomes
    6 · 448; values are rounded to nearest, ties to even, and clamped at 6.
    """
    groups = _groups(weight, NV_GROUP)
    largest = groups.abs().amax(-1)
    outer = largest.amax(-1) / (_LARGEST * LARGEST_E4M3)
    outer = torch.where(outer > 0, outer, torch.ones_like(outer))
    scales = (largest / _LARGEST / outer[:, None]).clamp_(max=LARGEST_E4M3).to(torch.float8_e4m3fn)
    whole = scales.float() * outer[:, None]
    # A group whose scale rounds to 0 is one of zeros.
    scaled = torch.where(whole[..., None] > 0, groups / whole[..., None], 0.0)
    return stored_nvfp4(pack(to_e2m1(scaled).flatten(1), 4), scales, outer)
