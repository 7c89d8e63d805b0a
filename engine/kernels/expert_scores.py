"""What experts are chosen by, from logits: softmax or sigmoid, a bias, and the best groups (DeepSeek-AI 2024).

One program has one row, so a row's bits do not depend on the others.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.dependent_launch import LAUNCH, wait_and_let_next_begin


def score_experts(
    logits: torch.Tensor,
    *,
    experts: int,
    sigmoid: bool,
    bias: torch.Tensor | None,
    groups: tuple[int, int, int] = (1, 1, 1),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Router logits fp32 [rows, at least `experts`] → what experts are chosen by, and their scores; of the same shape.

    Scores are the softmax of logits, or their sigmoid; `bias` fp32 [experts] is added for the choice. `groups`: how
    many there are, how many are kept, and by how many of its highest scores a group counts, 1 or 2. What is in no kept
    group is chosen by 0 with softmax, and its score is 0 then; with a sigmoid by −∞.
    """
    rows = len(logits)
    keys, scores = torch.empty_like(logits), torch.empty_like(logits)
    count, kept, best = groups
    _score_experts[(rows,)](
        logits, logits if bias is None else bias, keys, scores, logits.stride(0),
        GROUPS=count, GROUPS_PADDED=triton.next_power_of_2(count), SIZE=experts // count,
        SIZE_PADDED=triton.next_power_of_2(experts // count), KEPT=kept, BEST=best, SIGMOID=sigmoid,
        BIAS=bias is not None, num_warps=4, **LAUNCH,
    )  # fmt: skip
    return keys, scores


@triton.jit
def _score_experts(
    logits, bias, keys, scores, logits_row,
    GROUPS: tl.constexpr, GROUPS_PADDED: tl.constexpr, SIZE: tl.constexpr, SIZE_PADDED: tl.constexpr,
    KEPT: tl.constexpr, BEST: tl.constexpr, SIGMOID: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    wait_and_let_next_begin(False)
    row = tl.program_id(0).to(tl.int64) * logits_row
    g = tl.arange(0, GROUPS_PADDED)
    s = tl.arange(0, SIZE_PADDED)
    inside = (g < GROUPS)[:, None] & (s < SIZE)[None, :]
    at = g[:, None] * SIZE + s[None, :]
    x = tl.load(logits + row + at, mask=inside, other=float("-inf"))
    if SIGMOID:
        score = 1.0 / (1.0 + tl.exp(-x))
    else:
        value = tl.exp(x - tl.max(tl.max(x, 1), 0))
        score = value / tl.sum(tl.sum(value, 1), 0)
    key = score
    if BIAS:
        key += tl.load(bias + at, mask=inside, other=0.0)
    key = tl.where(inside, key, float("-inf"))
    if KEPT < GROUPS:
        leading = tl.max(key, 1)
        if BEST == 2:
            # Without the first of the highest ones.
            first = tl.min(tl.where(key == leading[:, None], s[None, :], SIZE_PADDED), 1)
            leading += tl.max(tl.where(s[None, :] == first[:, None], float("-inf"), key), 1)
        before = (leading[None, :] > leading[:, None]) | (
            (leading[None, :] == leading[:, None]) & (g[None, :] < g[:, None])
        )
        kept = (tl.sum(before.to(tl.int32), 1) < KEPT)[:, None]
        key = tl.where(kept, key, float("-inf") if SIGMOID else 0.0)
        if not SIGMOID:
            score = tl.where(kept, score, 0.0)
    tl.store(keys + row + at, key, mask=inside)
    tl.store(scores + row + at, score, mask=inside)
