"""Draws tokens on the device by temperature, top-k, top-p and min-p: the tokens of `engine.sampling.sampler`.

A token's weight is exp((logit − highest) / temperature), as an integer in units of 2⁻⁴⁴ of the likeliest one's. Sums of
integers do not depend on their order, so a row's token is the same in any batch (E1), however the row is cut into
parts. Weights below half a unit count as 0; the reference's float64 sums differ from these by less than 10⁻¹³ of
the whole, and a token differs only where its random number falls into that difference.

The least logit that top-k or top-p keep is found without a sort, by its bits: logits are mapped to integers of the same
order, and each pass over a row finds `_DIGIT` more bits of the threshold, from the sums of the weights (for top-k: the
counts) of the tokens that share the bits found so far.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from protocol.requests import Sampling

_PART = 4_096
"""Tokens that a program looks at."""
_DIGIT: tl.constexpr = tl.constexpr(4)
_DIGITS: tl.constexpr = tl.constexpr(16)
_ONE: tl.constexpr = tl.constexpr(1 << 44)
"""The weight of the likeliest token. With 2¹⁸ tokens a sum has 62 bits."""
WORDS: tl.constexpr = tl.constexpr(5)
"""64-bit words of a row of `parameters`: seed; bits of temperature, top-p and min-p; top-k."""
_TOP_K: tl.constexpr = tl.constexpr(0)
_TOP_P: tl.constexpr = tl.constexpr(1)

Parameters = NDArray[np.int64]


def parameters_of(sampling: Sampling) -> Parameters:
    """int64 [WORDS]."""
    row = np.zeros(WORDS.value, np.int64)
    row[0], row[4] = np.uint64(sampling.seed % 2**64).astype(np.int64), sampling.top_k
    row[1:4] = np.array([sampling.temperature, sampling.top_p, sampling.min_p]).view(np.int64)
    return row


@dataclass(frozen=True)
class DrawnRows:
    """Which rows of a step are drawn, int32 [drawn], and how: int64 [drawn, WORDS], on the host and there."""

    given: Parameters
    at: torch.Tensor
    words: torch.Tensor


class DeviceSampler:
    """Memory for at most `rows` rows of logits of `vocabulary` tokens, used again by each call."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self.vocabulary = vocabulary
        self._parts = triton.cdiv(vocabulary, _PART)
        self._sums = torch.empty(rows, self._parts, _DIGITS.value, dtype=torch.int64, device=device)
        self._found = torch.empty(rows, 3, dtype=torch.int64, device=device)
        """Of each row: the bits of the threshold that are known, the sum above them, and what is to be reached."""
        self._least = torch.empty(rows, dtype=torch.int64, device=device)
        """The least logit that a row keeps, as an integer."""

    def __call__(
        self,
        logits: torch.Tensor,
        drawn: DrawnRows,
        positions: torch.Tensor,
        slots: torch.Tensor,
        tokens: torch.Tensor,
        latest: torch.Tensor,
        *,
        changed: bool = False,
    ) -> None:
        """Replace the likeliest tokens of the rows `drawn`, in `tokens` and by slot in `latest`.

        `logits` [rows, at least the vocabulary]: of all rows, or where they are `changed` of the drawn ones alone.
        All else int32 by row: `positions` of the tokens before those that are drawn; −1 for padding. Rows whose token
        is negative stay, and so do those whose temperature is 0.
        """
        given, rows = drawn.given, len(drawn.given)
        # What 16 bits hold shares all further bits.
        levels = (16 if logits.dtype == torch.bfloat16 else 32) // _DIGIT.value
        on = logits, drawn.at, drawn.words, tokens, self._least, self._sums
        self._least[:rows].fill_(-1)
        for kind, limited in ((_TOP_K, given[:, 4] > 0), (_TOP_P, given[:, 2].view(np.float64) < 1.0)):
            if not limited.any():
                continue
            for level in range(levels):
                _sum_by_digit[(rows, self._parts)](
                    *on, self._found, logits.stride(0), self._parts,
                    level, KIND=kind, VOCABULARY=self.vocabulary, PART=_PART, CHANGED=changed, num_warps=8,
                )  # fmt: skip
                _choose_digit[(rows,)](
                    drawn.words, self._sums, self._found, self._least, self._parts,
                    level, levels, KIND=kind, PARTS_PADDED=triton.next_power_of_2(self._parts), num_warps=4,
                )  # fmt: skip
        _sum_kept[(rows, self._parts)](
            *on, logits.stride(0), self._parts, VOCABULARY=self.vocabulary, PART=_PART, CHANGED=changed, num_warps=8
        )
        _draw[(rows,)](
            *on, positions, slots, latest, logits.stride(0), self._parts,
            VOCABULARY=self.vocabulary, PART=_PART, PARTS_PADDED=triton.next_power_of_2(self._parts), CHANGED=changed,
            num_warps=8,
        )  # fmt: skip


