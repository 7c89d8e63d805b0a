"""A draft model: a small model with the served model's tokenizer that writes on, all requests in one batch.

It computes the prompts itself, a bounded number of tokens a step. Until it has a request's prompt, it does not draft
for it; nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch

from engine.kv_cache.memory import KvMemory
from engine.layers.attention_plan import AttentionPlan
from engine.layers.linear import Tiling
from engine.models.decoder import Decoder
from engine.speculation.drafter import Proposal, Query
from engine.speculation.side_drafter import Chain, SideDrafter
from engine.speculation.side_kv import SideKv, SideSequence
from engine.speculation.side_runner import MOST_SINGLE, Piece, SideRunner

PREFIX_ROWS = 256
"""Tokens of prompts, of all requests together, that it computes in a step."""
_WORTH = 32
"""Tokens of a prompt that it computes for each token that the request may still get, at most."""


class SeparateModel:
    """A whole model as a `DraftingModel`. `vocabulary`: of the served model, which its drafts are in."""

    def __init__(self, model: Decoder, like: torch.Tensor, tiling: Tiling, vocabulary: int) -> None:
        self.model = model
        self.groups = model.groups
        self.heads = model.config.heads
        self.vocabulary = model.config.vocabulary
        self.like = like
        self.tiling = tiling
        self._drafted = min(vocabulary, model.config.vocabulary)

    def compute(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        features: torch.Tensor | None,
        plans: Sequence[AttentionPlan],
        memories: Sequence[KvMemory],
    ) -> torch.Tensor:
        """See `DraftingModel`."""
        return self.model(tokens, positions, plans, memories)

    def likeliest(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `DraftingModel`."""
        return self.model.head(hidden)[:, : self._drafted].argmax(-1)


class DraftModel(SideDrafter):
    """Drafts by a model of its own, whose KV is in `side`. `context`: tokens that it has positions for, at most."""

    name = "draft-model"

    def __init__(self, model: SeparateModel, side: SideKv, context: int) -> None:
        super().__init__(SideRunner(model, side))
        self._context = context

    def _propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        using = {query.request.arrival for query in queries}
        followed = [self._follow(query, using) for query in queries]
        self._compute_prefixes(sequence for sequence in followed if sequence is not None)
        chains, pieces = [], []
        for place, (query, sequence) in enumerate(zip(queries, followed, strict=True)):
            if sequence is None or sequence.missing > MOST_SINGLE:
                continue
            pieces.append(Piece(sequence, sequence.computed, sequence.missing))
            count = min(query.most, self._context - len(query.request.tokens) + 1)
            chains.append(Chain(place, sequence, count, sum(piece.count for piece in pieces) - 1))
        if not chains:
            return [None] * len(queries)
        hidden = self._compute(pieces, self.runner.known_tokens(pieces), None)
        return self._draft(len(queries), chains, hidden, goes_on=False)

    def _follow(self, query: Query, using: Collection[int]) -> SideSequence | None:
        """The request's sequence, up to date, with room for its drafts; None if there shall be no drafts now."""
        request = query.request
        if len(request.tokens) > self._context:
            return None
        sequence = self.side.sequence(request) or self.side.begin(request)
        self.side.verify(sequence)
        if sequence.missing > MOST_SINGLE and sequence.missing > _WORTH * (request.max_output - request.output):
            return None
        if not self._embeds(sequence):
            return None
        return sequence if self.side.extend(sequence, len(request.tokens) + query.most - 1, using) else None

    def _embeds(self, sequence: SideSequence) -> bool:
        """Whether it has all the request's tokens: one that only the served model has cannot be embedded. Looks at each
        token once."""
        tokens, known = sequence.request.tokens, sequence.embeddable
        if 0 <= known < len(tokens):
            sequence.embeddable = len(tokens) if max(tokens[known:]) < self.runner.model.vocabulary else -1
        return sequence.embeddable >= 0

    def _compute_prefixes(self, sequences: Iterable[SideSequence]) -> None:
        """Compute what is missing of prompts, as far as a step allows, first what is nearly there."""
        behind = sorted((one for one in sequences if one.missing > MOST_SINGLE), key=lambda one: one.missing)
        pieces, room = [], PREFIX_ROWS
        for sequence in behind:
            if room > MOST_SINGLE:
                pieces.append(Piece(sequence, sequence.computed, min(sequence.missing - 1, room)))
                room -= pieces[-1].count
        if pieces:
            pieces.sort(key=lambda piece: piece.count > MOST_SINGLE)
            self.runner.compute(pieces, self.runner.known_tokens(pieces))
        for piece in pieces:
            self.side.advance(piece.sequence, piece.start + piece.count)
