"""Drafts what a grammar forces: keys, punctuation and markers that can be followed by nothing else.

They are verified like others. A text that is forced may still be cut into other tokens than these.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from engine.sampling.guess_time import STEP_S, GuessTime
from engine.speculation.drafter import Drafter, Proposal, Query

_CHANCE = 0.9


class GrammarDrafter(Drafter):
    """Drafts the tokens that must follow in the grammar of a request, or in its reasoning."""

    name: ClassVar[str] = "grammar"

    def __init__(self) -> None:
        self._time = GuessTime(STEP_S / 2)  # the other half is to check what is drafted

    def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        asking = {query.request.arrival: query for query in queries}
        proposals = {arrival: self._proposal(asking[arrival]) for arrival in self._time.turns(asking)}
        return [proposals[query.request.arrival] for query in queries]

    def _proposal(self, query: Query) -> Proposal | None:
        row = query.request.row
        if row is None or row.guide is None:
            return None
        nothing: Sequence[int] = ()
        forced = self._time.guess(query.request.arrival, partial(row.guide.forced_tokens, query.most), nothing)
        return Proposal(forced, _CHANCE) if forced else None
