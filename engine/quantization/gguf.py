"""Weights of GGUF's types, blocks of a row's 32 or 256 elements, as packed weights: the same numbers in our order.

Q4_0, Q5_0, Q8_0: (code − zero) · d. Q4_1, Q5_1: code · d + m. The K types divide 256 elements into groups, whose
scales are integers: Q4_K and Q5_K: code · (d · scale) − dmin · minimum, of 32 elements; Q6_K: (code − 32) · (d ·
scale), of 16. d, m and dmin are in fp16, so that d · scale and its product with a code are exact in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from engine.quantization.code_types import integers, pack
from engine.quantization.packed import PackedWeight

_BLOCK, _SUPER_BLOCK = 32, 256


def _halves(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The numbers in fp16 at this byte of each block [..., bytes], [..., 1] in fp32."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16).float()


def _parts(bytes_: torch.Tensor, count: int) -> torch.Tensor:
    """[..., n] bytes → [..., count, n / count]."""
    return bytes_.reshape(*bytes_.shape[:-1], count, -1)


def _nibbles(bytes_: torch.Tensor) -> torch.Tensor:
    """[..., n] bytes → [..., 2 n] codes: first all low halves, then all high ones."""
    return torch.cat([bytes_ & 15, bytes_ >> 4], -1)


def _bits(bytes_: torch.Tensor, width: int) -> torch.Tensor:
    """[..., n] bytes → [..., 8 / width, n]: the first bits of all bytes, then the next ones."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8)
    return (bytes_[..., None, :] >> shifts[:, None]) & ((1 << width) - 1)


def _of_32(bits: int, minimum: bool) -> Callable[[torch.Tensor, str], PackedWeight]:
    """What reads blocks of 32 elements with codes of 4 or 5 bits."""

    def read(blocks: torch.Tensor, name: str) -> PackedWeight:
        at = 4 if minimum else 2
        high = blocks[..., at : at + 4] if bits == 5 else None
        codes = _nibbles(blocks[..., at + (0 if high is None else 4) :])
        if high is not None:  # bit i of the four bytes is the highest of code i
            each = (high[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1
            codes = codes | (each.flatten(-2) << 4)
        minimums = -_halves(blocks, 2)[..., 0] if minimum else None
        scales = blocks[..., :2].contiguous().view(torch.float16)[..., 0]
        zero = 0 if minimum else 1 << (bits - 1)
        return _weight(name, codes, scales, minimums, bits=bits, zero=zero)

    return read


def _q8_0(blocks: torch.Tensor, name: str) -> PackedWeight:
    scales = blocks[..., :2].contiguous().view(torch.float16)[..., 0]
    return _weight(name, blocks[..., 2:] ^ 128, scales, zero=128)


def _scales_and_minimums(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., 12] bytes → 8 scales and 8 minimums of 6 bits, as floats."""
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = torch.cat([first & 63, (third & 15) | ((first >> 6) << 4)], -1)
    minimums = torch.cat([second & 63, (third >> 4) | ((second >> 6) << 4)], -1)
    return scales.float(), minimums.float()


def _of_256(bits: int) -> Callable[[torch.Tensor, str], PackedWeight]:
    """What reads Q4_K and Q5_K."""

    def read(blocks: torch.Tensor, name: str) -> PackedWeight:
        scales, minimums = _scales_and_minimums(blocks[..., 4:16])
        scales, minimums = scales * _halves(blocks, 0), minimums * _halves(blocks, 2)
        codes = _nibbles(_parts(blocks[..., -128:], 4)).flatten(-2)
        if bits == 5:
            codes = codes | (_bits(blocks[..., 16:48], 1).flatten(-2) << 4)
        return _weight(name, codes, scales.flatten(-2), minimums.flatten(-2), bits=bits)

    return read


def _q6_k(blocks: torch.Tensor, name: str) -> PackedWeight:
    low, high = _parts(blocks[..., :128], 2), _parts(blocks[..., 128:192], 2)
    codes = _nibbles(low) | (_bits(high, 2).flatten(-2) << 4)
    scales = blocks[..., 192:208].contiguous().view(torch.int8).float() * _halves(blocks, 208)
    return _weight(name, codes.flatten(-2), scales.flatten(-2), zero=32, size=16)


def _weight(
    name: str,
    codes: torch.Tensor,
    scales: torch.Tensor,
    minimums: torch.Tensor | None = None,
    *,
    bits: int = 8,
    zero: int = 0,
    size: int = _BLOCK,
) -> PackedWeight:
    """The weight of codes [outputs, blocks, elements], and scales and minimums [outputs, groups]."""
    stored = 4 if bits == 4 else 8
    flat = codes.flatten(1)
    parts = (scales, minimums)
    if not all(bool(part.isfinite().all()) for part in parts if part is not None):
        raise ValueError("scales or minimums are not all finite")
    return PackedWeight(
        f"gguf {name.lower()}",
        pack(flat, stored) if stored == 4 else flat.contiguous(),
        integers(stored, zero),
        scales.contiguous(),
        (1, size),
        flat.shape[1],
        minimums=None if minimums is None else minimums.contiguous(),
    ).checked()


_READERS: Mapping[str, Callable[[torch.Tensor, str], PackedWeight]] = {
    "Q4_0": _of_32(4, minimum=False),
    "Q4_1": _of_32(4, minimum=True),
    "Q5_0": _of_32(5, minimum=False),
    "Q5_1": _of_32(5, minimum=True),
    "Q8_0": _q8_0,
    "Q4_K": _of_256(4),
    "Q5_K": _of_256(5),
    "Q6_K": _q6_k,
}


def stored_blocks(blocks: torch.Tensor, type_: str) -> PackedWeight:
    """The weight of bytes [outputs, blocks of a row, bytes of a block] of this type. Raises ValueError for scales that
    are not finite."""
    return _READERS[type_](blocks, type_)
