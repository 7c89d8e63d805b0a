"""Turns what becomes of requests into events: what a step drew, and how requests and their choices end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import msgspec
import structlog
import torch

from engine.core.input_processor import Rejected
from engine.core.parent_request import ParentRequest
from engine.core.quarantine import Quarantine
from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_work import NotFinite, Prefill, Work, WorkOutcome
from engine.speculation.speculator import Speculator
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.placement.fetch_or_recompute import Place
from protocol.requests import Began, Counts, Done, Miss, PromptLogprobs, PromptRead, Reason, Tokens

Event: TypeAlias = Began | PromptLogprobs | Tokens | Done

logger = structlog.get_logger("engine.core.output_processor")

MAX_ERROR_CHARS = 500
"""Errors go into journal records, which are bounded."""
_NOT_OF_THE_PROMPT = {"output": 0, "recomputed": 0, "drafted": 0, "accepted": 0}


_WANT_OF_MEMORY = "out of memory", "ALLOC_FAILED", "DefaultCPUAllocator"
"""In errors of CUDA and Triton, of cuBLAS and cuDNN, and of torch on a CPU."""


@dataclass(frozen=True)
class Progress:
    """The counts of a request after a step, for the journal."""

    id: str
    attempt: int
    counts: Counts


@dataclass
class StepResult:
    """What happened since the step before, in order. `ran`: whether the model computed something."""

    events: list[Event] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    claims: dict[str, bytes] = field(default_factory=dict)
    """id -> claim, of the requests that began and have one."""
    delivered: dict[str, int] = field(default_factory=dict)
    """id -> output tokens of an earlier attempt that had reached the client, of the requests that began after one."""
    ran: bool = False


class OutputProcessor:
    """Collects the events of the next `StepResult`, and removes from `requests`, by id, those that end.

    `totals` counts tokens and requests since the start, by name.
    """

    def __init__(
        self,
        requests: dict[str, ParentRequest],
        scheduler: Scheduler,
        fairness: FairShare,
        quarantine: Quarantine,
        speculator: Speculator,
    ) -> None:
        self.totals = dict.fromkeys(("computed", "read", "output", "recomputed", "finished", "rejected", "errors"), 0)
        self.result = StepResult()
        self._requests = requests
        self._scheduler = scheduler
        self._pool = scheduler.pool
        self._fairness = fairness
        self._quarantine = quarantine
        self._speculator = speculator
        self._failed_choices: list[tuple[ParentRequest, Callable[[], None]]] = []
        """Requests that a choice's failure in this step ends, and how: after the tokens of all choices are out."""

    def take_result(self) -> StepResult:
        """What was collected since the last call."""
        result, self.result = self.result, StepResult()
        return result

    def reject(self, id: str, attempt: int, error: Rejected) -> None:
        """Answer a request that is not taken."""
        self.totals["rejected"] += 1
        self.result.events.append(
            Done(id, attempt, "rejected", Counts(), 0, error=str(error), refusal=error.refusal, invalid=error.invalid)
        )

    def begin(self, request: Request) -> None:
        """Tell that a request was scheduled for the first time."""
        self.totals["read"] += request.read_hbm
        planned = _planned(request)
        read = planned.read
        misses = (Miss(read, request.prompt, "cold" if request.read else "no_read"),)
        self.result.events.append(Began(request.id, request.attempt, planned, misses))
        parent = self._requests[request.id]
        parent.timeline.begin(request.read_tokens)
        if parent.claim:
            self.result.claims[request.id] = parent.claim
        if parent.delivered:
            self.result.delivered[request.id] = parent.delivered
        self.result.progress.append(Progress(request.id, request.attempt, parent.counts()))

    # ------------------------------------------------------------ after a step

    def commit(self, works: Sequence[Work], outcomes: list[WorkOutcome], started: float) -> None:
        """Commit a step to the scheduler and publish its outcomes, in the order of `works`; what failed is ended.

        `started`: when the step's computing began, by `time.monotonic`.
        """
        self.result.ran = True
        self._speculator.record(works, outcomes)
        failed = False
        for work, outcome in zip(works, outcomes, strict=True):
            parent = self._requests.get(work.request.id)
            if outcome.error is not None and parent is not None:
                self._fail(parent, work.request, outcome.error)
                failed = True
        done = list(zip(works, outcomes, strict=True))
        if failed:  # all choices of a request fail together
            done = [(work, outcome) for work, outcome in done if work.request.id in self._requests]
            works = [work for work, _ in done]
        # A request whose output limit is 0 is there for its prompt: what was drawn for it is dropped.
        tokens = [outcome.token if work.request.max_output else None for work, outcome in done]
        prefills = [work for work in works if type(work) is Prefill]
        prefilled = [work.request for work in prefills]
        totals_before = _computed_tokens(prefilled)
        put_off = {work.request.arrival for work, outcome in done if outcome.put_off}
        accepted = {work.request.arrival: outcome.accepted for work, outcome in done if outcome.accepted}
        self._scheduler.commit(works, tokens, put_off, accepted)
        for work, outcome in done:
            if outcome.grammar_s > 0:
                self._fairness.charge_extra(work.request, outcome.grammar_s * 1e6)
        totals = _computed_tokens(prefilled)
        for name, total, total_before in zip(("computed", "recomputed"), totals, totals_before, strict=True):
            self.totals[name] += total - total_before
        if prefills:
            ended = time.monotonic()
            for work in prefills:
                request = work.request
                self._requests[request.id].timeline.chunk(started, ended, work.count, request.read_tokens)
        told: set[str] = set()
        for work, outcome in done:
            parent = self._requests[work.request.id]
            if work.request.id not in told:  # once for all choices: it counts them all
                told.add(work.request.id)
                parent.timeline.drafting_us += self._speculator.step_us
                self.result.progress.append(Progress(work.request.id, work.request.attempt, parent.counts()))
            self._publish_outcome(parent, work, outcome)
        failed_choices, self._failed_choices = self._failed_choices, []
        for parent, end in failed_choices:
            if self._requests.get(parent.first.id) is parent:
                end()

    def _fail(self, parent: ParentRequest, request: Request, error: Exception) -> None:
        """End a request that failed alone, and quarantine its input unless the machine was short of memory."""
        if not _is_want_of_memory(error):
            self._quarantine.record_failure([request.input_key()])
        if isinstance(error, NotFinite):
            # The KV that it read may be the cause: no other request is to read it.
            for scope in {scope for _, _, scope in request.segments}:
                blocks = map(request.block_key_and_scope, range(len(request.keys)))
                self._scheduler.purge(scope, [key for key, of in blocks if of == scope])
        self.finish(parent, "error", f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS])

    def _publish_outcome(self, parent: ParentRequest, work: Work, outcome: WorkOutcome) -> None:
        request = work.request
        if outcome.scored:
            # After a preemption positions are computed again whose log probabilities were published before.
            start = max(work.start, request.scored)
            request.scored = start + len(outcome.scored)
            self.result.events.append(PromptLogprobs(request.id, request.attempt, start + 1, outcome.scored))
        if outcome.token is None:
            return
        if parent.waiting and request is parent.first:
            for child in parent.release_waiting():
                self._scheduler.add(child)
        if request.max_output:
            self._emit(parent, request, [*outcome.accepted, outcome.token], outcome)
        else:
            self.end_choice(parent, request, "abort" if parent.prompt_only else "length")

    def _emit(self, parent: ParentRequest, request: Request, tokens: list[int], outcome: WorkOutcome) -> None:
        self.totals["output"] += len(tokens)
        start = request.output - len(tokens)
        parent.timeline.decodes += start > 0
        if not start and not parent.timeline.first:
            parent.timeline.first = time.monotonic()
        if request.output >= request.credit:
            parent.timeline.out_of_credit()
        told = None
        if not start and not parent.told_prompt:
            parent.told_prompt, told = True, _prompt_read(parent.first)
        self.result.events.append(
            Tokens(
                request.id,
                request.attempt,
                request.emitted + start,
                tokens,
                request.choice,
                outcome.logprobs,
                told,
            )
        )
        if request.row is not None:
            try:
                if outcome.guide is not None:
                    request.row.accept_run(tokens, outcome.guide)
                else:
                    for token in tokens:
                        request.row.accept_token(token)
            except Exception as error:
                logger.exception("a request's sampler failed", request_id=request.id, trace_id=parent.trace_id)
                self._failed_choices.append((parent, partial(self._fail, parent, request, error)))
                return
        guide = None if request.row is None else request.row.guide
        if guide is not None and guide.failure is not None:
            failure = f"grammar: {guide.failure}"
            self._failed_choices.append((parent, partial(self.finish, parent, "error", failure, invalid="grammar")))
        elif guide.ended if guide is not None else tokens[-1] in request.sampling.stop_tokens:
            self.end_choice(parent, request, "stop")
        elif request.output >= request.max_output:
            self.end_choice(parent, request, "length")

    # ------------------------------------------------------------ ends

    def finish(
        self, parent: ParentRequest, reason: Reason, error: str | None = None, invalid: str | None = None
    ) -> None:
        """End all choices of a request that have not ended, and so the request."""
        for child in parent.open():
            self.end_choice(parent, child, reason, error, invalid)

    def end_choice(
        self,
        parent: ParentRequest,
        child: Request,
        reason: Reason,
        error: str | None = None,
        invalid: str | None = None,
    ) -> None:
        """End one choice and free its memory; with the last choice the request ends, and its `Done` is published."""
        if child in parent.waiting:
            parent.waiting.remove(child)
        else:
            self._scheduler.remove(child)
        self._speculator.end(child)
        parent.ended[child.choice] = reason
        self.end_if_over(parent, error, invalid)

    def end_if_over(self, parent: ParentRequest, error: str | None = None, invalid: str | None = None) -> None:
        """Publish the end of a request, once every choice of it has ended."""
        if len(parent.ended) < len(parent.children):
            return
        if parent.private:
            for request in parent.children:
                self._pool.purge(request.keys)
        first = parent.first
        del self._requests[first.id]
        self.totals["finished"] += 1
        self.totals["errors"] += parent.reason == "error"
        counts = parent.counts()
        counts.check()
        if parent.trace_id is not None:
            ended = {"attempt": first.attempt, "reason": parent.reason, "output_tokens": counts.output}
            logger.info("request ended", request_id=first.id, trace_id=parent.trace_id, **ended)
        self.result.events.append(
            Done(
                first.id,
                first.attempt,
                parent.reason,
                counts,
                0,
                delivered=parent.delivered,
                error=error,
                reasons=parent.reasons,
                invalid=invalid,
                claim=parent.claim,
                timeline=parent.timeline.message(sum(child.preemptions for child in parent.children)),
            )
        )


