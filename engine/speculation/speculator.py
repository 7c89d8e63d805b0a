"""Speculation: before a step drafters propose tokens for its decodes, and after it they hear which were right.

The scheduler has chosen the step by then: drafts take rows that it has left, and neither a block nor a prompt's place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.scheduling.decode_batch import DecodeBatch
from engine.scheduling.request import Request
from engine.scheduling.step_work import Decode, Step, Work, WorkOutcome
from engine.speculation.drafter import Drafter, Proposal, Query

MOST_DRAFTS = 7
"""Of a request in a step."""


@dataclass
class SpeculationTotals:
    """What was done since the start. `verified_steps`: decodes with drafts. `accepted_at`: by position in a draft."""

    decodes: int = 0
    verified: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=lambda: [0] * MOST_DRAFTS)


class Speculator:
    """Drafts for the requests of one decode batch, by these drafters, the preferred first.

    `budget`: tokens of a step. `off`: why nothing is drafted, or None.
    """

    def __init__(self, drafters: Sequence[Drafter], batch: DecodeBatch, budget: int, off: str | None = None) -> None:
        self.drafters = drafters
        self.off = off or ("the runner verifies no drafts" if not batch.most_drafts else None)
        self.totals = SpeculationTotals()
        self._batch = batch
        self._budget = budget
        self._begun: set[int] = set()
        """Arrivals of the requests that drafters know."""
        self._drafters: dict[int, Drafter] = {}
        """By arrival, who has drafted for the step that runs."""

    def draft(self, step: Step) -> None:
        """Let the step verify drafts."""
        self._drafters.clear()
        if self.off or not self.drafters or not step.work:
            return
        room = self._budget - sum(work.count for work in step.work)
        decodes = [work for work in step.work if isinstance(work, Decode) and work.request.speculates]
        for drafter, request, proposal in self._proposals(decodes):
            if room <= 0:
                break
            drafted = self._batch.draft(request, proposal.tokens[:room])
            room -= drafted
            if drafted:
                self._drafters[request.arrival] = drafter
        for drafter in self.drafters:
            drafter.catch_up()

    def _proposals(self, decodes: Sequence[Decode]) -> Iterator[tuple[Drafter, Request, Proposal]]:
        wanting = {work.request.arrival: Query(work.request, most) for work in decodes if (most := self._most(work))}
        for query in wanting.values():
            if query.request.arrival not in self._begun:
                self._begun.add(query.request.arrival)
                for drafter in self.drafters:
                    drafter.begin(query.request)
        for drafter in self.drafters:
            queries = list(wanting.values())
            for query, proposal in zip(queries, drafter.propose(queries) if queries else (), strict=True):
                if proposal is not None:
                    del wanting[query.request.arrival]
                    yield drafter, query.request, proposal

    def _most(self, work: Decode) -> int:
        return min(MOST_DRAFTS, self._batch.draft_room(work.request))

    def record(self, works: Sequence[Work], outcomes: Sequence[WorkOutcome]) -> None:
        """Count what became of a step's drafts; to be called before the step is committed."""
        for work, outcome in zip(works, outcomes, strict=True):
            if not isinstance(work, Decode):
                continue
            self.totals.decodes += 1
            if drafted := len(work.drafts):
                accepted = len(outcome.accepted)
                work.request.drafted += drafted
                work.request.accepted += accepted
                self.totals.verified += 1
                self.totals.drafted += drafted
                self.totals.accepted += accepted
                for position in range(accepted):
                    self.totals.accepted_at[position] += 1
                if drafter := self._drafters.get(work.request.arrival):
                    drafter.verified(work.request, drafted, accepted)

    def end(self, request: Request) -> None:
        """The request has left the engine."""
        if request.arrival in self._begun:
            self._begun.remove(request.arrival)
            for drafter in self.drafters:
                drafter.end(request)

    def forget(self, scope: str) -> None:
        """Drop all that drafters remember of a scope's requests."""
        for drafter in self.drafters:
            drafter.forget(scope)
