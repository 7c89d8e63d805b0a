"""FP8 weights (Micikevicius et al. 2022): e4m3 values with a scale for the tensor, for each output or for each block.

Read: a weight times its scales. Made: a scale for each output; the largest value of a row becomes the largest of e4m3.
"""

from __future__ import annotations

import torch

LARGEST = 448.0
"""The largest finite e4m3 value."""


def decode(weight: torch.Tensor, scales: torch.Tensor, block: tuple[int, int] = (128, 128)) -> torch.Tensor:
    """[outputs, inputs] in fp32 of e4m3 (or int8) values and their scales.

    `scales` has one element (per tensor), [outputs] or [outputs, 1] (per channel), or one for each block of `block`
    outputs and inputs, those at the end cut short. Raises ValueError for scales of any other shape.
    """
    outputs, inputs = weight.shape
    scales = scales.float()
    if scales.numel() == 1:
        return weight.float() * scales.reshape(())
    if scales.shape in {(outputs,), (outputs, 1)}:
        return weight.float() * scales.reshape(outputs, 1)
    rows, columns = block
    if scales.shape != (-(-outputs // rows), -(-inputs // columns)):
        raise ValueError(f"scales of shape {list(scales.shape)} do not fit a weight of {outputs} x {inputs}")
    return weight.float() * scales.repeat_interleave(rows, 0)[:outputs].repeat_interleave(columns, 1)[:, :inputs]


def encode(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 values of [outputs, inputs] and one fp32 scale for each output, [outputs, 1]."""
    scales = weight.float().abs().amax(-1, keepdim=True) / LARGEST
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    return (weight.float() / scales).clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scales
