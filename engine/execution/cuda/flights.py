"""Passes that were queued on the device, and what of them comes to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.host_words import to_host
from engine.kernels.likeliest import NOT_FINITE
from engine.kernels.uploads import Uploads
from engine.sampling.sampler import logprob_values, told_logprobs
from engine.scheduling.step_work import Decode, NotFinite, Work, WorkOutcome
from protocol.requests import TokenLogprob

Positions: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]


_TOLD_AT_ONCE = 64
"""Rows whose log probabilities are computed at a time."""


@dataclass(frozen=True)
class Told:
    """Log probabilities of some rows of a pass, and of how many likeliest tokens: on the host once `event` has come."""

    rows: Sequence[int]
    counts: Sequence[int]
    values: torch.Tensor
    event: torch.cuda.Event | None

    def wait(self, rows: int) -> list[TokenLogprob | None]:
        """By row."""
        if self.event is not None:
            self.event.synchronize()
        found: list[TokenLogprob | None] = [None] * rows
        for row, logprob in zip(self.rows, told_logprobs(self.values, self.counts), strict=True):
            found[row] = logprob
        return found


@dataclass(frozen=True)
class Undrawn:
    """Rows of a pass whose tokens are to be drawn, and a copy of their logits, over which no later pass writes."""

    rows: list[int]
    logits: torch.Tensor


@dataclass
class Flight:
    """A decode step that was queued for `works` at positions `starts`. `tokens` are on the host once `event` has come.

    `row_of` says at which row each of `works` was computed, None for its own; rows behind those of `tokens` are in
    `more`. `skipped` rows were not computed; `spare` has, by row, the spare block to which its token was written.
    `shown` are logits of all of `works` that somebody wants to see, `told` what clients want to know of some.
    `undrawn` are those of `works` whose tokens are still to be drawn.
    """

    works: Sequence[Decode]
    starts: Positions
    tokens: torch.Tensor
    event: torch.cuda.Event | None
    skipped: Flags | None = None
    spare: dict[int, int] = field(default_factory=dict)
    row_of: list[int] | None = None
    more: Flight | None = None
    shown: torch.Tensor | None = None
    told: Told | None = None
    undrawn: Undrawn | None = None

    def wait(self) -> list[int]:
        """The tokens of `works`; of those `undrawn` the likeliest ones."""
        if self.event is not None:
            self.event.synchronize()
        tokens: list[int] = self.tokens.tolist()
        if self.more is not None:
            tokens += self.more.wait()
        return tokens if self.row_of is None else [tokens[row] for row in self.row_of]

    def logprobs(self) -> list[TokenLogprob | None]:
        """What is told of each of `works`."""
        if self.told is None and self.more is None:
            return [None] * len(self.works)
        found: list[TokenLogprob | None] = [None] * len(self.tokens)
        if self.told is not None:
            found = self.told.wait(len(self.tokens))
        if self.more is not None:
            found += self.more.logprobs()
        return found if self.row_of is None else [found[row] for row in self.row_of]

    def outcomes(self) -> list[WorkOutcome]:
        """What became of `works`, but for what is `undrawn`."""
        return [
            WorkOutcome(token, None, () if logprob is None else (logprob,))
            if token != NOT_FINITE
            else WorkOutcome(error=not_finite())
            for token, logprob in zip(self.wait(), self.logprobs(), strict=True)
        ]


def rows_ahead(ahead: Flight, works: Sequence[Decode], starts: Positions) -> list[int] | None:
    """At which row each of `works` was computed ahead, −1 for one that was not. None: nothing of it is of use."""
    if ahead.works == works:
        row_of = list(range(len(works)))
    else:
        places = {work: row for row, work in enumerate(ahead.works)}
        row_of = [places.get(work, -1) for work in works]
    skipped = ahead.skipped
    row_of = [
        row if row >= 0 and ahead.starts[row] == start and (skipped is None or not skipped[row]) else -1
        for row, start in zip(row_of, starts.tolist(), strict=True)
    ]
    # A launch takes as long for a few rows as for one: with few rows to keep, all are launched together.
    missing = sum(row < 0 for row in row_of)
    return row_of if 2 * missing <= len(row_of) else None


def not_finite() -> NotFinite:
    """What a request fails with whose logits are not finite."""
    return NotFinite("the model computed NaN or infinity")


def still_undrawn(
    ahead: Flight, row_of: Sequence[int], upload: Uploads, more: Flight | None = None, missing: Sequence[int] = ()
) -> Undrawn | None:
    """What is still to be drawn of rows that were computed ahead, as `row_of` says, and of `missing` ones in `more`."""
    rows: list[int] = []
    parts: list[torch.Tensor] = []
    if ahead.undrawn is not None:
        places = {row: place for place, row in enumerate(ahead.undrawn.rows)}
        rows = [at for at, row in enumerate(row_of) if row in places]
        kept, logits = [places[row_of[at]] for at in rows], ahead.undrawn.logits
        if kept != list(range(len(places))):
            (there,) = upload([np.array(kept, np.int32)])
            logits = logits.index_select(0, there)
        parts.append(logits)
    if more is not None and more.undrawn is not None:
        rows += [missing[row] for row in more.undrawn.rows]
        parts.append(more.undrawn.logits)
    return Undrawn(rows, torch.cat(parts) if len(parts) > 1 else parts[0]) if rows else None


@dataclass(frozen=True)
class Prefilled:
    """A pass over prompts that was queued: hidden states, and logits of the works `sampling`, None if there are none.

    Once `event` has come, `sums` of hidden states and of logits by row are on the host. Of a graph there are no hidden
    states, and `sums` are its rows' tokens.
    """

    works: Sequence[Work]
    hidden: torch.Tensor | None
    sums: torch.Tensor
    event: torch.cuda.Event | None
    sampling: list[int]
    logits: torch.Tensor | None


def exact(logits: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """fp32 logits as the general sampler takes them, where the padding is never drawn."""
    values = logits.float()
    values[:, vocabulary:] = -torch.inf
    return values


def tell(
    works: Sequence[Work],
    logits: torch.Tensor,
    tokens: torch.Tensor,
    upload: Uploads,
    *,
    vocabulary: int,
    skipped: Flags | None = None,
) -> Told | None:
    """Queue the log probabilities of what the device draws: behind them the next step may write over the logits."""
    counts = {
        row: count
        for row, work in enumerate(works)
        if (count := work.request.sampling.logprobs) is not None and (skipped is None or not skipped[row])
    }
    if not counts:
        return None
    rows = list(counts)
    groups = [rows[first : first + _TOLD_AT_ONCE] for first in range(0, len(rows), _TOLD_AT_ONCE)]
    parts = [
        # A row that is not finite has no token, and nothing is told of it.
        logprob_values(exact(logits.index_select(0, some), vocabulary), tokens.index_select(0, some).clamp_min_(0))
        for some in upload([np.array(group, np.int32) for group in groups])
    ]
    return Told(rows, list(counts.values()), *to_host(torch.cat(parts)))
