"""Integer weights of AWQ (Lin et al. 2023), GPTQ (Frantar et al. 2022) and compressed-tensors' `pack-quantized`.

All are (value − zero) · scale by groups of inputs, and pack values into 32-bit words: AWQ 8 neighbouring outputs in a
shuffled order, the others neighbouring inputs in order; compressed-tensors beside each other in an output's own words.
"""

from __future__ import annotations

import torch

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of 8 outputs the i-th half byte of a word holds."""


def _unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """[..., n] 32-bit words → [..., n, 32 / bits] values, those of the low bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (words.int()[..., None] >> shifts) & ((1 << bits) - 1)


def decode_awq(words: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[outputs, inputs] in fp32 of words [inputs, outputs / 8], zeros [groups, outputs / 8], scales [groups, outputs].

    Raises ValueError where the shapes contradict each other.
    """
    inputs, groups, outputs = words.shape[0], *scales.shape
    if words.shape[1] * 8 != outputs or zeros.shape != (groups, outputs // 8) or inputs % groups:
        raise ValueError(f"shapes {list(words.shape)}, {list(zeros.shape)} and {list(scales.shape)} do not fit")
    order = torch.tensor(_AWQ_ORDER).argsort()
    values = _unpack(words, 4)[..., order].reshape(inputs, outputs)
    zero = _unpack(zeros, 4)[..., order].reshape(groups, outputs)
    group = torch.arange(inputs) // (inputs // groups)
    return ((values - zero[group]).float() * scales.float()[group]).t()


def decode_gptq(
    words: torch.Tensor,
    zeros: torch.Tensor,
    scales: torch.Tensor,
    group: torch.Tensor | None,
    *,
    bits: int,
    zero_offset: int,
) -> torch.Tensor:
    """[outputs, inputs] in fp32 of words [inputs · bits / 32, outputs] and zeros [groups, outputs · bits / 32].

    `scales` [groups, outputs]; `group` [inputs] is each input's group, in order if None; `zero_offset` is what the
    file format took from zeros (1 in its first version). Raises ValueError for 3 bits and for contradictory shapes.
    """
    if bits not in {2, 4, 8}:
        raise ValueError(f"{bits} bits are not supported (2, 4 and 8 are)")
    per_word = 32 // bits
    inputs, groups, outputs = words.shape[0] * per_word, *scales.shape
    if words.shape[1] != outputs or zeros.shape != (groups, outputs // per_word):
        raise ValueError(f"shapes {list(words.shape)}, {list(zeros.shape)} and {list(scales.shape)} do not fit")
    if group is None:
        group = torch.arange(inputs) // -(-inputs // groups)
    elif group.shape != (inputs,) or not 0 <= int(group.min()) <= int(group.max()) < groups:
        raise ValueError(f"g_idx does not give one of {groups} groups for each of {inputs} inputs")
    values = _unpack(words, bits).transpose(1, 2).reshape(inputs, outputs)
    zero = _unpack(zeros, bits).reshape(groups, outputs) + zero_offset
    return ((values - zero[group.long()]).float() * scales.float()[group.long()]).t()


def decode_packed(
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    shape: tuple[int, int],
    *,
    bits: int,
    group: torch.Tensor | None = None,
) -> torch.Tensor:
    """[outputs, inputs] = `shape` in fp32 of words [outputs, inputs · bits / 32, rounded up], values less 2^(bits − 1).

    `scales` is [1] (per tensor), [outputs, 1] (per channel) or [outputs, groups]; `zeros` [outputs · bits / 32, rounded
    up; groups], packed along the outputs, or None if symmetric; `group` [inputs] is each input's group, in order if
    None or all −1. Raises ValueError where the shapes contradict each other and for bits that do not fill a word.
    """
    if bits not in {2, 4, 8}:
        raise ValueError(f"{bits} bits are not supported (2, 4 and 8 are)")
    (outputs, inputs), per_word = shape, 32 // bits
    scales = scales.float().reshape(1, 1) if scales.numel() == 1 else scales.float()
    if words.shape != (outputs, -(-inputs // per_word)):
        raise ValueError(f"words of shape {list(words.shape)} do not fit a weight of {outputs} x {inputs}")
    if scales.dim() != 2 or scales.shape[0] not in {1, outputs} or scales.shape[1] > inputs:
        raise ValueError(f"scales of shape {list(scales.shape)} do not fit a weight of {outputs} x {inputs}")
    groups = scales.shape[1]
    if group is None or bool((group == -1).all()):
        group = torch.arange(inputs) // -(-inputs // groups)
    elif group.shape != (inputs,) or not 0 <= int(group.min()) <= int(group.max()) < groups:
        raise ValueError(f"weight_g_idx does not give one of {groups} groups for each of {inputs} inputs")
    values = _unpack(words, bits).flatten(1)[:, :inputs]
    if zeros is None:
        zero = torch.full((1, groups), 1 << (bits - 1))
    elif zeros.shape != (-(-outputs // per_word), groups):
        raise ValueError(f"zero points of shape {list(zeros.shape)} do not fit {outputs} outputs in {groups} groups")
    else:
        zero = _unpack(zeros.t(), bits).flatten(1)[:, :outputs].t()
    return (values - zero[:, group.long()]).float() * scales[:, group.long()]
