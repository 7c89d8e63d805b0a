"""A quantized weight, which stays in its stored form and is decoded a few outputs at a time.

All formats are one: *a weight is the number of the model's computing type to which (code − zero) · scale − minimum
rounds*. They differ in the type of their codes, in how many outputs and inputs share a scale, and in whether there are
zeros or minimums. So whatever multiplies with decoded weights has the same bits as what decodes them on its way.

NVFP4 has a second scale for the whole tensor. It multiplies the sums of products, not the weights (`output_scales`):
these are then numbers of few bits, which every computing type holds exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from engine.quantization.code_types import E8M0, CodeType, numbers

_LARGEST = 3.3e38
"""A weight is at most this, so that it is finite in each computing type."""
_DECODED_ELEMENTS = 1 << 20
"""Elements that are decoded at a time into a whole weight."""


class Decodable(Protocol):
    """A weight in few bits in some order: `PackedWeight` says what its members are."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def step(self) -> int: ...

    @property
    def output_scales(self) -> torch.Tensor | None: ...

    def rows(self, start: int, stop: int) -> torch.Tensor: ...


@dataclass(frozen=True)
class PackedWeight:
    """A weight [outputs, inputs] in codes.

    `form`: the name of its format. `codes`: bytes [outputs, codes of all inputs]. `scales`, `zeros` and `minimums`:
    [blocks of outputs, groups of inputs], of `block` = (outputs, inputs) each, the last ones cut short; scales in bytes
    are powers of two (e8m0). Zeros are numbers of codes, minimums are subtracted from what is scaled. `group` [inputs]:
    each input's group, in order if None. `output_scales` [outputs]: factors of its products.
    """

    form: str
    codes: torch.Tensor
    code_type: CodeType
    scales: torch.Tensor
    block: tuple[int, int]
    inputs: int
    zeros: torch.Tensor | None = None
    group: torch.Tensor | None = None
    output_scales: torch.Tensor | None = None
    minimums: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.codes.shape[0], self.inputs

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        parts = (self.codes, self.scales, self.zeros, self.minimums, self.group, self.output_scales)
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def step(self) -> int:
        """How many outputs share scales: `rows` begins and ends at multiples of it, or at the last output."""
        return 1 if len(self.scales) == 1 else self.block[0]

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """The outputs `start`..`stop` decoded, [stop − start, inputs] in fp32, contiguous and the caller's own.

        Not multiplied by `output_scales`.
        """
        values = numbers(self.codes[start:stop], self.code_type)[:, : self.inputs].contiguous()
        scales = _numbers_of_scales(self._of_outputs(self.scales, start, stop))
        zeros, minimums = (
            None if part is None else self._of_outputs(part, start, stop).float()
            for part in (self.zeros, self.minimums)
        )
        grouped = values
        spread: tuple[Any, ...] = (...,)
        if self.group is None and scales.shape[1] * self.block[1] == self.inputs:
            grouped = values.view(len(values), -1, self.block[1])
            spread = (..., None)
        elif scales.shape[1] > 1:
            group = self.group
            if group is None:
                group = torch.arange(self.inputs, device=values.device) // self.block[1]
            spread = (slice(None), group)
        if zeros is not None:
            grouped.sub_(zeros[spread])
        grouped.mul_(scales[spread])
        if minimums is not None:
            grouped.sub_(minimums[spread])
        return values

    def in_rows(self, rows: torch.Tensor) -> PackedWeight:
        """The weight of the outputs `rows`, in that order. Each output must have its own scales."""
        parts = {
            name: part[rows]
            for name in ("codes", "scales", "zeros", "minimums", "output_scales")
            if (part := getattr(self, name)) is not None
        }
        return replace(self, **parts)

    def _of_outputs(self, part: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """The scales or zeros of these outputs, a row for each of them or one for all."""
        if len(part) == 1:
            return part
        outputs = self.block[0]
        if outputs == 1:
            return part[start:stop]
        return part[start // outputs : -(-stop // outputs)].repeat_interleave(outputs, 0)[: stop - start]

    def to(self, device: torch.device) -> PackedWeight:
        """A copy on the device."""
        parts = {
            name: part.to(device, copy=True)
            for name in ("codes", "scales", "zeros", "minimums", "group", "output_scales")
            if (part := getattr(self, name)) is not None
        }
        return replace(self, **parts)

    def checked(self) -> PackedWeight:
        """Itself. Raises ValueError for scales that are not finite, or weights that would not be."""
        if self.scales.dtype != torch.uint8 and not self.scales.is_floating_point():
            raise ValueError(f"scales are {self.scales.dtype}, not floating point")
        scales = _numbers_of_scales(self.scales)
        if not bool(scales.isfinite().all()):
            raise ValueError("scales are not all finite")
        zero = 0.0 if self.zeros is None else float(self.zeros.abs().max())
        minimum = 0.0 if self.minimums is None else float(self.minimums.abs().max())
        outer = 1.0
        if self.output_scales is not None:
            if not bool((self.output_scales.isfinite() & (self.output_scales > 0)).all()):
                raise ValueError("the tensor's scale is not a finite number above 0")
            outer = max(1.0, float(self.output_scales.max()))
        if not ((self.code_type.largest + zero) * float(scales.abs().max()) + minimum) * outer <= _LARGEST:
            raise ValueError("scales are too large: a weight would not be finite")
        return self


def _numbers_of_scales(scales: torch.Tensor) -> torch.Tensor:
    return numbers(scales, E8M0) if scales.dtype == torch.uint8 else scales.float()


def decode_into(weight: PackedWeight, into: torch.Tensor, *, folded: bool) -> None:
    """Decode a whole weight into memory [outputs, inputs] of any type. `folded`: multiplied by its output scales."""
    outputs, inputs = weight.shape
    tile = -(-max(1, _DECODED_ELEMENTS // inputs) // weight.step) * weight.step
    for start in range(0, outputs, tile):
        stop = min(start + tile, outputs)
        rows = weight.rows(start, stop)
        if folded and weight.output_scales is not None:
            rows.mul_(weight.output_scales[start:stop, None])
        into[start:stop] = rows


def decoded(weight: PackedWeight) -> torch.Tensor:
    """The whole weight, [outputs, inputs] in fp32, multiplied by its output scales."""
    whole = torch.empty(weight.shape, dtype=torch.float32, device=weight.codes.device)
    decode_into(weight, whole, folded=True)
    return whole


def output_scales(pieces: Sequence[Decodable | None], outputs: Sequence[int] = ()) -> torch.Tensor | None:
    """The factors of all outputs of fused weights, 1 for those that have none; None if no weight has any.

    `outputs`: how many each has, needed where one is not packed (None).
    """
    with_factors = [piece.output_scales for piece in pieces if piece is not None and piece.output_scales is not None]
    if not with_factors:
        return None
    sizes = outputs or [piece.shape[0] for piece in pieces if piece is not None]
    return torch.cat(
        [
            with_factors[0].new_ones(size) if piece is None or piece.output_scales is None else piece.output_scales
            for piece, size in zip(pieces, sizes, strict=True)
        ]
    )
