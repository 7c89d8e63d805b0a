"""Integer weights of AWQ (Lin et al. 2023) and GPTQ (Frantar et al. 2022): (value − zero) · scale by groups of inputs.

Both pack values into 32-bit words: AWQ 8 neighbouring outputs in a shuffled order, GPTQ neighbouring inputs in order.
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
