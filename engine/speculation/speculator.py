"""Speculation: before a step drafters propose tokens for its decodes, and after it they hear which were right.

The scheduler has chosen the step by then: drafts take rows that it has left, and neither a block nor a prompt's place.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias, TypeVar

import structlog

from engine.sampling.guess_time import STEP_S, GuessTime
from engine.scheduling.decode_batch import DecodeBatch
from engine.scheduling.request import Request
from engine.scheduling.step_costs import StepCosts
from engine.scheduling.step_work import Decode, Step, Work, WorkOutcome
from engine.speculation.acceptance import Acceptance
from engine.speculation.asking_time import AskingTime
from engine.speculation.drafter import Drafter, Proposal, Query
from engine.speculation.planner import Candidate, DraftPlanner, StepLoad
from engine.speculation.verify_costs import VerifyCosts

logger = structlog.get_logger("engine.speculation.speculator")
Answer = TypeVar("Answer")

Off: TypeAlias = Literal["setting", "attention", "device", "self_test", "failed"]
OFF: Mapping[Off, str] = {
    "setting": "no drafter is configured",
    "attention": "attention is fast, so that drafts could change outputs",
    "device": "the steps of this device verify no drafts",
    "self_test": "outputs depend on the batch on this machine, so that drafts could change them",
    "failed": "every drafter has failed",
}
"""Why nothing is drafted."""
MOST_DRAFTS = 7
"""Of a request in a step."""
_GOOD_CHANCE = 0.7
"""A proposal of this chance is taken without asking the drafters that come later."""
_CHANCES = 20
"""Parts of 1 to which chances are rounded where they decide how long a chain is."""


@dataclass(frozen=True)
class Speculation:
    """Who drafts, the preferred first; what the rows of steps cost (None: nothing); why nothing is drafted, if so."""

    drafters: Sequence[Drafter] = ()
    costs: VerifyCosts | None = None
    off: Off | None = None


NO_SPECULATION = Speculation()


@dataclass
class SpeculationTotals:
    """What was done since the start, in tokens unless it says otherwise."""

    decodes: int = 0
    """Requests that decoded, a step each."""
    verified: int = 0
    """Those with drafts."""
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    """By decodes."""
    drafted_by: Counter[str] = field(default_factory=Counter)
    accepted_by: Counter[str] = field(default_factory=Counter)
    accepted_at: list[int] = field(default_factory=lambda: [0] * MOST_DRAFTS)
    """By position among a request's drafts."""
    drafting_us: float = 0.0
    """What drafters held steps up, from when they are thought of until a step may run."""
    gained_us: float = 0.0
    """What plain steps for the accepted drafts would have taken, less what their steps took longer."""


@dataclass(slots=True)
class _Drafted:
    """What was proposed for a request in the step that runs."""

    drafter: Drafter
    proposal: Proposal


