"""Drafters for tests: one that knows what will come, and lies now and then."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import ClassVar

from engine.scheduling.request import Request
from engine.speculation.drafter import Drafter, Proposal, Query


class LyingDrafter(Drafter):
    """Proposes what is known to come, with wrong tokens in between; `known`: the output by request id and choice."""

    name: ClassVar[str] = "lying"

    def __init__(self, vocabulary: int, known: Mapping[tuple[str, int], Sequence[int]], seed: int) -> None:
        self._vocabulary = vocabulary
        self._known = known
        self._random = random.Random(seed)
        self.open: set[int] = set()
        self.heard: dict[int, tuple[int, int]] = {}
        """By arrival: how many drafts were verified and accepted, as it was told."""

    def begin(self, request: Request) -> None:
        assert request.arrival not in self.open
        self.open.add(request.arrival)

    def end(self, request: Request) -> None:
        self.open.remove(request.arrival)

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        before = self.heard.get(request.arrival, (0, 0))
        self.heard[request.arrival] = before[0] + drafted, before[1] + accepted

    def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        return [self._proposal(query) for query in queries]

    def _proposal(self, query: Query) -> Proposal | None:
        assert query.request.arrival in self.open
        assert query.most > 0
        pick, request = self._random, query.request
        if pick.random() < 0.1:
            return None
        right = list(self._known.get((request.id, request.choice), ())[request.output :])[: query.most]
        told = pick.choice((len(right), pick.randrange(len(right) + 1)))
        invented = [pick.randrange(self._vocabulary) for _ in range(query.most - told)]
        return Proposal((right[:told] + invented)[: pick.randint(1, query.most)], pick.random())


class OracleDrafter(LyingDrafter):
    """Proposes what is known to come, and nothing else."""

    name: ClassVar[str] = "oracle"

    def _proposal(self, query: Query) -> Proposal | None:
        ahead = self._known.get((query.request.id, query.request.choice), ())[query.request.output :][: query.most]
        return Proposal(ahead, 1.0) if ahead else None
