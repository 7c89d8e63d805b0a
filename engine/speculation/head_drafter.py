"""A head of a checkpoint (EAGLE-3, MTP): it drafts from the served model's hidden states, which the steps hand back.

Its KV of a token is made from that token and the hidden state of the one before, and lies at that token's position: so
it depends on no later token, and whole blocks of it are kept under the model's block keys. While it drafts, it goes on
from its own hidden states. What it writes then is overwritten when the step has computed the true ones.

Where the model's KV was found and its hidden states were therefore not computed, the head goes on after the block's KV
and its last token's state, if it has kept those; else it begins there, and attends to nothing before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import structlog
import torch

from engine.execution.model_runner import ModelRunner
from engine.scheduling.request import Request
from engine.scheduling.step_work import Work
from engine.speculation.drafter import Proposal, Query
from engine.speculation.hidden_rows import HiddenRows
from engine.speculation.side_drafter import Chain, SideDrafter
from engine.speculation.side_kv import SideKv, SideSequence
from engine.speculation.side_runner import MOST_SINGLE, DraftingModel, Piece, SideRunner
from prompt_cache.kv.block_keys import BLOCK_TOKENS

logger = structlog.get_logger("engine.speculation.head_drafter")


class DraftingHead(DraftingModel, Protocol):
    """A `DraftingModel` that starts from hidden states: what goes into these layers of the served model."""

    state_layers: tuple[int, ...]
    state_size: int

    def features(self, states: torch.Tensor) -> torch.Tensor:
        """[rows, state size] → [rows, hidden]."""


@dataclass(frozen=True, slots=True)
class Update:
    """Tokens of a sequence that can be computed now, with the states of the tokens before them."""

    piece: Piece
    states: torch.Tensor


class HeadDrafter(SideDrafter):
    """Drafts by a head. `context`: tokens that it has positions for. `most_rows`: hidden states that wait, at most."""

    def __init__(self, head: DraftingHead, side: SideKv, context: int, most_rows: int) -> None:
        super().__init__(SideRunner(head, side))
        self.head = head
        self._context = context
        self._rows = HiddenRows(max(most_rows, 2 * BLOCK_TOKENS))
        self._runner: ModelRunner | None = None

    @property
    def waiting_rows(self) -> int:
        """Hidden states that it holds and has not used yet."""
        return len(self._rows)

    def read_from(self, runner: ModelRunner) -> None:
        """Let the runner hand its hidden states to the head."""
        runner.state_layers, runner.on_states = self.head.state_layers, self._enter
        self._runner = runner

    def _enter(self, works: Sequence[Work], states: torch.Tensor) -> None:
        try:
            self._rows.enter(works, states)
        except RuntimeError:  # such as want of memory: the step goes on, and the head begins anew
            logger.exception("hidden states were lost for drafts", drafter=self.name)
            self._rows.clear()

    def _propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        using = {query.request.arrival for query in queries}
        updates: list[Update] = []
        places: dict[int, int] = {}
        for place, query in enumerate(queries):
            request = query.request
            count = min(query.most, self._context - len(request.tokens) + 1)
            update = self._update(request, len(request.tokens) + count - 1, using) if count > 0 else None
            if update is not None:
                updates.append(update)
                places[update.piece.sequence.serial] = place
        if not updates:
            return [None] * len(queries)
        hidden, last_rows = self._compute_updates(updates)
        chains = []
        for sequence, row in last_rows:
            query = queries[places[sequence.serial]]
            if not sequence.missing:
                count = min(query.most, self._context - len(query.request.tokens) + 1)
                chains.append(Chain(places[sequence.serial], sequence, count, row))
        return self._draft(len(queries), chains, hidden, goes_on=True)

    def catch_up(self) -> None:
        """Compute prompts whose hidden states wait, and requests that have not drafted for long."""
        waiting = [request for request, rows in self._rows.waiting() if rows > BLOCK_TOKENS]
        using = {request.arrival for request in waiting}
        with torch.inference_mode():
            updates = [self._update(request, 0, using) for request in waiting]
            if known := [update for update in updates if update is not None]:
                self._compute_updates(known)

    def _update(self, request: Request, tokens: int, using: Collection[int]) -> Update | None:
        """What can be computed of a request now, whose sequence gets memory for it, or for its first `tokens` tokens if
        those are more; None for nothing."""
        known = len(request.tokens)
        begin, states = self._rows.take(request, known - 1)
        end = begin + len(states)
        if begin == end or end >= self._context:
            return None
        sequence = self._sequence(request, begin)
        start = sequence.computed
        if end < start or not self.side.extend(sequence, max(end + 1, tokens), using):
            return None
        if max(request.tokens[start : end + 1]) >= self.head.vocabulary:
            return None
        before = self.side.tail(sequence, start) if start == begin else None
        states = states[max(0, start - 1 - begin) :]
        if before is not None:
            states = torch.cat([before, states])
        return Update(Piece(sequence, start, end + 1 - start), states)

    def _sequence(self, request: Request, begin: int) -> SideSequence:
        """The request's sequence, which can go on with the hidden states from the position `begin` on."""
        sequence = self.side.sequence(request)
        if sequence is not None:
            sequence.drafted = ()
            if begin < sequence.computed or (
                begin == sequence.computed and self.side.tail(sequence, begin) is not None
            ):
                return sequence
        return self.side.begin(request, begin + 1)

    def _compute_updates(self, updates: Sequence[Update]) -> tuple[torch.Tensor, list[tuple[SideSequence, int]]]:
        """The hidden states of these tokens; and of each sequence the row of its last one."""
        updates = sorted(updates, key=lambda update: update.piece.count > MOST_SINGLE)
        pieces = [update.piece for update in updates]
        features = self.head.features(torch.cat([update.states for update in updates]))
        hidden = self._compute(pieces, self.runner.known_tokens(pieces), features)
        for update in updates:
            self.side.keep_tails(update.piece.sequence, update.piece.start - 1, update.states)
            self.side.advance(update.piece.sequence, update.piece.start + update.piece.count)
        ends = accumulate(piece.count for piece in pieces)
        return hidden, [(piece.sequence, end - 1) for piece, end in zip(pieces, ends, strict=True)]

    def end(self, request: Request) -> None:
        self._rows.drop(request)
        super().end(request)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.state_layers, self._runner.on_states = (), None
        self._rows.clear()
        super().close()


class Eagle3Drafter(HeadDrafter):
    """An EAGLE-3 head of its own folder."""

    name = "eagle3"


class MtpDrafter(HeadDrafter):
    """The served checkpoint's layer for multi-token prediction."""

    name = "mtp"
