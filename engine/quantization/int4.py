"""Integer weights of AWQ (Lin et al. 2023), GPTQ (Frantar et al. 2022) and compressed-tensors' `pack-quantized`.

All are (value − zero) · scale by groups of inputs, with values packed into 32-bit words. AWQ packs 8 neighbouring
outputs in a shuffled order, GPTQ neighbouring inputs, compressed-tensors neighbouring inputs in words of one output.
They are converted to one form: an output's values next to each other, low bits first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.quantization.packed import check_scales, numbers, part_values

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The i-th half byte of a word -> which of 8 outputs it holds."""


@dataclass(frozen=True)
class IntWeight:
    """Bytes [outputs, inputs · bits / 8, rounded up], scales [1 or outputs, groups], zeros [outputs, groups].

    Without zeros the middle of the range is 0. `group` [inputs]: each input's group; in order if None.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    inputs: int
    bits: int
    group: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.inputs

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.codes, self.scales, self.zeros, self.group) if part is not None)

    @property
    def step(self) -> int:
        return 1

    def rows(self, start: int, stop: int) -> torch.Tensor:
        table = part_values(tuple(map(float, range(1 << self.bits))), self.codes.device)
        values = numbers(self.codes[start:stop], table)[:, : self.inputs].contiguous()
        scales = (self.scales if len(self.scales) == 1 else self.scales[start:stop]).float()
        groups = scales.shape[1]
        zeros: torch.Tensor | None = None if self.zeros is None else self.zeros[start:stop].float()
        grouped = values
        if self.group is None and self.inputs % groups == 0:
            grouped = values.view(len(values), groups, -1)
            scales, zeros = scales[..., None], None if zeros is None else zeros[..., None]
        else:
            group = torch.arange(self.inputs, device=values.device) // -(-self.inputs // groups)
            group = group if self.group is None else self.group
            scales, zeros = scales[:, group], None if zeros is None else zeros[:, group]
        grouped.sub_(float(1 << (self.bits - 1)) if zeros is None else zeros).mul_(scales)
        return values

    def to(self, device: torch.device) -> IntWeight:
        codes, scales, zeros, group = (
            None if part is None else part.to(device, copy=True)
            for part in (self.codes, self.scales, self.zeros, self.group)
        )
        assert codes is not None
        assert scales is not None
        return IntWeight(codes, scales, zeros, self.inputs, self.bits, group)


def _check_parts(words: torch.Tensor, zeros: torch.Tensor | None, scales: torch.Tensor) -> None:
    """Raise ValueError if words, zeros or scales have a wrong type or are no matrix, or scales are not finite."""
    for name, part in (("words", words), ("zeros", zeros)):
        if part is not None and part.dtype != torch.int32:
            raise ValueError(f"{name} are {part.dtype}, not 32-bit words")
    check_scales(scales)
    for name, part in (("words", words), ("zeros", zeros), ("scales", scales)):
        if part is not None and (part.dim() != 2 or not part.numel()):
            raise ValueError(f"{name} of shape {list(part.shape)} are not those of a weight")


def _check_group(group: torch.Tensor | None, name: str, inputs: int, groups: int) -> None:
    """Raise ValueError unless `group` gives a group for each input."""
    if group is None:
        return
    whole = not group.is_floating_point() and group.dtype != torch.bool
    if not whole or group.shape != (inputs,) or not 0 <= int(group.min()) <= int(group.max()) < groups:
        raise ValueError(f"{name} does not give one of {groups} groups for each of {inputs} inputs")


def _unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """[..., n] 32-bit words → [..., n, 32 / bits] values, low bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (words.int()[..., None] >> shifts) & ((1 << bits) - 1)


def _pack(values: torch.Tensor, bits: int) -> torch.Tensor:
    """[outputs, inputs] values → bytes [outputs, inputs · bits / 8, rounded up], low bits first."""
    per_byte = 8 // bits
    padded = torch.nn.functional.pad(values.to(torch.uint8), (0, -values.shape[1] % per_byte))
    parts = padded.view(len(values), -1, per_byte) << torch.arange(0, 8, bits, dtype=torch.uint8)
    codes: torch.Tensor = parts.sum(-1, dtype=torch.uint8)
    return codes


