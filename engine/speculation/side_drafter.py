"""Drafts chains by a model with KV in the side group: for each request the likeliest next token, then the likeliest
behind that, all requests at once.

A first pass computes what the drafter has not seen of each request, to its last token; each further pass one draft of
each chain. Nothing here decides what a request gets: drafts are verified by equality.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.scheduling.request import Request
from engine.speculation.drafter import Drafter, Proposal, Query
from engine.speculation.side_kv import SideSequence
from engine.speculation.side_runner import MOST_SINGLE, Piece, SideRunner

_CHANCE = 0.8
"""How likely a draft is right before anything is known of the request."""
_LONGER, _SHORTER = 0.1, 0.5
"""The weight of the latest pass in what a pass is expected to take. The first of a shape makes kernels, and whatever
else the machine does only ever adds to it."""


@dataclass(slots=True)
class Chain:
    """Up to `count` drafts behind the tokens that the sequence's request has. `place`: of its query. `row`: of the
    first pass, that of the request's last token."""

    place: int
    sequence: SideSequence
    count: int
    row: int


class SideDrafter(Drafter):
    """What drafters with KV of their own have in common."""

    computes = True

    def __init__(self, runner: SideRunner) -> None:
        self.runner = runner
        self.side = runner.side
        self._pass_us: dict[int, float] = {}
        """Binary size of a pass's rows -> µs that it takes"""

    def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        with torch.inference_mode():
            return self._propose(queries)

    def _propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        """See `propose`."""
        raise NotImplementedError

    def _draft(
        self, queries: int, chains: Sequence[Chain], hidden: torch.Tensor, *, goes_on: bool
    ) -> Sequence[Proposal | None]:
        """A proposal for each chain, after the first pass gave `hidden`. `goes_on`: a head's next row starts from its
        own hidden states; what it then writes is no KV of these tokens, even if they are accepted."""
        proposals: list[Proposal | None] = [None] * queries
        for chain, tokens in zip(chains, self._chains(chains, hidden, goes_on=goes_on), strict=True):
            proposals[chain.place] = Proposal(tokens, _CHANCE)
            self.side.advance(chain.sequence, len(chain.sequence.request.tokens))
            chain.sequence.drafted = () if goes_on else tokens[:-1]
        return proposals

    def _chains(self, chains: Sequence[Chain], hidden: torch.Tensor, *, goes_on: bool) -> list[list[int]]:
        """The drafts of each chain. The KV of all but the last lies behind what counts as computed."""
        rows = [chain.row for chain in chains]
        active = list(chains)
        passes: list[tuple[list[Chain], torch.Tensor]] = []
        while active:
            wanted = hidden if len(rows) == len(hidden) else hidden[rows]
            tokens = self.runner.model.likeliest(wanted)
            passes.append((active, tokens))
            rows = [row for row, chain in enumerate(active) if chain.count > len(passes)]
            active = [active[row] for row in rows]
            if active:
                pieces = [Piece(one.sequence, len(one.sequence.request.tokens) + len(passes) - 1, 1) for one in active]
                hidden = self._compute(pieces, tokens[rows], wanted[rows] if goes_on else None)
                rows = list(range(len(active)))
        drafts: dict[int, list[int]] = {chain.place: [] for chain in chains}
        drawn = iter(torch.cat([tokens for _, tokens in passes]).tolist())
        for going, _ in passes:
            for chain in going:
                drafts[chain.place].append(next(drawn))
        return list(drafts.values())

    def _compute(self, pieces: Sequence[Piece], tokens: torch.Tensor, features: torch.Tensor | None) -> torch.Tensor:
        """As the runner does; what it takes is noted, unless it computes a prompt."""
        began = time.perf_counter()
        hidden = self.runner.compute(pieces, tokens, features)
        if len(tokens) <= MOST_SINGLE * len(pieces):
            self._observe(len(pieces), time.perf_counter() - began)
        return hidden

    def cost_us(self, requests: int, tokens: int) -> float:
        if not self._pass_us:
            return 0.0
        size = requests.bit_length()
        nearest = min(self._pass_us, key=lambda at: abs(at - size))
        return tokens * self._pass_us[nearest]

    def _observe(self, rows: int, seconds: float) -> None:
        size = rows.bit_length()
        before = self._pass_us.get(size, seconds * 1e6)
        more = seconds * 1e6 - before
        self._pass_us[size] = before + (_LONGER if more > 0 else _SHORTER) * more

    def end(self, request: Request) -> None:
        sequence = self.side.sequence(request)
        if sequence is not None:
            self.side.verify(sequence)  # what the request got last may fill a block
            self.side.drop(request)

    def purge(self, scope: str) -> None:
        self.side.forget(scope)

    def close(self) -> None:
        self.side.clear()
