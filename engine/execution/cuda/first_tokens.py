"""The first tokens behind prompts, drawn on the device as those of decode steps are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.execution.cuda.draws import Drawer, StepRows, changed_rows, compose, drawing_of
from engine.execution.cuda.flights import Told, tell, to_host
from engine.execution.cuda.seen_tokens import SeenTokens
from engine.kernels.uploads import Uploads
from engine.scheduling.step_work import Work

_AT_ONCE = 64
"""Prompts whose tokens are drawn at a time, if some have changed logits: what these have seen is in memory."""


class FirstTokens:
    """Draws by `drawer` from logits of `vocabulary` tokens."""

    def __init__(self, drawer: Drawer, vocabulary: int, upload: Uploads) -> None:
        self._drawer = drawer
        self._vocabulary = vocabulary
        self._upload = upload
        self._seen = SeenTokens(_AT_ONCE, vocabulary, upload)

    def __call__(
        self, works: Sequence[Work], logits: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.cuda.Event | None, Told | None]:
        """The tokens of these works, whose rows of logits these are, on the host once the event has come."""
        if logits is None:
            return torch.zeros(0, dtype=torch.int32), None, None
        rows = len(works)
        nothing = torch.full((rows,), -1, dtype=torch.int32, device=logits.device)
        tokens = torch.empty_like(nothing)
        self._drawer.likeliest(logits, nothing, nothing, tokens, nothing)
        at_once = _AT_ONCE if changed_rows([work.request for work in works]) else rows
        for first in range(0, rows, at_once):
            some = slice(first, first + at_once)
            self._draw(works[some], logits[some], tokens[some])
        return *to_host(tokens), tell(works, logits, tokens, self._upload, vocabulary=self._vocabulary)

    def _draw(self, works: Sequence[Work], logits: torch.Tensor, tokens: torch.Tensor) -> None:
        """Replace the likeliest tokens of these works' logits, as far as they are not what is drawn."""
        drawings = [drawing_of(work.request.sampling, work.request.row) for work in works]
        changed = changed_rows([work.request for work in works])
        numbers = np.arange(len(works), dtype=np.int32)
        given = np.stack([drawing.parameters for drawing in drawings])
        draws = compose(given, changed, [drawings[row] for row in changed], numbers[: len(changed)], self._upload)
        if draws is None:
            return
        ends = np.array([work.start + work.count - 1 for work in works])
        rows, places = draws.penalized()
        self._seen.forget(places)
        states = [row for at in rows.tolist() if (row := works[at].request.row) is not None]
        # The host knows all tokens of a prompt, so that none is counted by the kernel.
        self._seen.follow(places, ends[rows], states)
        nothing, slots, positions = self._upload([np.zeros_like(numbers), numbers, ends.astype(np.int32)])
        there = StepRows(nothing, nothing, positions, slots, tokens, torch.empty_like(tokens))
        self._drawer(logits, draws, self._seen.counts, there)
