"""Which tokens penalized requests have seen, and how often each was sampled: a table on the device, a row by slot.

A step counts the token that it computes. What was counted is known here, in the order in which steps are queued: so a
step that is queued again, since what was computed ahead was dropped, counts nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.logit_shaper import clear_counts, enter_counts
from engine.kernels.uploads import Ints, Uploads
from engine.sampling.request_state import SamplingState

Positions: TypeAlias = NDArray[np.int64]
_NOTHING = -1
_FIRST = 8
"""Rows of the table, at least, once there is one."""


class SeenTokens:
    """Up to `places` rows of counts, as many as were needed so far.

    `counts` int32 [rows, vocabulary]. `until` by place: the tokens before this position are counted.
    """

    def __init__(self, places: int, vocabulary: int, upload: Uploads) -> None:
        self._upload = upload
        self.counts = torch.empty(0, vocabulary, dtype=torch.int32, device=upload.device)
        self.until = np.full(places, _NOTHING, np.int64)

    def forget(self, places: Ints | slice) -> None:
        """What stands in these places is nobody's."""
        self.until[places] = _NOTHING

    def follows(self, places: Ints, positions: Positions) -> bool:
        """Whether steps at these positions can be queued although nobody knows their tokens here."""
        until = self.until[places]
        return bool(((until == positions) | (until == positions + 1)).all())

    def follow(self, places: Ints, positions: Positions, states: Sequence[SamplingState]) -> Ints:
        """A step at these positions is to be queued. Returns by place whether it counts its own token.

        Where the table is not there yet it is written, with that token, from what the host knows of the requests.
        """
        until = self.until[places]
        stale = np.nonzero((until != positions) & (until != positions + 1))[0].tolist()
        if stale:
            self._fill(places[stale], [states[at] for at in stale])
        self.until[places] = positions + 1
        own: Ints = (until == positions).astype(np.int32)
        return own

    def _fill(self, places: Ints, states: Sequence[SamplingState]) -> None:
        self._grow(int(places.max()) + 1)
        counts = [state.counts for state in states if state.counts is not None]
        tokens = [count.ids.astype(np.int32) for count in counts]
        there, owners, ids, sampled = self._upload(
            [places, np.repeat(places, [len(one) for one in tokens]), np.concatenate(tokens),
             np.concatenate([count.counts.astype(np.int32) for count in counts])]
        )  # fmt: skip
        clear_counts(self.counts, there)
        enter_counts(self.counts, owners, ids, sampled)

    def _grow(self, rows: int) -> None:
        held, vocabulary = self.counts.shape
        if rows > held:
            wider = self.counts.new_empty(min(max(_FIRST, rows, 2 * held), len(self.until)), vocabulary)
            wider[:held] = self.counts
            self.counts = wider
