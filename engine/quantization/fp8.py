"""FP8 weights (Micikevicius et al. 2022): e4m3 values with a scale per tensor, per output or per block.

Encoding uses a scale per output, which maps the row's largest value to the largest of e4m3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.quantization.packed import byte_values, check_scales, decoded, numbers

LARGEST = 448.0
"""The largest finite e4m3 value."""


@dataclass(frozen=True)
class Fp8Weight:
    """8-bit values [outputs, inputs], and fp32 scales for blocks of `block` = (outputs, inputs)."""

    values: torch.Tensor
    scales: torch.Tensor
    block: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes

    @property
    def step(self) -> int:
        # A single scale holds for all outputs, so rows may begin anywhere.
        return 1 if len(self.scales) == 1 else self.block[0]

    def rows(self, start: int, stop: int) -> torch.Tensor:
        rows, columns = self.block
        values = numbers(self.values[start:stop].view(torch.uint8), byte_values(self.values.dtype, self.values.device))
        scales = self.scales
        if len(scales) > 1:
            scales = scales[start // rows : -(-stop // rows)].repeat_interleave(rows, 0)[: stop - start]
        if scales.shape[1] * columns == values.shape[1]:
            values.view(len(values), -1, columns).mul_(scales[..., None])
            return values
        return values.mul_(scales.repeat_interleave(columns, 1)[:, : values.shape[1]])

    def to(self, device: torch.device) -> Fp8Weight:
        return Fp8Weight(self.values.to(device, copy=True), self.scales.to(device, copy=True), self.block)


def stored(values: torch.Tensor, scales: torch.Tensor, block: tuple[int, int] = (128, 128)) -> Fp8Weight:
    """The weight of e4m3, e5m2 or int8 values [outputs, inputs] and their scales.

    `scales`: one element (per tensor), [outputs] or [outputs, 1] (per channel), one per block of `block` outputs and
    inputs, the last ones cut short, or [outputs, groups of inputs]. Raises ValueError for any other shape.
    """
    if values.dim() != 2 or not values.numel():
        raise ValueError(f"values of shape {list(values.shape)} are not a weight of outputs and inputs")
    outputs, inputs = values.shape
    check_scales(scales)
    codes, numbers_of = values.view(torch.uint8), byte_values(values.dtype, torch.device("cpu")).view(-1)
    for code in (~numbers_of.isfinite()).nonzero().view(-1).tolist():
        if bool((codes == code).any()):
            raise ValueError("its values are not all finite")
    scales = scales.float()
    if scales.numel() == 1:
        return Fp8Weight(values, scales.reshape(1, 1), (outputs, inputs))
    if scales.shape in {(outputs,), (outputs, 1)}:
        return Fp8Weight(values, scales.reshape(outputs, 1), (1, inputs))
    rows, columns = block
    if scales.shape == (-(-outputs // rows), -(-inputs // columns)):
        return Fp8Weight(values, scales, block)
    if scales.dim() == 2 and scales.shape[0] == outputs and scales.shape[1] and inputs % scales.shape[1] == 0:
        return Fp8Weight(values, scales, (1, inputs // scales.shape[1]))
    raise ValueError(f"scales of shape {list(scales.shape)} do not fit a weight of {outputs} x {inputs}")


def decode(weight: torch.Tensor, scales: torch.Tensor, block: tuple[int, int] = (128, 128)) -> torch.Tensor:
    """[outputs, inputs] in fp32 from values and scales as for `stored`."""
    return decoded(stored(weight, scales, block))


def encode(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[outputs, inputs] → e4m3 values of the same shape, and an fp32 scale per output, [outputs, 1]."""
    scales = weight.float().abs().amax(-1, keepdim=True) / LARGEST
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    return (weight.float() / scales).clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scales
