"""Passes that were queued on the device, and what of them comes to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from engine.scheduling.step_work import Decode, Work

Positions: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]


@dataclass
class Flight:
    """A decode step that was queued for `works` at positions `starts`. `tokens` are on the host once `event` has come.

    `row_of` says at which row each of `works` was computed, None for its own; rows behind those of `tokens` are in
    `more`. `skipped` rows were not computed; `spare` has, by row, the spare block to which its token was written.
    `shown` are logits of all of `works` that somebody wants to see.
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

    def wait(self) -> list[int]:
        """The likeliest tokens of `works`."""
        if self.event is not None:
            self.event.synchronize()
        tokens: list[int] = self.tokens.tolist()
        if self.more is not None:
            tokens += self.more.wait()
        return tokens if self.row_of is None else [tokens[row] for row in self.row_of]


@dataclass(frozen=True)
class Prefilled:
    """A pass over prompts that was queued: hidden states, and logits of the works `sampling`.

    Once `events` have come, `sums` of hidden states and of logits by row and the likeliest `tokens` of the works
    `sampling` are on the host; no tokens where somebody draws otherwise. Of a graph there are no hidden states, and
    `sums` are its rows' tokens.
    """

    works: Sequence[Work]
    hidden: torch.Tensor | None
    sums: torch.Tensor
    events: Sequence[torch.cuda.Event | None]
    sampling: list[int]
    logits: torch.Tensor | None
    tokens: torch.Tensor | None
