"""Logits as requests' parameters change them, on the device: `engine.sampling.logit_shaping`, bit by bit, but masks.

A row becomes fp32 in memory of ours. Which tokens a request has seen, and how often each was sampled, stands in a table
of counts, a row for each place; a step counts its own input token. Bias and forbidden stop tokens are few, and are
entered afterwards, each from its logit as the model computed it. Every stage is computed in float64 and rounded to
fp32, and no product is fused with a sum: so the bits are those of the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from engine.kernels.likeliest import NOT_FINITE
from engine.kernels.uploads import Ints, Uploads

UNSEEN = -1
"""The count of a token that is neither in the prompt nor in the output; in the prompt alone it is 0."""
STOP, BIASED = 1, 2
"""What is done to a token, in bits."""
WORDS: tl.constexpr = tl.constexpr(4)
"""64-bit words of a row: bits of the repetition, frequency and presence penalty; the position of the first token that
may be a stop token."""

_PART = 4_096
"""Tokens that a program looks at."""
_EDITED = 128
"""Edits of a program."""
_LARGEST: tl.constexpr = tl.constexpr(2.0**126)
"""`engine.sampling.logit_shaping.LARGEST`."""
_STOP: tl.constexpr = tl.constexpr(STOP)
_BIASED: tl.constexpr = tl.constexpr(BIASED)
_UNSEEN: tl.constexpr = tl.constexpr(UNSEEN)
_NOT_FINITE: tl.constexpr = tl.constexpr(NOT_FINITE)

_UNFUSED: dict[str, Any] = {"enable_fp_fusion": False}
_Array = TypeVar("_Array")


@dataclass(frozen=True)
class Edits:
    """Tokens of one row, each once, what is done to them (bits), and the bias of each."""

    tokens: Ints
    kinds: Ints
    biases: NDArray[np.float64]


@dataclass(frozen=True)
class ShapedRows(Generic[_Array]):
    """The changed rows of a step, on the host or on the device.

    `at`: which rows they are; `places` in the table of counts, −1 for those without penalties. `words` int64 [rows,
    WORDS]. The edits of row r are those from `starts[r]` to `starts[r + 1]`; `most_edits` in one row.
    """

    at: _Array
    places: _Array
    words: _Array
    starts: _Array
    tokens: _Array
    kinds: _Array
    biases: _Array
    most_edits: int


def send(rows: ShapedRows[NDArray[Any]], upload: Uploads) -> ShapedRows[torch.Tensor]:
    """The same on the device."""
    there = upload(
        [rows.at, rows.places, rows.words.view(np.int32), rows.starts, rows.tokens, rows.kinds,
         rows.biases.view(np.int32)]
    )  # fmt: skip
    at, places, words, starts, tokens, kinds, biases = there
    return ShapedRows(
        at, places, words.view(torch.int64), starts, tokens, kinds, biases.view(torch.float64), rows.most_edits
    )


def clear_counts(counts: torch.Tensor, places: torch.Tensor) -> None:
    """Forget what these places of `counts`, int32 [places, vocabulary], have seen."""
    vocabulary = counts.shape[1]
    _clear[(len(places), triton.cdiv(vocabulary, _PART))](counts, places, vocabulary, PART=_PART)


def enter_counts(counts: torch.Tensor, places: torch.Tensor, tokens: torch.Tensor, sampled: torch.Tensor) -> None:
    """Enter how often these tokens were sampled, each pair of place and token once; all int32 [entries]."""
    entries = len(tokens)
    if entries:
        _enter[(triton.cdiv(entries, 1_024),)](counts, places, tokens, sampled, counts.shape[1], entries, MANY=1_024)


class LogitShaper:
    """Memory for changed rows of logits of `vocabulary` tokens, used again by each call; it grows with their number."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self.vocabulary = vocabulary
        self.shaped = torch.empty(0, vocabulary, dtype=torch.float32, device=device)

    def __call__(
        self,
        logits: torch.Tensor,
        rows: ShapedRows[torch.Tensor],
        counts: torch.Tensor,
        inputs: torch.Tensor,
        counting: torch.Tensor,
        positions: torch.Tensor,
        tokens: torch.Tensor,
    ) -> torch.Tensor:
        """fp32 [changed rows, vocabulary], to be used before the next call; NaN where the row's token is negative.

        `logits` [rows, at least the vocabulary]; all else int32 by row: `inputs`, the tokens of a decode step, which
        are counted where `counting` is not 0; `positions` of these; `tokens`, the likeliest ones. Rows at position −1
        are not shaped.
        """
        many = len(rows.at)
        if many > len(self.shaped):
            # What is queued uses the memory that is given back before anybody else does.
            self.shaped = self.shaped.new_empty(max(many, 2 * len(self.shaped)), self.vocabulary)
        on = logits, self.shaped, rows.at, rows.places, rows.words, counts, positions, tokens
        _shape[(many, triton.cdiv(self.vocabulary, _PART))](
            *on, inputs, counting, logits.stride(0), VOCABULARY=self.vocabulary, PART=_PART, num_warps=8, **_UNFUSED
        )
        if rows.most_edits:
            _edit[(many, triton.cdiv(rows.most_edits, _EDITED))](
                *on, rows.starts, rows.tokens, rows.kinds, rows.biases, logits.stride(0),
                VOCABULARY=self.vocabulary, MANY=_EDITED, num_warps=4, **_UNFUSED,
            )  # fmt: skip
        return self.shaped[:many]