def _is_want_of_memory(error: Exception) -> bool:
    """Whether the machine was short of memory. Libraries other than torch's allocator say so in their text alone."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _WANT_OF_MEMORY)


def _planned(request: Request) -> Counts:
    """The counts that a request will have if what is being restored for it comes."""
    reads: dict[Place, int] = {}
    if request.restore is not None:
        planned = request.restore.planned
        room = max(0, request.prompt - (request.restore.end - sum(planned.values())) * BLOCK_TOKENS)
        for place, blocks in planned.items():
            reads[place] = min(room, blocks * BLOCK_TOKENS)
            room -= reads[place]
    return Counts(
        prompt=request.prompt,
        computed=request.prompt - request.read_hbm - sum(reads.values()),
        read_hbm=request.read_hbm,
        **{f"read_{place}": tokens for place, tokens in reads.items()},
    )


def _prompt_read(request: Request) -> PromptRead:
    """What became of the prompt of a request that has a token: it has not changed since."""
    return PromptRead(msgspec.structs.replace(request.counts(), **_NOT_OF_THE_PROMPT), request.losses())


def _computed_tokens(requests: Sequence[Request]) -> tuple[int, int]:
    """Tokens computed, and computed again, of these requests together."""
    return sum(request.computed for request in requests), sum(request.recomputed for request in requests)
