"""Weights whose 4-bit codes stand for a table of 16 numbers, as bitsandbytes stores them: NF4 (Dettmers et al. 2023)
and its FP4.

The codes of a weight lie in one column, the first of a byte in its high half; blocks of so many neighbouring elements
share a scale. Scales may be bytes themselves, by a table of 256 numbers and scales of their own, plus an offset. A
tensor of bytes holds JSON that says the shape, the table's name and the sizes of blocks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch

from engine.quantization.code_types import CodeType
from engine.quantization.packed import PackedWeight

KINDS = ("nf4", "fp4")
_MOST_JSON = 4096
"""Bytes of JSON, at most."""
_MOST = 1 << 40
"""Elements of a weight, at most."""


@dataclass(frozen=True)
class QuantState:
    """What the JSON beside a weight says."""

    kind: str
    shape: tuple[int, int]
    block: int
    nested_block: int | None
    nested_offset: float

    @classmethod
    def read(cls, kind: str, stored: torch.Tensor) -> QuantState:
        """From the tensor of bytes. Raises ValueError that names a field."""
        if stored.dtype != torch.uint8 or stored.numel() > _MOST_JSON:
            raise ValueError(f"quant_state is {stored.numel()} elements of {stored.dtype}, not a few bytes of JSON")
        try:
            fields = json.loads(bytes(stored.flatten().tolist()))
        except (ValueError, RecursionError) as error:  # nested deeply
            raise ValueError(f"quant_state is not JSON: {str(error).splitlines()[0]}") from error
        if not isinstance(fields, dict) or fields.get("quant_type") != kind:
            raise ValueError(f"quant_state does not say quant_type {kind!r}")
        shape = fields.get("shape")
        if not isinstance(shape, list) or len(shape) != 2 or not all(_is_size(size) for size in shape):
            raise ValueError(f"quant_state: shape {shape!r} is not outputs and inputs")
        block, nested = (fields.get(name) for name in ("blocksize", "nested_blocksize"))
        if not _is_size(block) or not (nested is None or _is_size(nested)):
            raise ValueError(f"quant_state: blocksize {block!r} and nested_blocksize {nested!r} are not sizes")
        offset = fields.get("nested_offset", 0.0)
        if not isinstance(offset, int | float) or isinstance(offset, bool) or not abs(offset) < _MOST:
            raise ValueError(f"quant_state: nested_offset {offset!r} is not a number")
        return cls(kind, (shape[0], shape[1]), block, nested, float(offset))


def _is_size(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST


def _table(stored: torch.Tensor, count: int, name: str) -> torch.Tensor:
    if not stored.is_floating_point() or stored.shape != (count,) or not bool((stored.float().abs() <= 1).all()):
        raise ValueError(f"{name} is not a table of {count} numbers from −1 to 1")
    return stored.float()


def stored(
    codes: torch.Tensor,
    table: torch.Tensor,
    scales: torch.Tensor,
    state: QuantState,
    nested: tuple[torch.Tensor, torch.Tensor] | None,
) -> PackedWeight:
    """The weight of bytes [elements / 2, 1], its `table` of 16, and a scale for each block of elements.

    `nested`: the table of 256 and the scales of the scales, which are then bytes. Raises ValueError.
    """
    outputs, inputs = state.shape
    if inputs % state.block:
        raise ValueError(f"{inputs} inputs are not whole blocks of {state.block}")
    if codes.dtype != torch.uint8 or codes.shape != (outputs * inputs // 2, 1) or inputs % 2:
        raise ValueError(
            f"codes of shape {list(codes.shape)} and {codes.dtype} do not fit a weight of {outputs} x {inputs}"
        )
    groups = inputs // state.block
    if scales.shape != (outputs * groups,):
        raise ValueError(f"absmax of shape {list(scales.shape)} does not fit {outputs} x {groups} blocks")
    if nested is not None:
        scales = _denested(scales, *nested, state)
    if scales.dtype != torch.float32:
        raise ValueError(f"absmax is {scales.dtype}, not fp32")
    code_type = CodeType(tuple(_table(table, 16, "quant_map").tolist()))
    swapped = (codes << 4) | (codes >> 4)
    form = f"{state.kind} g{state.block}"
    return PackedWeight(
        form, swapped.view(outputs, -1), code_type, scales.view(outputs, groups), (1, state.block), inputs
    ).checked()


def _denested(codes: torch.Tensor, table: torch.Tensor, scales: torch.Tensor, state: QuantState) -> torch.Tensor:
    """Scales in fp32 from their bytes."""
    block = state.nested_block
    if block is None or codes.dtype != torch.uint8:
        raise ValueError(f"absmax is {codes.dtype} and nested_blocksize {block}: its own scales do not fit them")
    if scales.dtype != torch.float32 or scales.shape != (-(-len(codes) // block),):
        raise ValueError(f"nested_absmax of shape {list(scales.shape)} does not fit {len(codes)} scales")
    values = _table(table, 256, "nested_quant_map")[codes.long()]
    # A block may be said to be far longer than all the scales are: nothing of its size is made.
    return values * scales[torch.arange(len(codes), device=codes.device) // block] + state.nested_offset