@triton.jit
def _number(words, row, at: tl.constexpr):
    return tl.load(words + row * WORDS + at).to(tl.float64, bitcast=True)


@triton.jit
def _is_limited(words, row, KIND: tl.constexpr):
    if KIND == _TOP_K:
        return tl.load(words + row * WORDS + 4) > 0
    return _number(words, row, 2) < 1.0


@triton.jit
def _in_order(values):
    """int64 in the order of these fp32 values, from 0 to 2³² − 1."""
    # −0 and 0 are the same logit.
    bits = (values + 0.0).to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return tl.where(bits >= 0x80000000, 0xFFFFFFFF - bits, bits + 0x80000000)


@triton.jit
def _exp(x):
    """exp of float64 x ≤ 0, to 10⁻¹⁵ of itself."""
    x = tl.maximum(x, -700.0)
    times = tl.floor(x * 1.4426950408889634 + 0.5)
    rest = (x - times * 0.693147180369123816490) - times * 1.90821492927058770002e-10
    # Taylor's series: |rest| is at most ln 2 / 2.
    sum = rest * (1.0 / 13.0) + 1.0
    for at in tl.static_range(12, 0, -1):
        sum = sum * rest * (1.0 / at) + 1.0
    power = ((times.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    return sum * power


@triton.jit
def _weights(values, highest, temperature, least, min_p, inside):
    """int64 weights of fp32 logits; 0 for those that are not kept."""
    weight = _exp((values - highest).to(tl.float64) / temperature)
    kept = inside & (weight >= min_p) & (_in_order(values) >= least)
    return tl.where(kept, (weight * _ONE + 0.5).to(tl.int64), 0)


@triton.jit
def _load(logits, row, token, inside, row_stride):
    # What lies outside must be comparable.
    return tl.load(logits + row * row_stride + token, mask=inside, other=-1e38).to(tl.float32)


@triton.jit(do_not_specialize=["level"])
def _sum_by_digit(
    logits, at, words, tokens, least, sums, found, row_stride, parts, level,
    KIND: tl.constexpr, VOCABULARY: tl.constexpr, PART: tl.constexpr, CHANGED: tl.constexpr,
):  # fmt: skip
    """Of the tokens that begin with the bits found so far: the sum by their next digit."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = _number(words, row, 1)
    there = tl.load(at + row).to(tl.int64)
    chosen = tl.load(tokens + there)
    if (temperature == 0.0) | (chosen < 0) | (not _is_limited(words, row, KIND)):
        return
    token = part * PART + tl.arange(0, PART)
    inside = token < VOCABULARY
    values = _load(logits, row if CHANGED else there, token, inside, row_stride)
    place = _in_order(values)
    shift = 32 - _DIGIT * (level + 1)
    if level > 0:
        inside = inside & ((place >> (shift + _DIGIT)) == tl.load(found + row * 3))
    if KIND == _TOP_K:
        summed = inside.to(tl.int64)
    else:
        highest = _load(logits, row if CHANGED else there, chosen, chosen >= 0, row_stride)
        summed = _weights(values, highest, temperature, tl.load(least + row), 0.0, inside)
    digit = (place >> shift) & (_DIGITS - 1)
    for each in tl.static_range(_DIGITS):
        tl.store(sums + ((row * parts + part) * _DIGITS) + each, tl.sum(tl.where(digit == each, summed, 0), 0))


@triton.jit(do_not_specialize=["level", "levels"])
def _choose_digit(
    words, sums, found, least, parts, level, levels, KIND: tl.constexpr, PARTS_PADDED: tl.constexpr
):  # fmt: skip
    """The next digit of the threshold: the largest at which what is kept reaches what it is to reach."""
    row = tl.program_id(0).to(tl.int64)
    if (_number(words, row, 1) == 0.0) | (not _is_limited(words, row, KIND)):
        return
    part, digit = tl.arange(0, PARTS_PADDED), tl.arange(0, _DIGITS)
    there = sums + ((row * parts + part[:, None]) * _DIGITS) + digit[None, :]
    by_digit = tl.sum(tl.load(there, mask=part[:, None] < parts, other=0), 0)
    whole = tl.sum(by_digit, 0)
    from_here = whole - tl.cumsum(by_digit, 0) + by_digit
    known, above = whole * 0, whole * 0
    if level == 0:
        if KIND == _TOP_K:
            reach = tl.load(words + row * WORDS + 4)
        else:
            reach = tl.ceil(_number(words, row, 2) * whole.to(tl.float64)).to(tl.int64)
        # All of it is enough, however it is rounded.
        reach = tl.minimum(reach, whole)
        tl.store(found + row * 3 + 2, reach)
    else:
        known = tl.load(found + row * 3)
        above = tl.load(found + row * 3 + 1)
        reach = tl.load(found + row * 3 + 2)
    # Digit 0 always reaches it.
    chosen = tl.max(tl.where(above + from_here >= reach, digit, 0), 0).to(tl.int64)
    above += tl.sum(tl.where(digit > chosen, by_digit, 0), 0)
    known = (known << _DIGIT) + chosen
    tl.store(found + row * 3, known)
    tl.store(found + row * 3 + 1, above)
    if level + 1 == levels:
        bound = known << (32 - _DIGIT * levels)
        tl.store(least + row, tl.maximum(tl.load(least + row), bound))


@triton.jit
def _sum_kept(
    logits, at, words, tokens, least, sums, row_stride, parts,
    VOCABULARY: tl.constexpr, PART: tl.constexpr, CHANGED: tl.constexpr,
):  # fmt: skip
    """The sum of the weights that are kept, by part."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = _number(words, row, 1)
    there = tl.load(at + row).to(tl.int64)
    chosen = tl.load(tokens + there)
    if (temperature == 0.0) | (chosen < 0):
        return
    token = part * PART + tl.arange(0, PART)
    inside = token < VOCABULARY
    values = _load(logits, row if CHANGED else there, token, inside, row_stride)
    highest = _load(logits, row if CHANGED else there, chosen, chosen >= 0, row_stride)
    weights = _weights(values, highest, temperature, tl.load(least + row), _number(words, row, 3), inside)
    tl.store(sums + ((row * parts + part) * _DIGITS), tl.sum(weights, 0))


@triton.jit
def _uniform(seed, position):
    """`engine.sampling.counter_random.uniform`."""
    key0, key1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    c0, c1 = position & 0xFFFFFFFF, (position >> 32) & 0xFFFFFFFF
    c2, c3 = c0 * 0, c0 * 0
    for _ in tl.static_range(10):
        product0, product1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            ((product1 >> 32) & 0xFFFFFFFF) ^ c1 ^ key0,
            product1 & 0xFFFFFFFF,
            ((product0 >> 32) & 0xFFFFFFFF) ^ c3 ^ key1,
            product0 & 0xFFFFFFFF,
        )
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return (((c0 << 16) + (c1 >> 16)).to(tl.float64) + 0.5) * 3.552713678800501e-15


@triton.jit
def _draw(
    logits, at, words, tokens, least, sums, positions, slots, latest, row_stride, parts,
    VOCABULARY: tl.constexpr, PART: tl.constexpr, PARTS_PADDED: tl.constexpr, CHANGED: tl.constexpr,
):  # fmt: skip
    """The first token at which the sum of the weights passes the row's random part of the whole."""
    row = tl.program_id(0).to(tl.int64)
    temperature = _number(words, row, 1)
    there = tl.load(at + row).to(tl.int64)
    chosen = tl.load(tokens + there)
    if (temperature == 0.0) | (chosen < 0):
        return
    part = tl.arange(0, PARTS_PADDED)
    by_part = tl.load(sums + ((row * parts + part) * _DIGITS), mask=part < parts, other=0)
    until = tl.cumsum(by_part, 0)
    position = tl.load(positions + there).to(tl.int64) + 1
    whole = tl.sum(by_part, 0)
    target = (_uniform(tl.load(words + row * WORDS), position) * whole.to(tl.float64)).to(tl.int64)
    target = tl.minimum(target, whole - 1)
    before = tl.sum(tl.where(until <= target, by_part, 0), 0)
    chosen_part = tl.sum((until <= target).to(tl.int32), 0)
    token = chosen_part * PART + tl.arange(0, PART)
    inside = token < VOCABULARY
    values = _load(logits, row if CHANGED else there, token, inside, row_stride)
    highest = _load(logits, row if CHANGED else there, chosen, chosen >= 0, row_stride)
    weights = _weights(values, highest, temperature, tl.load(least + row), _number(words, row, 3), inside)
    drawn = chosen_part * PART + tl.sum((before + tl.cumsum(weights, 0) <= target).to(tl.int32), 0)
    tl.store(tokens + there, drawn)
    if position > 0:
        tl.store(latest + tl.load(slots + there), drawn)
