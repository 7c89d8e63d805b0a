"""Drafts what a grammar forces: keys, punctuation and markers that can be followed by nothing else.

They are verified like others. A text that is forced may still be cut into other tokens than these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from engine.speculation.drafter import Drafter, Proposal, Query

_CHANCE = 0.9


class GrammarDrafter(Drafter):
    """Drafts the tokens that must follow in the grammar of a request, or in its reasoning."""

    name: ClassVar[str] = "grammar"

    def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        return [self._proposal(query) for query in queries]

    def _proposal(self, query: Query) -> Proposal | None:
        row = query.request.row
        if row is None or row.guide is None:
            return None
        forced = row.guide.forced_tokens(query.most)
        return Proposal(forced, _CHANCE) if forced else None
