"""Integer weights of AWQ (Lin et al. 2023), GPTQ (Frantar et al. 2022) and compressed-tensors' `pack-quantized`.

All are (value − zero) · scale by groups of inputs, with values packed into 32-bit words. AWQ packs 8 neighbouring
outputs in a shuffled order, GPTQ neighbouring inputs, compressed-tensors neighbouring inputs in words of one output.
They are converted to one form: an output's values next to each other, low bits first.
"""

from __future__ import annotations

import torch

from engine.quantization.code_types import integers, pack
from engine.quantization.packed import PackedWeight

_LEAST_HALF, _MOST_HALF = 2.0**-14, 65504.0 / 16
"""Normal numbers of fp16, which 15 times as much is too."""
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The i-th half byte of a word -> which of 8 outputs it holds."""


def encode(weight: torch.Tensor, group: int) -> PackedWeight:
    """[outputs, inputs] as integers of 4 bits, a scale and a zero for each `group` of inputs. Raises ValueError if
    inputs are not whole groups.

    The smallest and the largest value of a group, and 0, are within the 16 values. Scales are rounded to 7 bits first,
    so that fp16 holds zero · scale exactly (`grouped_rows`). They are kept in fp16 unless one is beyond its normals.
    """
    outputs, inputs = weight.shape
    if inputs % group:
        raise ValueError(f"{inputs} inputs are not whole groups of {group}")
    groups = weight.float().view(outputs, -1, group)
    least, most = groups.amin(-1).clamp_(max=0.0), groups.amax(-1).clamp_(min=0.0)
    scales = (most - least) / 15
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    fraction = torch.frexp(scales).mantissa
    scales = (fraction * 128).round_() / 128 * (scales / fraction)  # a power of two, exactly
    if bool(((scales >= _LEAST_HALF) & (scales <= _MOST_HALF)).all()):
        scales = scales.half()
    zeros = (-least / scales.float()).round_().clamp_(0, 15)
    codes = (groups / scales.float()[..., None]).round_().add_(zeros[..., None]).clamp_(0, 15)
    return _integers(pack(codes.flatten(1), 4), scales, zeros.to(torch.int16), bits=4, inputs=inputs, size=group)


def _integers(
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    *,
    bits: int,
    inputs: int,
    size: int,
    group: torch.Tensor | None = None,
) -> PackedWeight:
    """The weight of these codes; without zeros the middle of the range is 0. `size`: inputs of a group in order."""
    middle = 1 << (bits - 1)
    if zeros is not None and bool((zeros == middle).all()):
        zeros = None
    if zeros is not None:
        zeros = zeros.to(torch.uint8) if int(zeros.max()) < 256 else zeros
        scales = scales.expand(len(codes), -1).contiguous()
    code_type = integers(bits, middle if zeros is None else 0)
    block = (len(codes) if len(scales) == 1 else 1, size)
    form = f"int{bits}" if scales.shape[1] == 1 else f"int{bits} g{size}"
    return PackedWeight(form, codes, code_type, scales, block, inputs, zeros, group).checked()


def _check_parts(words: torch.Tensor, zeros: torch.Tensor | None, scales: torch.Tensor) -> None:
    """Raise ValueError if words, zeros or scales have a wrong type or are no matrix, or scales are not finite."""
    for name, part in (("words", words), ("zeros", zeros)):
        if part is not None and part.dtype != torch.int32:
            raise ValueError(f"{name} are {part.dtype}, not 32-bit words")
    if not scales.is_floating_point():
        raise ValueError(f"scales are {scales.dtype}, not floating point")
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
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    return (words.int()[..., None] >> shifts) & ((1 << bits) - 1)


def stored_awq(words: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> PackedWeight:
    """The weight of words [inputs, outputs / 8], zeros [groups, outputs / 8] and scales [groups, outputs].

    Raises ValueError if shapes contradict each other.
    """
    _check_parts(words, zeros, scales)
    inputs, groups, outputs = words.shape[0], *scales.shape
    if words.shape[1] * 8 != outputs or zeros.shape != (groups, outputs // 8) or inputs % groups:
        raise ValueError(f"shapes {list(words.shape)}, {list(zeros.shape)} and {list(scales.shape)} do not fit")
    order = torch.tensor(_AWQ_ORDER, device=words.device).argsort()
    values = _unpack(words, 4)[..., order].reshape(inputs, outputs)
    zero = _unpack(zeros, 4)[..., order].reshape(groups, outputs)
    codes, zero = pack(values.t(), 4), zero.t().to(torch.int16).contiguous()
    return _integers(codes, scales.t().contiguous(), zero, bits=4, inputs=inputs, size=inputs // groups)


def stored_gptq(
    words: torch.Tensor,
    zeros: torch.Tensor,
    scales: torch.Tensor,
    group: torch.Tensor | None,
    *,
    bits: int,
    zero_offset: int,
) -> PackedWeight:
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
    codes, zero = pack(values.t(), bits), zero.t().to(torch.int16).contiguous()
    size, group = -(-inputs // groups), _out_of_order(group, inputs, groups)
    return _integers(codes, scales.t().contiguous(), zero, bits=bits, inputs=inputs, size=size, group=group)


def stored_packed(
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    shape: tuple[int, int],
    *,
    bits: int,
    group: torch.Tensor | None = None,
) -> PackedWeight:
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
    codes = pack(_unpack(words, bits).flatten(1)[:, :inputs], bits)
    size, group = -(-inputs // groups), _out_of_order(group, inputs, groups)
    return _integers(codes, scales, zero, bits=bits, inputs=inputs, size=size, group=group)


def _out_of_order(group: torch.Tensor | None, inputs: int, groups: int) -> torch.Tensor | None:
    """`group`, or None if inputs are in order of their groups, as they mostly are: that is faster to decode."""
    if group is None or torch.equal(group.long(), torch.arange(inputs, device=group.device) // -(-inputs // groups)):
        return None
    return group.long()