@triton.jit
def _number(words, row, at: tl.constexpr):
    return tl.load(words + row * WORDS + at).to(tl.float64, bitcast=True)


@triton.jit
def _bounded(values):
    return tl.minimum(tl.maximum(values, -_LARGEST), _LARGEST)


@triton.jit
def _penalized(values, counts, words, row):
    """fp32 values after the penalties of their tokens, of which `counts` has how often each was sampled."""
    repetition, frequency, presence = _number(words, row, 0), _number(words, row, 1), _number(words, row, 2)
    wide = values.to(tl.float64)
    if repetition != 1.0:
        wide = tl.where(values > 0, wide / repetition, wide * repetition)
    wide = _bounded(wide)
    sampled = tl.maximum(counts, 0).to(tl.float64)
    wide = _bounded((wide - sampled * frequency) - tl.where(counts > 0, presence, 0.0))
    return tl.where(counts > _UNSEEN, wide.to(tl.float32), values)


@triton.jit
def _shape(
    logits, shaped, at, places, words, counts, positions, tokens, inputs, counting, row_stride,
    VOCABULARY: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Count the row's input token, and write the row as fp32, its seen tokens penalized."""
    changed, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(at + changed).to(tl.int64)
    if tl.load(positions + row) < 0:
        return
    token = part * PART + tl.arange(0, PART)
    inside = token < VOCABULARY
    values = tl.load(logits + row * row_stride + token, mask=inside, other=0.0).to(tl.float32)
    place = tl.load(places + changed).to(tl.int64)
    if place >= 0:
        there = counts + place * VOCABULARY + token
        seen = tl.load(there, mask=inside, other=_UNSEEN)
        # Who reads a count here writes it as well, so that nobody has to wait for it.
        own = inside & (token == tl.load(inputs + row)) & (tl.load(counting + row) != 0)
        seen = tl.where(own, tl.maximum(seen, 0) + 1, seen)
        tl.store(there, seen, mask=own)
        values = _penalized(values, seen, words, changed)
    values = tl.where(tl.load(tokens + row) == _NOT_FINITE, float("nan"), values)
    tl.store(shaped + changed * VOCABULARY + token, values, mask=inside)


@triton.jit
def _edit(
    logits, shaped, at, places, words, counts, positions, tokens, starts, edited, kinds, biases, row_stride,
    VOCABULARY: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Write the tokens with a bias, and those that are forbidden until a position. `_shape` has counted the input."""
    changed = tl.program_id(0).to(tl.int64)
    row = tl.load(at + changed).to(tl.int64)
    position = tl.load(positions + row)
    if (position < 0) | (tl.load(tokens + row) == _NOT_FINITE):
        return
    entry = tl.load(starts + changed) + tl.program_id(1) * MANY + tl.arange(0, MANY)
    inside = entry < tl.load(starts + changed + 1)
    token = tl.load(edited + entry, mask=inside, other=0)
    kind = tl.load(kinds + entry, mask=inside, other=0)
    values = tl.load(logits + row * row_stride + token, mask=inside, other=0.0).to(tl.float32)
    biased = _bounded(values.to(tl.float64) + tl.load(biases + entry, mask=inside, other=0.0)).to(tl.float32)
    values = tl.where((kind & _BIASED) != 0, biased, values)
    place = tl.load(places + changed).to(tl.int64)
    if place >= 0:
        seen = tl.load(counts + place * VOCABULARY + token, mask=inside, other=_UNSEEN)
        values = _penalized(values, seen, words, changed)
    forbidden = ((kind & _STOP) != 0) & (position.to(tl.int64) + 1 < tl.load(words + changed * WORDS + 3))
    values = tl.where(forbidden, float("-inf"), values)
    tl.store(shaped + changed * VOCABULARY + token, values, mask=inside)


@triton.jit(do_not_specialize=["vocabulary"])
def _clear(counts, places, vocabulary, PART: tl.constexpr):
    place = tl.load(places + tl.program_id(0)).to(tl.int64)
    token = tl.program_id(1) * PART + tl.arange(0, PART)
    nothing = tl.full((PART,), _UNSEEN, tl.int32)
    tl.store(counts + place * vocabulary + token, nothing, mask=token < vocabulary)


@triton.jit(do_not_specialize=["vocabulary", "entries"])
def _enter(counts, places, tokens, sampled, vocabulary, entries, MANY: tl.constexpr):
    entry = tl.program_id(0) * MANY + tl.arange(0, MANY)
    inside = entry < entries
    place = tl.load(places + entry, mask=inside, other=0).to(tl.int64)
    token = tl.load(tokens + entry, mask=inside, other=0)
    tl.store(counts + place * vocabulary + token, tl.load(sampled + entry, mask=inside, other=0), mask=inside)