class Speculator:
    """Drafts for the requests of one decode batch.

    `costs`: of steps with prompts. `budget`: tokens of a step; `vocabulary`: token ids. `off`: why nothing is drafted,
    or None. A drafter that fails is left out from then on.
    """

    def __init__(
        self,
        speculation: Speculation,
        batch: DecodeBatch,
        costs: StepCosts,
        budget: int,
        vocabulary: int,
    ) -> None:
        drafters, off = speculation.drafters, speculation.off
        if off is None and not batch.most_drafts:
            off = "device"
        if off is None and not drafters:
            off = "setting"
        self.off = off
        logger.info("speculation", drafters=[drafter.name for drafter in drafters], off=off and OFF[off])
        self.totals = SpeculationTotals()
        self.planner = DraftPlanner(speculation.costs, MOST_DRAFTS)
        self._batch = batch
        self._budget = budget
        self._vocabulary = vocabulary
        self._costs = costs
        self._acceptance: dict[int, dict[str, Acceptance]] = {}
        """By arrival of the requests that drafters know, and by drafter."""
        self._drafted: dict[int, _Drafted] = {}
        """By arrival, of the step that runs."""
        self._asking: dict[str, AskingTime] = {}
        """By drafter; those that compute say what they will take."""
        self._guess_time = GuessTime(STEP_S / 2)  # the other half is the drafter's that asks grammars
        """To find out which drafts a grammar allows."""
        self._load = StepLoad(0, 0, 0.0)
        self._pipeline, self._queued = batch.pipeline, False
        """Whether the step that runs was queued before its drafts could be thought of."""
        self._guessed: dict[int, _Drafted] = {}
        """By arrival, what was proposed for such a step: whether its first token was right says something."""
        self.step_us = 0.0
        """What drafting held up the step that runs."""
        self._began = self._recorded = 0.0
        """When the step that runs began, and when the last one had run."""
        self._weighed_us = 0.0
        """Of the time that drafts took, what was weighed before they were asked for."""
        self.ask(drafters)

    def ask(self, drafters: Sequence[Drafter]) -> None:
        """Ask these drafters from now on and no others. To be called while there are no requests."""
        self.drafters = drafters
        self._asking = {drafter.name: AskingTime() for drafter in drafters}

    # ------------------------------------------------------------ before a step

    def draft(self, step: Step, target: float = float("inf")) -> None:
        """Let the step verify drafts. `target`: the longest that it may take, in µs, if prompts are computed in it."""
        self._drafted.clear()
        self._guessed = {}
        self._queued, self._pipeline.held = self._pipeline.queued, False
        self.step_us = 0.0
        if self.off or not step.work:
            return
        began = time.perf_counter()
        decodes = [work for work in step.work if isinstance(work, Decode)]
        if decodes:
            self._draft_for(step, decodes, target)
        for drafter in self.drafters:
            self._call(drafter, drafter.catch_up, None)
        self._began = time.perf_counter()
        self.step_us = (self._began - began) * 1e6
        self.totals.drafting_us += self.step_us

    def _draft_for(self, step: Step, decodes: Sequence[Decode], target: float) -> None:
        self._load = self._load_of(step, decodes, target)
        cheapest = min((self._asking[drafter.name].expected() for drafter in self.drafters), default=0.0)
        if self.planner.could_pay(self._load, cheapest):
            began = time.perf_counter()
            self._weighed_us = 0.0
            proposals = self._proposals(decodes)
            took = (time.perf_counter() - began) * 1e6
            if proposals:
                room = min(self._batch.all_room, self._budget - sum(work.count for work in step.work))
                self._choose(decodes, proposals, room, took - self._weighed_us)

    def _load_of(self, step: Step, decodes: Sequence[Decode], target: float) -> StepLoad:
        prefill = sum(work.count for work in step.work) - len(decodes)
        kv = sum(work.start for work in decodes) / len(decodes)
        if not prefill:
            return StepLoad(len(decodes), len(decodes), kv)
        beside = self._costs.step_time(prefill, 0)
        return StepLoad(len(step.work), len(decodes), kv, beside, target)

    def _proposals(self, decodes: Sequence[Decode]) -> dict[int, _Drafted]:
        """By arrival, the most promising proposal of the drafters, who are asked until one has a good one."""
        wanting: dict[int, Query] = {}
        for work in decodes:
            request = work.request
            if request.speculates and (most := min(MOST_DRAFTS, self._batch.draft_room(request))):
                self._begin(request)
                wanting[request.arrival] = Query(request, most)
        promising: dict[int, _Drafted] = {}
        for drafter in self.drafters:
            wanted = [
                query
                for arrival, query in wanting.items()
                if not self._acceptance[arrival][drafter.name].paused(query.request.output)
            ]
            queries = self._worth_asking(drafter, wanted)
            if not queries:
                continue
            if self._queued and drafter.computes:
                # It would compute behind what is queued: it is asked for the step behind that.
                self._pipeline.held = True
                continue
            nothing: Sequence[Proposal | None] = ()
            began = time.perf_counter()
            answers = self._call(drafter, partial(self._checked, drafter, queries), nothing)
            took = (time.perf_counter() - began) * 1e6
            if drafter.computes:
                self._weighed_us += took
            else:
                self._asking[drafter.name].observe(took)
            for query, proposal in zip(queries, answers, strict=False):
                if proposal is None:
                    continue
                arrival = query.request.arrival
                before = promising.get(arrival)
                if before is None or proposal.chance > before.proposal.chance:
                    promising[arrival] = _Drafted(drafter, proposal)
                if proposal.chance >= _GOOD_CHANCE:
                    del wanting[arrival]
        return promising

    def _worth_asking(self, drafter: Drafter, queries: list[Query]) -> list[Query]:
        """These queries, each for as many drafts as are worth what a drafter that computes takes for them, by the
        request's own acceptance; those without any are left out. Another drafter gets all, unless it was too slow."""
        if not queries:
            return queries
        if not drafter.computes:
            return queries if self._affords(drafter) else []
        lengths: dict[float, int] = {}
        worth: list[Query] = []
        for query in queries:
            [chance] = self._acceptance[query.request.arrival][drafter.name].chances(_GOOD_CHANCE, 1)
            chance = round(chance * _CHANCES) / _CHANCES
            if chance not in lengths:
                lengths[chance] = self.planner.chain_length(self._load, len(queries), chance, drafter.cost_us)
            if length := lengths[chance]:
                worth.append(replace(query, most=min(query.most, length)))
        if not worth:
            self.planner.refused()
        return worth

    def _affords(self, drafter: Drafter) -> bool:
        asking = self._asking[drafter.name]
        if self.planner.affords(self._load, asking.expected()):
            return True
        asking.skip()
        self.planner.refused()
        return False

    def _checked(self, drafter: Drafter, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        """A drafter's proposals. Raises ValueError where they are not of tokens, one for each query."""
        proposals = [proposal if proposal and proposal.tokens else None for proposal in drafter.propose(queries)]
        if len(proposals) != len(queries):
            raise ValueError(f"{len(proposals)} proposals for {len(queries)} queries")
        for proposal in filter(None, proposals):
            if not 0 <= min(proposal.tokens) <= max(proposal.tokens) < self._vocabulary:
                raise ValueError("a proposal has tokens outside the vocabulary")
        return proposals

    def _call(self, drafter: Drafter, call: Callable[[], Answer], otherwise: Answer) -> Answer:
        """What a drafter answers. It is no part of a request's answer: if it fails, requests go on without it."""
        try:
            return call()
        except Exception:
            logger.exception("a drafter failed; it is asked for no more drafts", drafter=drafter.name)
            self.drafters = [other for other in self.drafters if other is not drafter]
            self._close(drafter)
            if not self.drafters:
                self.off = "failed"
                logger.error("speculation is off", off=OFF[self.off])
            return otherwise

    def _close(self, drafter: Drafter) -> None:
        try:
            drafter.close()
        except Exception:
            logger.exception("a drafter that failed did not give back what it holds", drafter=drafter.name)

    def _begin(self, request: Request) -> None:
        if request.arrival not in self._acceptance:
            self._acceptance[request.arrival] = {drafter.name: Acceptance(MOST_DRAFTS) for drafter in self.drafters}
            for drafter in self.drafters:
                self._call(drafter, partial(drafter.begin, request), None)

    def _choose(self, decodes: Sequence[Decode], proposals: dict[int, _Drafted], room: int, took: float) -> None:
        requests = {work.request.arrival: work.request for work in decodes}
        candidates = [
            Candidate(arrival, requests[arrival].lane, self._chances(arrival, drafted))
            for arrival, drafted in proposals.items()
        ]
        counts = self.planner.plan(self._load, candidates, max(0, room), took, queued=self._queued)
        if self._queued:
            # It comes without drafts, and behind it they can be verified, if it proves them right so far.
            self._guessed, self._pipeline.held = proposals, self._pipeline.held or bool(counts)
            return
        for arrival in self._guess_time.turns(counts):
            request = requests[arrival]
            if self._batch.draft(request, self._valid(request, proposals[arrival].proposal.tokens[: counts[arrival]])):
                self._drafted[arrival] = proposals[arrival]
        self._pipeline.held = bool(self._drafted)

    def _valid(self, request: Request, drafts: Sequence[int]) -> Sequence[int]:
        """These drafts, as far as the request's grammar allows them; none if there is no time to ask it."""
        if request.row is None or request.row.guide is None:
            return drafts
        guide = request.row.guide
        return drafts[: self._guess_time.guess(request.arrival, lambda: guide.count_valid(drafts), 0)]

    def _chances(self, arrival: int, drafted: _Drafted) -> Sequence[float]:
        proposal = drafted.proposal
        count = min(len(proposal.tokens), MOST_DRAFTS)
        return self._acceptance[arrival][drafted.drafter.name].chances(proposal.chance, count)

    # ------------------------------------------------------------ after a step

    def record(self, works: Sequence[Work], outcomes: Sequence[WorkOutcome]) -> None:
        """Count what became of a step's drafts; to be called before the step is committed."""
        decodes = rows = accepted = 0
        for work, outcome in zip(works, outcomes, strict=True):
            if isinstance(work, Decode):
                decodes += 1
                rows += work.count
                accepted += len(outcome.accepted)
                self.totals.emitted += len(outcome.accepted) + (outcome.token is not None)
                if work.drafts:
                    self._record_drafts(work, len(outcome.accepted))
        self.totals.decodes += decodes
        self._record_guesses(works, outcomes)
        if not self.off and decodes and self.planner.costs is not None:
            self._observe(decodes, rows, accepted, alone=decodes == len(works))
        self._recorded = time.perf_counter()

    def _record_guesses(self, works: Sequence[Work], outcomes: Sequence[WorkOutcome]) -> None:
        for work, outcome in zip(works, outcomes, strict=True) if self._guessed else ():
            guessed = self._guessed.get(work.request.arrival)
            if guessed is not None and outcome.token is not None:
                right = guessed.proposal.tokens[0] == outcome.token
                acceptance = self._acceptance[work.request.arrival][guessed.drafter.name]
                acceptance.verified(1, int(right), work.request.output + 1)

    def _record_drafts(self, work: Decode, accepted: int) -> None:
        request, drafted, totals = work.request, len(work.drafts), self.totals
        request.drafted += drafted
        request.accepted += accepted
        totals.verified += 1
        totals.drafted += drafted
        totals.accepted += accepted
        for position in range(min(accepted, MOST_DRAFTS)):
            totals.accepted_at[position] += 1
        if (by := self._drafted.get(request.arrival)) is not None:
            name = by.drafter.name
            totals.drafted_by[name] += drafted
            totals.accepted_by[name] += accepted
            self._acceptance[request.arrival][name].verified(drafted, accepted, request.output + accepted + 1)
            self._call(by.drafter, partial(by.drafter.verified, request, drafted, accepted), None)

    def _observe(self, decodes: int, rows: int, accepted: int, *, alone: bool) -> None:
        costs, kv = self.planner.costs, self._load.kv
        assert costs is not None
        if alone and self._began:
            self._observe_time(costs, decodes, rows)
        if rows > decodes:
            plain = costs.step_us(decodes, kv)
            self.totals.gained_us += accepted * plain / decodes - (costs.verify_us(rows, kv) - plain)

    def _observe_time(self, costs: VerifyCosts, decodes: int, rows: int) -> None:
        now, kv = time.perf_counter(), self._load.kv
        if not self._pipeline.queues:
            costs.observe(rows, kv, (now - self._began) * 1e6)
        elif self._recorded and rows > decodes:
            # From one step's end to the next one's, but for what drafting took, which is weighed apart.
            costs.observe_verified(rows, kv, (now - self._recorded) * 1e6 - self.step_us)
        elif self._recorded and self._queued:
            costs.observe(rows, kv, (now - self._recorded) * 1e6)

    def end(self, request: Request) -> None:
        """The request has left the engine."""
        began = self._acceptance.pop(request.arrival, None) is not None
        self._drafted.pop(request.arrival, None)
        for drafter in self.drafters:
            if began or drafter.computes:  # which may have computed its prompt
                self._call(drafter, partial(drafter.end, request), None)

    def retain(self, scope: str, seconds: float) -> None:
        """A scope's texts may be remembered for so long."""
        for drafter in self.drafters:
            self._call(drafter, partial(drafter.retain, scope, seconds), None)

    def purge(self, scope: str) -> None:
        """Drop all that drafters remember of a scope's requests."""
        for drafter in self.drafters:
            self._call(drafter, partial(drafter.purge, scope), None)

    def forget(self, scope: str) -> None:
        """The scope is gone: drop all that drafters remember of it."""
        for drafter in self.drafters:
            self._call(drafter, partial(drafter.forget, scope), None)
