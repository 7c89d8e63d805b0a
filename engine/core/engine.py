"""The step loop of one replica, free of sockets, threads and files: schedule → run → sample → publish.

Not thread-safe: one thread calls everything. What happened is collected and handed out by `step`, in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import structlog
import torch

from engine.core.input_processor import InputProcessor, Rejected
from engine.core.parent_request import ParentRequest
from engine.core.quarantine import Quarantine
from engine.core.timeouts import RequestTimeouts
from engine.execution.executor import StepExecutor
from engine.execution.model_runner import ModelRunner, NotFinite, WorkOutcome
from engine.grammar.guide import Grammar, Grammars
from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.fairness.lanes import WEIGHTS
from engine.scheduling.fairness.queue_limits import QueueBounds, expected_wait
from engine.scheduling.request import Request
from engine.scheduling.scheduler import TOKEN_TARGETS, Scheduler
from engine.scheduling.step_costs import FixedCosts, Rates, StepCosts
from engine.scheduling.step_work import Prefill, Work
from prompt_cache.kv.block_keys import BLOCK_TOKENS, model_root
from prompt_cache.kv.grouped_pool import GroupedPool
from protocol.replicas import Scope
from protocol.requests import (
    Began,
    Counts,
    Done,
    Generate,
    Lane,
    Miss,
    PromptLogprobs,
    Reason,
    Refusal,
    TokenLogprob,
    Tokens,
)

Event: TypeAlias = Began | PromptLogprobs | Tokens | Done


@dataclass(frozen=True)
class Progress:
    """A request's counts after a step, for the journal."""

    id: str
    attempt: int
    counts: Counts


@dataclass
class StepResult:
    """What happened since the last call, in order. `ran`: whether a step was computed."""

    events: list[Event] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    claims: dict[str, bytes] = field(default_factory=dict)
    """Of the requests that began, those that have one."""
    ran: bool = False


logger = structlog.get_logger("engine.core.engine")

_LONGEST_ERROR = 500
"""Errors go into journal records, which are bounded."""


@dataclass(frozen=True)
class EngineLimits:
    """What the engine takes: `budget` tokens a step, requests running and waiting, tokens of context.

    `patience`: how many seconds a request may wait in its lane before it is refused; 0 for ever. `lane_weights`: shares
    of engine time. `token_targets`: µs between two tokens.
    """

    context_tokens: int
    max_running: int = 256
    max_waiting: int = 24_576
    budget: int = 1024
    bounds: QueueBounds = field(default_factory=QueueBounds)
    patience: Mapping[Lane, float] = field(default_factory=dict)
    lane_weights: Mapping[Lane, float] = field(default_factory=lambda: WEIGHTS)
    token_targets: Mapping[Lane, float] = field(default_factory=lambda: TOKEN_TARGETS)


