"""Drafts chains: for each request the likeliest next token, then the likeliest behind that, all requests at once.

A first pass computes what the drafter has not seen of each request, to the last token; each further pass one draft of
each chain. Nothing here decides what a request gets: drafts are verified by equality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.scheduling.request import Request
from engine.speculation.side_kv import SideSequence
from engine.speculation.side_runner import Piece, SideRunner


@dataclass(slots=True)
class Chain:
    """Up to `count` drafts behind the tokens that the sequence's request has."""

    sequence: SideSequence
    count: int
    row: int
    """The row of the first pass with the request's last token."""


def draft_chains(
    runner: SideRunner, chains: Sequence[Chain], hidden: torch.Tensor, *, goes_on: bool
) -> list[list[int]]:
    """The drafts of each chain. `hidden`: of the first pass. `goes_on`: a head's next row starts from its own hidden
    states.

    The KV of all drafts but the last lies in the side group afterwards, behind what counts as computed.
    """
    rows = [chain.row for chain in chains]
    drafted: list[torch.Tensor] = []
    active = list(range(len(chains)))
    longest = max(chain.count for chain in chains)
    for step in range(longest):
        if step:
            pieces = [Piece(chains[at].sequence, len(chains[at].sequence.request.tokens) + step - 1, 1) for at in active]
            hidden = runner.compute(pieces, tokens[rows], features)
            rows = list(range(len(active)))
        wanted = hidden if len(rows) == len(hidden) else hidden[rows]
        tokens = runner.model.likeliest(wanted)
        drafted.append(tokens)
        going = [place for place, at in enumerate(active) if chains[at].count > step + 1]
        features = wanted[going] if goes_on else None
        rows = going
        active = [active[place] for place in going]
    return _by_chain(chains, torch.cat(drafted).tolist())


def _by_chain(chains: Sequence[Chain], tokens: Sequence[int]) -> list[list[int]]:
    """The tokens of all passes, each pass those of the chains that go so far, by chain."""
    drafts: list[list[int]] = [[] for _ in chains]
    rest = iter(tokens)
    for step in range(max(chain.count for chain in chains)):
        for chain, own in zip(chains, drafts, strict=True):
            if chain.count > step:
                own.append(next(rest))
    return drafts


def positions_of(request: Request, count: int) -> int:
    """How many tokens have a place in the side group where `count` are drafted: the last draft needs none."""
    return len(request.tokens) + count - 1
