"""Applies grammars' masks to changed logits on the device: `engine.sampling.logit_shaping`, bit by bit.

A mask is a row of 32-bit words, as the grammar's library fills it: a bit for each token, the lowest one first. What it
does not allow becomes minus infinity. If all that it allows was forbidden before, it becomes 0: the grammar decides.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_PART = 4_096
"""Tokens that a program looks at."""
_WORD: tl.constexpr = tl.constexpr(32)


def words_of(vocabulary: int) -> int:
    """How many words the mask of so many tokens has."""
    return -(-vocabulary // _WORD.value)


def apply_masks(values: torch.Tensor, masks: torch.Tensor, rows: torch.Tensor, which: torch.Tensor) -> None:
    """Put row `rows[i]` of `values`, fp32 [rows, vocabulary], under mask `which[i]`; both int32, no row twice.

    `masks` int32 [masks, words]; tokens behind the last word are forbidden. NaN stays NaN.
    """
    many, vocabulary = len(rows), values.shape[1]
    parts = triton.cdiv(vocabulary, _PART)
    # By part of each row: whether anything is left.
    left = torch.empty(many, parts, dtype=torch.int32, device=values.device)
    given = values, masks, rows, which, left, values.stride(0), masks.shape[1], parts
    _forbid[(many, parts)](*given, VOCABULARY=vocabulary, PART=_PART, num_warps=8)
    _decide[(many, parts)](
        *given, VOCABULARY=vocabulary, PART=_PART, PARTS_PADDED=triton.next_power_of_2(parts), num_warps=8
    )


@triton.jit
def _allowed(masks, mask, token, inside, words):
    """Whether the mask allows these tokens."""
    word = token // _WORD
    bits = tl.load(masks + mask * words + word, mask=inside & (word < words), other=0)
    return ((bits >> (token % _WORD)) & 1) != 0


@triton.jit
def _forbid(
    values, masks, rows, which, left, row_stride, words, parts, VOCABULARY: tl.constexpr, PART: tl.constexpr
):  # fmt: skip
    """Forbid what is not allowed, and say whether anything is left in this part."""
    entry, part = tl.program_id(0), tl.program_id(1)
    token = part * PART + tl.arange(0, PART)
    inside = token < VOCABULARY
    allowed = _allowed(masks, tl.load(which + entry).to(tl.int64), token, inside, words)
    there = values + tl.load(rows + entry).to(tl.int64) * row_stride + token
    value = tl.load(there, mask=inside, other=float("-inf"))
    broken = value != value
    tl.store(there, tl.full((PART,), float("-inf"), tl.float32), mask=inside & (allowed == 0) & (broken == 0))
    found = inside & (broken | (allowed & (tl.abs(value) != float("inf"))))
    tl.store(left + entry * parts + part, tl.max(found.to(tl.int32), 0))


@triton.jit
def _decide(
    values, masks, rows, which, left, row_stride, words, parts,
    VOCABULARY: tl.constexpr, PART: tl.constexpr, PARTS_PADDED: tl.constexpr,
):  # fmt: skip
    """Allow again what the mask allows in rows where nothing is left."""
    entry = tl.program_id(0)
    every = tl.arange(0, PARTS_PADDED)
    if tl.max(tl.load(left + entry * parts + every, mask=every < parts, other=0), 0) > 0:
        return
    token = tl.program_id(1) * PART + tl.arange(0, PART)
    inside = token < VOCABULARY
    allowed = _allowed(masks, tl.load(which + entry).to(tl.int64), token, inside, words)
    there = values + tl.load(rows + entry).to(tl.int64) * row_stride + token
    tl.store(there, tl.zeros((PART,), tl.float32), mask=inside & allowed)