def stored_awq(words: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> IntWeight:
    """The weight of words [inputs, outputs / 8], zeros [groups, outputs / 8] and scales [groups, outputs].

    Raises ValueError if shapes contradict each other.
    """
    _check_parts(words, zeros, scales)
    inputs, groups, outputs = words.shape[0], *scales.shape
    if words.shape[1] * 8 != outputs or zeros.shape != (groups, outputs // 8) or inputs % groups:
        raise ValueError(f"shapes {list(words.shape)}, {list(zeros.shape)} and {list(scales.shape)} do not fit")
    order = torch.tensor(_AWQ_ORDER).argsort()
    values = _unpack(words, 4)[..., order].reshape(inputs, outputs)
    zero = _unpack(zeros, 4)[..., order].reshape(groups, outputs)
    return IntWeight(_pack(values.t(), 4), scales.t().contiguous(), zero.t().to(torch.int16), inputs, 4)


def stored_gptq(
    words: torch.Tensor,
    zeros: torch.Tensor,
    scales: torch.Tensor,
    group: torch.Tensor | None,
    *,
    bits: int,
    zero_offset: int,
) -> IntWeight:
    """The weight of words [inputs · bits / 32, outputs], zeros [groups, outputs · bits / 32] and scales [groups,
    outputs].

    `group` [inputs]: each input's group; in order if None. `zero_offset`: what the file format subtracted from zeros (1
    in its first version). Raises ValueError for 3 bits and for contradictory shapes.
    """
    if bits not in {2, 4, 8}:
        raise ValueError(f"{bits} bits are not supported (2, 4 and 8 are)")
    _check_parts(words, zeros, scales)
    per_word = 32 // bits
    inputs, groups, outputs = words.shape[0] * per_word, *scales.shape
    if words.shape[1] != outputs or zeros.shape != (groups, outputs // per_word):
        raise ValueError(f"shapes {list(words.shape)}, {list(zeros.shape)} and {list(scales.shape)} do not fit")
    _check_group(group, "g_idx", inputs, groups)
    values = _unpack(words, bits).transpose(1, 2).reshape(inputs, outputs)
    zero = _unpack(zeros, bits).reshape(groups, outputs) + zero_offset
    codes, kept = _pack(values.t(), bits), zero.t().to(torch.int16)
    return IntWeight(codes, scales.t().contiguous(), kept, inputs, bits, _out_of_order(group, inputs, groups))


def stored_packed(
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    shape: tuple[int, int],
    *,
    bits: int,
    group: torch.Tensor | None = None,
) -> IntWeight:
    """The weight of `shape` (outputs, inputs) from words [outputs, inputs · bits / 32, rounded up], which hold values
    plus 2^(bits − 1).

    `scales`: [1] (per tensor), [outputs, 1] (per channel) or [outputs, groups]. `zeros`: [outputs · bits / 32, rounded
    up; groups], packed along the outputs; None if symmetric. `group` [inputs]: each input's group; in order if None or
    all −1. Raises ValueError for contradictory shapes and for bits that do not fill a word.
    """
    if bits not in {2, 4, 8}:
        raise ValueError(f"{bits} bits are not supported (2, 4 and 8 are)")
    (outputs, inputs), per_word = shape, 32 // bits
    scales = scales.reshape(1, 1) if scales.numel() == 1 else scales
    _check_parts(words, zeros, scales)
    if words.shape != (outputs, -(-inputs // per_word)):
        raise ValueError(f"words of shape {list(words.shape)} do not fit a weight of {outputs} x {inputs}")
    if scales.dim() != 2 or scales.shape[0] not in {1, outputs} or scales.shape[1] > inputs:
        raise ValueError(f"scales of shape {list(scales.shape)} do not fit a weight of {outputs} x {inputs}")
    groups = scales.shape[1]
    if group is not None and bool((group == -1).all()):
        group = None
    _check_group(group, "weight_g_idx", inputs, groups)
    zero = None
    if zeros is not None:
        if zeros.shape != (-(-outputs // per_word), groups):
            raise ValueError(
                f"zero points of shape {list(zeros.shape)} do not fit {outputs} outputs in {groups} groups"
            )
        zero = _unpack(zeros.t(), bits).flatten(1)[:, :outputs].t().to(torch.int16)
    codes = _pack(_unpack(words, bits).flatten(1)[:, :inputs], bits)
    return IntWeight(codes, scales, zero, inputs, bits, _out_of_order(group, inputs, groups))


def _out_of_order(group: torch.Tensor | None, inputs: int, groups: int) -> torch.Tensor | None:
    """`group`, or None if inputs are in order of their groups, as they mostly are: that is faster to decode."""
    if group is None or torch.equal(group.long(), torch.arange(inputs) // -(-inputs // groups)):
        return None
    return group.long()