class Engine:
    """Requests of one served model on one device. `clock` gives seconds since the Unix epoch."""

    def __init__(
        self,
        runner: ModelRunner,
        pool: GroupedPool,
        limits: EngineLimits,
        model_digest: str,
        clock: Callable[[], float] = time.time,
        *,
        costs: StepCosts | None = None,
        swap: GroupedPool | None = None,
        quarantine: Quarantine | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.runner = runner
        self.pool = pool
        self.limits = limits
        self.steps = 0
        self.quarantine = Quarantine(clock=clock) if quarantine is None else quarantine
        self.costs: StepCosts = FixedCosts(Rates(batch=limits.max_running)) if costs is None else costs
        self.execution = StepExecutor(runner, self.costs)
        self.fairness = FairShare(self.costs, weights=limits.lane_weights)
        self.scheduler = Scheduler(
            pool,
            limits.budget,
            limits.max_running,
            self.fairness,
            costs=self.costs,
            targets=limits.token_targets,
            swap=swap,
        )
        self.totals = dict.fromkeys(("computed", "read", "output", "recomputed", "finished", "rejected", "errors"), 0)
        longest = self.scheduler.needs.longest
        room = limits.context_tokens if longest is None else min(limits.context_tokens, longest * BLOCK_TOKENS)
        self.input_processor = InputProcessor(
            runner.model.config.vocabulary, room, model_root(model_digest), clock, grammars
        )
        self._clock = clock
        self._requests: dict[str, ParentRequest] = {}
        self._timeouts = RequestTimeouts(self._requests, limits.patience)
        self._failed_choices: list[tuple[ParentRequest, Callable[[], None]]] = []
        """Whose end a choice's failure in this step is, once all its choices have told what they drew."""
        self._result = StepResult()

    # ------------------------------------------------------------ requests

    def add(self, generate: Generate, scopes: Mapping[str, Scope], grammar: Grammar | Rejected | None = None) -> None:
        """Queue a request; one that cannot run is answered with a `rejected` Done at the next `step`.

        `grammar`: its compiled grammar, or why there is none; if None it is compiled here.
        """
        try:
            if generate.id in self._requests:
                raise Rejected(f"id: {generate.id!r} is already running")
            family = self.input_processor.accept(generate, scopes, grammar)
            self._check_quarantine(family.first)
            self._check_queue_limits(family.first)
        except Rejected as error:
            self._reject(generate.id, generate.attempt, error)
            return
        except Exception as error:  # a grammar's library, say: nobody else is to suffer from it
            logger.exception("a request could not be taken", request_id=generate.id)
            self._reject(generate.id, generate.attempt, Rejected(f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]))
            return
        self._requests[family.first.id] = family
        self._timeouts.watch_deadline(family.first)
        self._timeouts.watch_queue_timeout(family.first)
        self.scheduler.add(family.first)

    def _reject(self, id: str, attempt: int, error: Rejected) -> None:
        self.totals["rejected"] += 1
        rejected = Done(
            id, attempt, "rejected", Counts(), 0, error=str(error), refusal=error.refusal, invalid=error.invalid
        )
        self._result.events.append(rejected)

    def _running(self, id: str, attempt: int) -> ParentRequest | None:
        """The request of this id, if it is in this attempt; 0 for any."""
        family = self._requests.get(id)
        return family if family is not None and attempt in (0, family.first.attempt) else None

    def abort(self, id: str, choice: int | None = None, attempt: int = 0) -> bool:
        """Stop a request, or one choice of it, and free its memory now; Done follows at the next `step`.

        `attempt`: only if it is in this attempt; 0 for any. False if no such request runs.
        """
        family = self._running(id, attempt)
        if family is None:
            return False
        if choice is None:
            self._finish(family, "abort", None)
            return True
        for member in family.open():
            if member.choice == choice:
                self._stop_choice(family, member)
        return True

    def _stop_choice(self, family: ParentRequest, member: Request) -> None:
        if member is family.first and family.waiting:
            family.prompt_only = True
            member.max_output = 0  # it still computes the prompt for the others
        else:
            self._end(family, member, "abort")

    def credit(self, id: str, delivered: int, limit: int, attempt: int = 0) -> tuple[int, int] | None:
        """Raise how many tokens may be sent; returns the request's attempt and how many of its tokens were delivered.

        None for an unknown id or another attempt, whose end may be on its way.
        """
        family = self._running(id, attempt)
        if family is None:
            return None
        family.delivered = max(family.delivered, min(delivered, family.output))
        for request in family.members:
            request.credit = max(request.credit, limit)
            self.scheduler.credited(request)
        return family.first.attempt, family.delivered

    def extend(
        self, id: str, max_tokens: int, deadline: float | None = None, lane: Lane | None = None, attempt: int = 0
    ) -> None:
        """Raise a request's output limit, as far as the context and memory have room, and its deadline; change its
        lane. `attempt` as in `abort`."""
        family = self._running(id, attempt)
        if family is None:
            return
        before = family.first.deadline
        for request in family.members:
            more = min(max_tokens, self.input_processor.room(request.prompt)) - request.max_output
            if more > 0 and not (family.prompt_only and request is family.first):
                request.max_output += more
                if request.row is not None:
                    request.row.limit += more
            later = request.deadline
            if deadline is not None and later is not None:
                later = max(later, deadline)
            self._change(family, request, request.lane if lane is None else lane, later)
        if family.first.deadline != before:
            self._timeouts.watch_deadline(family.first)
        if lane is not None and not family.first.began:
            self._timeouts.watch_queue_timeout(family.first)

    def _change(self, family: ParentRequest, request: Request, lane: Lane, deadline: float | None) -> None:
        if request in family.waiting or request.choice in family.ended:  # the scheduler does not know it
            request.lane, request.deadline = lane, deadline
        else:
            self.scheduler.change(request, lane, deadline)

    def elsewhere(self, replica: str, epoch: int, service: Mapping[str, int]) -> None:
        """What another replica's `Beat.service` says: counts against those flows here, so that each has one share."""
        self.fairness.elsewhere(replica, epoch, service)

    def forget(self, scope: str) -> None:
        """Make all blocks of this scope unfindable."""
        self.pool.forget(scope)

    def purge(self, keys: tuple[bytes, ...]) -> None:
        """Make the blocks with these keys unfindable."""
        self.pool.purge(keys)

    # ------------------------------------------------------------ the step

    @property
    def busy(self) -> bool:
        """Whether `step` would do or tell something now."""
        return self.scheduler.busy or bool(self._result.events)

    @property
    def next_deadline(self) -> float | None:
        """When `step` has to look at deadlines, if nothing else happens."""
        return self._timeouts.next

    def step(self) -> StepResult:
        """Run one step, if there is work, and return all that happened since the last call."""
        self._expire()
        step = self.scheduler.schedule(self._clock())
        for request in step.began:
            self._begin(request)
        self.execution.prepare(step)
        if step.work:
            self.steps += 1
            self._result.ran = True
            self._commit(step.work, self.execution.run(step.work))
        result, self._result = self._result, StepResult()
        return result

    def _commit(self, works: Sequence[Work], outcomes: list[WorkOutcome]) -> None:
        failed = False
        for work, outcome in zip(works, outcomes, strict=True):
            family = self._requests.get(work.request.id)
            if outcome.error is not None and family is not None:
                self._fail(family, work.request, outcome.error)
                failed = True
        done = list(zip(works, outcomes, strict=True))
        if failed:  # with one choice its whole request failed
            done = [(work, outcome) for work, outcome in done if work.request.id in self._requests]
            works = [work for work, _ in done]
        # Where only the prompt was of interest, nothing is put out.
        tokens = [outcome.token if work.request.max_output else None for work, outcome in done]
        prefilled = [work.request for work in works if type(work) is Prefill]
        before = _work_of(prefilled)
        put_off = {work.request.arrival for work, outcome in done if outcome.put_off}
        self.scheduler.commit(works, tokens, put_off)
        for work, outcome in done:
            if outcome.grammar_s > 0:
                self.fairness.worked(work.request, outcome.grammar_s * 1e6)
        for name, total, earlier in zip(("computed", "recomputed"), _work_of(prefilled), before, strict=True):
            self.totals[name] += total - earlier
        for work, outcome in done:
            self._tell(self._requests[work.request.id], work, outcome)
        lost, self._failed_choices = self._failed_choices, []
        for family, end in lost:
            if self._requests.get(family.first.id) is family:
                end()

    def _fail(self, family: ParentRequest, request: Request, error: Exception) -> None:
        """End a request that failed alone, and remember its input unless the machine was short of memory."""
        if not isinstance(error, MemoryError | torch.OutOfMemoryError):
            self.quarantine.blame([request.input_key()])
        if isinstance(error, NotFinite):
            # What it read may have been at fault: nobody else is to read it.
            self.pool.purge(request.keys)
        self._finish(family, "error", f"{type(error).__name__}: {error}"[:_LONGEST_ERROR])

    def _tell(self, family: ParentRequest, work: Work, outcome: WorkOutcome) -> None:
        request = work.request
        self._result.progress.append(Progress(request.id, request.attempt, family.counts()))
        if outcome.scored:
            # Only now: a step that failed is run again, and what is computed again after a preemption was told before.
            start = max(work.start, request.scored)
            request.scored = start + len(outcome.scored)
            self._result.events.append(PromptLogprobs(request.id, request.attempt, start + 1, outcome.scored))
        if outcome.token is None:
            return
        if family.waiting and request is family.first:
            for member in family.released():
                self.scheduler.add(member)
        if request.max_output:
            self._emit(family, request, outcome.token, () if outcome.logprob is None else (outcome.logprob,))
        else:
            self._end(family, request, "abort" if family.prompt_only else "length")

    def _emit(self, family: ParentRequest, request: Request, token: int, logprobs: tuple[TokenLogprob, ...]) -> None:
        self.totals["output"] += 1
        start = request.output - 1
        self._result.events.append(Tokens(request.id, request.attempt, start, [token], request.choice, logprobs))
        if request.row is not None:
            try:
                request.row.take(token)
            except Exception as error:
                logger.exception("a request's sampler failed", request_id=request.id)
                self._failed_choices.append((family, partial(self._fail, family, request, error)))
                return
        guide = None if request.row is None else request.row.guide
        if guide is not None and guide.failure is not None:
            failure = f"grammar: {guide.failure}"
            self._failed_choices.append((family, partial(self._finish, family, "error", failure, invalid="grammar")))
        elif guide.ended if guide is not None else token in request.sampling.stop_tokens:
            self._end(family, request, "stop")
        elif request.output >= request.max_output:
            self._end(family, request, "length")

    def _begin(self, request: Request) -> None:
        read = request.read_hbm
        self.totals["read"] += read
        planned = Counts(prompt=request.prompt, computed=request.prompt - read, read_hbm=read)
        misses = (Miss(read, request.prompt, "cold" if request.read else "no_read"),)
        queued = max(0.0, self._clock() - request.arrived_at)
        self._result.events.append(Began(request.id, request.attempt, planned, misses, queued))
        if claim := self._requests[request.id].claim:
            self._result.claims[request.id] = claim
        self._result.progress.append(Progress(request.id, request.attempt, request.counts()))

    def _finish(self, family: ParentRequest, reason: Reason, error: str | None, invalid: str | None = None) -> None:
        """End all that is open of a request."""
        for member in family.open():
            self._end(family, member, reason, error, invalid)

    def _end(
        self,
        family: ParentRequest,
        member: Request,
        reason: Reason,
        error: str | None = None,
        invalid: str | None = None,
    ) -> None:
        """End one choice; with the last one the request has ended."""
        if member in family.waiting:
            family.waiting.remove(member)
        else:
            self.scheduler.remove(member)
        family.ended[member.choice] = reason
        if len(family.ended) < len(family.members):
            return
        if family.private:
            for request in family.members:
                self.pool.purge(request.keys)
        first = family.first
        del self._requests[first.id]
        self.totals["finished"] += 1
        self.totals["errors"] += family.reason == "error"
        counts = family.counts()
        counts.check()
        self._result.events.append(
            Done(
                first.id,
                first.attempt,
                family.reason,
                counts,
                0,
                delivered=family.delivered,
                error=error,
                reasons=family.reasons,
                invalid=invalid,
                claim=family.claim,
            )
        )

    # ------------------------------------------------------------ deadlines

    def _expire(self) -> None:
        if self._timeouts:
            now = self._clock()
            for family in self._timeouts.over(now):
                self._finish(family, "deadline", None)
            for family in self._timeouts.queue_timeouts(now):
                self._give_up(family.first, now)

    def _give_up(self, request: Request, now: float) -> None:
        """Refuse a request that has waited for as long as its lane lets it, and got nothing."""
        self.scheduler.remove(request)
        del self._requests[request.id]
        waited = now - request.arrived_at
        # Shares say how long it takes if those who run give way: they did not for as long as it waited.
        wait = max(waited, expected_wait(self.fairness, request))
        error = f"it waited {waited:.0f} s in its lane; another {wait:.0f} s are to be expected"
        self._reject(request.id, request.attempt, Rejected(error, Refusal("lane", wait)))

    # ------------------------------------------------------------ who may wait

    def _check_quarantine(self, request: Request) -> None:
        """Raise Rejected when this input made the engine fail a while ago."""
        refused_seconds = self.quarantine.refused_seconds(request.input_key()) if len(self.quarantine) else None
        if refused_seconds is not None:
            refusal = Refusal("input", refused_seconds)
            raise Rejected(
                f"tokens: this input made the engine fail; it is refused for {refused_seconds:.0f} s", refusal
            )

    def _check_queue_limits(self, request: Request) -> None:
        """Raise Rejected, with an estimate of the wait, when too much waits already."""
        # Of a request with several choices they count together, so that nobody fills the queue with a few of them.
        if len(self._requests) - len({running.id for running in self.scheduler.running}) >= self.limits.max_waiting:
            refusal = Refusal("replica", expected_wait(self.fairness, request))
            raise Rejected(f"the queue is full: {self.limits.max_waiting} requests wait", refusal)
        full = self.limits.bounds.refusal(self.fairness, request, self.limits.max_waiting)
        if full is not None:
            raise Rejected(f"the queue of this {full.whose} is full; a request would wait {full.wait_s:.0f} s", full)

    # ------------------------------------------------------------ figures

    @property
    def running(self) -> int:
        """Requests that hold blocks."""
        return len(self.scheduler.running)

    def service(self) -> dict[str, int]:
        """Engine time in µs that this replica gave so far, by `lane/flow`."""
        return self.fairness.service_given()

    @property
    def longest_step_s(self) -> float:
        """How long the fullest step takes, by what steps took so far."""
        return self.costs.rates.step_time(self.limits.budget, self.limits.max_running) / 1e6


def _work_of(requests: Sequence[Request]) -> tuple[int, int]:
    """Tokens computed and computed again, of these requests together."""
    return sum(request.computed for request in requests), sum(request.recomputed for request in requests)
