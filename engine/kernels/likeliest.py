"""The likeliest token of each row of logits, found in two passes: parts of the vocabulary, then the best of the parts.

Of equal logits the first counts, as in `engine.sampling.sampler`. A row with NaN or infinity has the token −1.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.dependent_launch import LAUNCH, let_next_begin, wait_for_inputs

_PART = 4_096
"""Tokens that a program looks at."""
NOT_FINITE = -1


class Likeliest:
    """Memory for at most `rows` rows of logits of `vocabulary` tokens, used again by each call."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self.vocabulary = vocabulary
        self._parts = triton.cdiv(vocabulary, _PART)
        self._values = torch.empty(rows, self._parts, dtype=torch.float32, device=device)
        self._tokens = torch.empty(rows, self._parts, dtype=torch.int32, device=device)

    def __call__(
        self,
        logits: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        tokens: torch.Tensor,
        latest: torch.Tensor,
        at: torch.Tensor | None = None,
    ) -> None:
        """Write each row's token to `tokens` [rows] and to `latest` at the row's slot; all int32.

        `logits` [rows, at least the vocabulary]. Rows with position −1 are padding and write nothing to `latest`.
        `at` int32: these logits are those of such rows, changed, so that minus infinity is a token that is forbidden.
        """
        rows = len(logits)
        _parts[(rows, self._parts)](
            logits, self._values, self._tokens, logits.stride(0), self._parts,
            VOCABULARY=self.vocabulary, PART=_PART, CHANGED=at is not None, num_warps=4, **LAUNCH,
        )  # fmt: skip
        _best[(rows,)](
            self._values, self._tokens, positions, slots, tokens, latest, at, self._parts,
            PARTS_PADDED=triton.next_power_of_2(self._parts), num_warps=1, **LAUNCH,
        )  # fmt: skip


@triton.jit
def _parts(
    logits, values, tokens, row_stride, parts,
    VOCABULARY: tl.constexpr, PART: tl.constexpr, CHANGED: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    let_next_begin()
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    token = part * PART + tl.arange(0, PART)
    inside = token < VOCABULARY
    value = tl.load(logits + row * row_stride + token, mask=inside, other=float("-inf")).to(tl.float32)
    # x · 0 is NaN, which differs from itself, for NaN and for both infinities.
    checked = value if CHANGED else value * 0.0
    broken = tl.sum((inside & (checked != checked)).to(tl.int32), 0)
    best = tl.max(value, 0)
    first = tl.min(tl.where(value == best, token, VOCABULARY), 0)
    tl.store(values + row * parts + part, best)
    tl.store(tokens + row * parts + part, tl.where(broken > 0, -1, first))


@triton.jit
def _best(values, tokens, positions, slots, out, latest, at, parts, PARTS_PADDED: tl.constexpr):
    wait_for_inputs()
    let_next_begin()
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS_PADDED)
    inside = part < parts
    value = tl.load(values + row * parts + part, mask=inside, other=float("-inf"))
    token = tl.load(tokens + row * parts + part, mask=inside, other=2147483647)
    best = tl.max(value, 0)
    first = tl.min(tl.where(value == best, token, 2147483647), 0)
    first = tl.where(tl.min(token, 0) < 0, -1, first)
    if at is not None:
        row = tl.load(at + row).to(tl.int64)
    tl.store(out + row, first)
    if tl.load(positions + row) >= 0:
        tl.store(latest + tl.load(slots + row), tl.maximum(first, 0))
