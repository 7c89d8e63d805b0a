"""A draft model: a small model with the served model's tokenizer that writes on, all requests in one batch.

It computes the prompts itself, a bounded number of tokens a step. Until it has a request's prompt, it does not draft for
it; nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch

from engine.kv_cache.memory import KvMemory
from engine.layers.attention_plan import AttentionPlan
from engine.layers.linear import Tiling
from engine.models.decoder import Decoder
from engine.scheduling.request import Request
from engine.speculation.chain import Chain, draft_chains, positions_of
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


class DraftModel:
    """Drafts by a model of its own, whose KV is in `side`."""

    def __init__(self, model: SeparateModel, side: SideKv, context: int) -> None:
        self.side = side
        self.runner = SideRunner(model, side)
        self._context = context
        """Tokens, at most, that the model has positions for."""

    def propose(self, wants: Sequence[tuple[Request, int]]) -> list[Sequence[int]]:
        """For each request at most as many drafts as it wants; none where its prompt is not computed yet."""
        with torch.inference_mode():
            return self._propose(wants)

    def _propose(self, wants: Sequence[tuple[Request, int]]) -> list[Sequence[int]]:
        using = {request.arrival for request, _ in wants}
        followed = [self._follow(request, count, using) for request, count in wants]
        self._compute_prefixes(sequence for sequence in followed if sequence is not None)
        drafts: list[Sequence[int]] = [()] * len(wants)
        chains, pieces, places = [], [], []
        for place, ((request, count), sequence) in enumerate(zip(wants, followed, strict=True)):
            if sequence is None or len(request.tokens) - sequence.computed > MOST_SINGLE:
                continue
            pieces.append(Piece(sequence, sequence.computed, len(request.tokens) - sequence.computed))
            count = min(count, self._context - len(request.tokens) + 1)
            chains.append(Chain(sequence, count, sum(piece.count for piece in pieces) - 1))
            places.append(place)
        if not chains:
            return drafts
        hidden = self.runner.compute(pieces, self.runner.known_tokens(pieces))
        for place, chain, tokens in zip(
            places, chains, draft_chains(self.runner, chains, hidden, goes_on=False), strict=True
        ):
            drafts[place] = tokens
            self.side.advance(chain.sequence, len(chain.sequence.request.tokens))
            chain.sequence.drafted = tokens[:-1]
        return drafts

    def _follow(self, request: Request, count: int, using: Collection[int]) -> SideSequence | None:
        """The request's sequence, up to date, with room for its drafts; None if there shall be no drafts now."""
        if count <= 0 or len(request.tokens) > self._context:
            return None
        sequence = self.side.sequence(request)
        if sequence is None:
            sequence = self.side.begin(request)
        self.side.verify(sequence)
        missing = len(request.tokens) - sequence.computed
        if missing > MOST_SINGLE and missing > _WORTH * (request.max_output - request.output):
            return None
        # A token that only the served model has cannot be embedded.
        if max(request.tokens[sequence.computed :]) >= self.runner.model.vocabulary:
            return None
        return sequence if self.side.extend(sequence, positions_of(request, count), using) else None

    def _compute_prefixes(self, sequences: Iterable[SideSequence]) -> None:
        """Compute what is missing of prompts, as far as a step allows, first what is nearly there."""
        behind = {
            sequence: len(sequence.request.tokens) - 1 - sequence.computed
            for sequence in sequences
            if len(sequence.request.tokens) - sequence.computed > MOST_SINGLE
        }
        pieces, room = [], PREFIX_ROWS
        for sequence in sorted(behind, key=behind.__getitem__):
            if room > MOST_SINGLE:
                pieces.append(Piece(sequence, sequence.computed, min(behind[sequence], room)))
                room -= pieces[-1].count
        if not pieces:
            return
        pieces.sort(key=lambda piece: piece.count > MOST_SINGLE)
        self.runner.compute(pieces, self.runner.known_tokens(pieces))
        for piece in pieces:
            self.side.advance(piece.sequence, piece.start + piece.count)

    def drop(self, request: Request) -> None:
        """The request needs no more drafts."""
        self.side.drop(request)

    def purge(self, keys: Collection[bytes]) -> None:
        """Make what was kept under the model's blocks with these keys unfindable."""
        self.side.purge(keys)

    def forget(self, scope: str) -> None:
        """Make what was kept of a scope unfindable (C5)."""
        self.side.forget(scope)
