"""Reads rows out of a weight that oneDNN has packed, so that a tied embedding need not be kept beside its head.

oneDNN's packed order is undocumented and depends on the processor. It is found by packing a weight of distinct numbers
and looking where each of them lies; all known orders repeat after a number of outputs. Before it is used, the order is
verified on the weight itself.
"""

from __future__ import annotations

import ctypes

import torch

_TRIED_OUTPUTS = 512
_EXACT = 1 << 24
"""Integers up to here are exact in fp32."""


class PackedRows:
    """The rows of one packed weight: output `i` lies at `inside[i % block] + i // block * stride`."""

    def __init__(self, packed: torch.Tensor, inside: torch.Tensor, stride: int) -> None:
        self._packed = packed  # owns the memory of `_values`
        self._values = _values(packed)
        self._inside = inside
        self._stride = stride

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[n] numbers of outputs → [n, inputs], copied."""
        block = len(self._inside)
        at = self._inside.index_select(0, rows % block) + (rows // block * self._stride)[:, None]
        return self._values.index_select(0, at.view(-1)).view(at.shape)


def packed_rows(packed: torch.Tensor, weight: torch.Tensor) -> PackedRows | None:
    """Access to the rows of `weight` [outputs, inputs] in `packed`; None if their order cannot be found."""
    outputs, inputs = weight.shape
    try:
        order = _order(inputs)
        if order is None:
            return None
        rows = PackedRows(packed, *order)
        # One row of each block, another in each, and the last one.
        block = len(order[0])
        starts = torch.arange(0, outputs, block)
        checked = torch.cat([starts + torch.arange(len(starts)) % block, torch.tensor([outputs - 1])])
        for part in torch.split(checked.clamp(max=outputs - 1), _TRIED_OUTPUTS):
            if not torch.equal(rows(part), weight[part]):
                return None
    except (AttributeError, IndexError, RuntimeError):  # a build of torch without these operations, or another order
        return None
    return rows


def _values(packed: torch.Tensor) -> torch.Tensor:
    """The memory of a packed fp32 weight, in its own order; valid as long as the weight exists."""
    address, size = torch.ops.mkldnn.data_ptr(packed), torch.ops.mkldnn._nbytes(packed)
    return torch.frombuffer((ctypes.c_byte * size).from_address(address), dtype=torch.float32)


def _order(inputs: int) -> tuple[torch.Tensor, int] | None:
    """The index in a packed weight of each input of a block's outputs, [block, inputs], and the stride between blocks.

    None if the order cannot be found.
    """
    count = _TRIED_OUTPUTS * inputs
    if count >= _EXACT:
        return None
    tried = torch.arange(1, count + 1, dtype=torch.float32).view(_TRIED_OUTPUTS, inputs)
    packed = torch.ops.mkldnn._reorder_linear_weight(tried)
    values = _values(packed)
    filled = values.nonzero()[:, 0]  # there may be zeros between
    if len(filled) != count:
        return None
    place = torch.empty(count, dtype=torch.int64)
    place[values[filled].long() - 1] = filled
    place = place.view(_TRIED_OUTPUTS, inputs)
    for block in range(1, _TRIED_OUTPUTS // 2 + 1):
        if _TRIED_OUTPUTS % block:
            continue
        steps = place[block:] - place[:-block]
        if bool((steps == steps[0, 0]).all()):
            return place[:block].clone(), int(steps[0, 0])
    return None
