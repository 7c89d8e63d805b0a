"""FP8 weights (Micikevicius et al. 2022): e4m3 values with a scale per tensor, per output or per block.

Encoding uses a scale per output, which maps the row's largest value to the largest of e4m3.
"""

from __future__ import annotations

import torch

from engine.quantization.code_types import bytes_of
from engine.quantization.packed import PackedWeight, decoded

LARGEST = 448.0
"""The largest finite e4m3 value."""
E4M3 = bytes_of(torch.float8_e4m3fn)


def stored(values: torch.Tensor, scales: torch.Tensor, block: tuple[int, int] = (128, 128)) -> PackedWeight:
    """The weight of e4m3, e5m2 or int8 values [outputs, inputs] and their scales.

    `scales`: one element (per tensor), [outputs] or [outputs, 1] (per channel), one per block of `block` outputs and
    inputs, the last ones cut short, or [outputs, groups of inputs]. Raises ValueError for any other shape.
    """
    if values.dim() != 2 or not values.numel():
        raise ValueError(f"values of shape {list(values.shape)} are not a weight of outputs and inputs")
    outputs, inputs = values.shape
    codes, code_type = values.view(torch.uint8), bytes_of(values.dtype)
    for code, number in enumerate(code_type.values):
        if not abs(number) <= code_type.largest and bool((codes == code).any()):
            raise ValueError("its values are not all finite")
    if not scales.is_floating_point():
        raise ValueError(f"scales are {scales.dtype}, not floating point")
    form = "int8" if values.dtype == torch.int8 else "fp8"
    scales, block = _shaped(scales.float(), outputs, inputs, block)
    return PackedWeight(form, codes, code_type, scales, block, inputs).checked()


def _shaped(
    scales: torch.Tensor, outputs: int, inputs: int, block: tuple[int, int]
) -> tuple[torch.Tensor, tuple[int, int]]:
    """The scales as [blocks of outputs, groups of inputs], and the size of a block."""
    if scales.numel() == 1:
        return scales.reshape(1, 1), (outputs, inputs)
    if scales.shape in {(outputs,), (outputs, 1)}:
        return scales.reshape(outputs, 1), (1, inputs)
    rows, columns = block
    if scales.shape == (-(-outputs // rows), -(-inputs // columns)):
        return scales, block
    if scales.dim() == 2 and scales.shape[0] == outputs and scales.shape[1] and inputs % scales.shape[1] == 0:
        return scales, (1, inputs // scales.shape[1])
    raise ValueError(f"scales of shape {list(scales.shape)} do not fit a weight of {outputs} x {inputs}")


def decode(weight: torch.Tensor, scales: torch.Tensor, block: tuple[int, int] = (128, 128)) -> torch.Tensor:
    """[outputs, inputs] in fp32 from values and scales as for `stored`."""
    return decoded(stored(weight, scales, block))


def encode(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[outputs, inputs] → e4m3 values of the same shape, and an fp32 scale per output, [outputs, 1]."""
    scales = weight.float().abs().amax(-1, keepdim=True) / LARGEST
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    return (weight.float() / scales).clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scales
