"""The engine's interface over a foreign engine: requests wait in our lanes, tokens come from its streams.

`engine.server` steps it as it steps our own: journal, credit, deadlines, limits and fairness are the same code. What
the other engine decides is the tokens, and what of a prompt it had cached; both are counted as they come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

import msgspec
import structlog

from engine.core.engine import EngineLimits
from engine.core.input_processor import InputProcessor, Rejected
from engine.core.output_processor import MAX_ERROR_CHARS, Progress, StepResult
from engine.core.parent_request import ParentRequest
from engine.core.request_timeline import RequestTimeline
from engine.core.stepped_engine import NoDevice
from engine.core.timeouts import TimeoutWatch
from engine.foreign.admission import OneProject, cache_salt, check_abilities, check_queue
from engine.foreign.engine_client import ForeignRequest
from engine.foreign.foreign_run import ForeignRun
from engine.foreign.streams import Stream, Streams
from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.fairness.queue_limits import expected_wait
from engine.scheduling.request import Request
from engine.scheduling.step_costs import FixedCosts
from prompt_cache.kv.block_keys import BLOCK_TOKENS, model_root
from protocol.replicas import ENGINE_DOWN, Heartbeat, Scope, owner_of
from protocol.requests import Began, Counts, Done, Generate, Miss, PromptRead, Reason, Refusal, TokenLogprob, Tokens
from protocol.trace_context import trace_id_of

logger = structlog.get_logger("engine.foreign.foreign_engine")

_BLOCK = object()
"""Stands for a block of KV in a request's table: what a foreign engine holds is not known."""


class ForeignEngine:
    """Not thread-safe, but for `streams`: one thread makes all calls. `vocabulary`: token ids are below it. `project`:
    who alone may use it, where its cache cannot tell projects apart."""

    adapters = None
    tiers = ()
    longest_step_s = 0.0
    """Nothing here takes long: the streams have a time limit of their own."""

    def __init__(
        self,
        streams: Streams,
        vocabulary: int,
        limits: EngineLimits,
        model_digest: str,
        *,
        clock: Callable[[], float] = time.time,
        project: OneProject | None = None,
    ) -> None:
        self.executor = NoDevice()
        self.limits = limits
        self.steps = 0
        self._beats = 0
        self.fairness = FairShare(FixedCosts(), weights=limits.lane_weights)
        self.totals = dict.fromkeys(("computed", "read", "output", "recomputed", "finished", "rejected", "errors"), 0)
        self._streams = streams
        self._client = streams.client
        self._input = InputProcessor(vocabulary, limits.context_tokens, model_root(model_digest), clock, None)
        self._clock = clock
        self._requests: dict[str, ParentRequest] = {}
        self._asked: dict[str, tuple[Generate, str]] = {}
        """id -> what was asked for, and the salt of its cache; empty where nothing may be shared."""
        self._running: dict[int, ForeignRun] = {}
        """By arrival: the choices that are at the engine."""
        self._timeouts = TimeoutWatch(self._requests, limits.queue_timeouts)
        self._result = StepResult()
        self._project = project

    # ------------------------------------------------------------ requests

    def add(
        self,
        generate: Generate,
        scopes: Mapping[str, Scope],
        grammar: object = None,
        *,
        arrived: float | None = None,
    ) -> None:
        """Queue a request; one that cannot run is answered by a `rejected` Done. `grammar` is not looked at: the engine
        compiles its own."""
        try:
            if generate.id in self._requests:
                raise Rejected(f"id: {generate.id!r} is already running")
            if not self._streams.reachable:
                raise Rejected("the engine behind this replica does not answer")  # another replica is asked
            parent = self._input.accept(msgspec.structs.replace(generate, grammar=None, reasoning=None), scopes)
            check_abilities(self._client, generate)
            if self._project is not None and not self._project.is_of(owner_of(generate.segments[-1].scope)):
                raise Rejected("the engine behind this replica is that of one project, and this is another")
            check_queue(self.limits, self.fairness, parent)
        except Rejected as error:
            self._reject(generate, error)
            return
        except Exception as error:  # a disk that is full, for example: other requests go on
            logger.exception("a request could not be taken", request_id=generate.id)
            self._reject(generate, Rejected(f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]))
            return
        parent.timeline, self._requests[generate.id] = RequestTimeline(arrived), parent
        self._asked[generate.id] = generate, cache_salt(self._client, generate, scopes)
        if generate.traceparent:
            parent.trace_id = trace_id_of(generate.traceparent)
        for first in parent.open()[:1]:
            self._timeouts.watch(first)
            self.fairness.push(first)
        self._end_if_over(parent)

    def _reject(self, generate: Generate, error: Rejected) -> None:
        self.totals["rejected"] += 1
        self._result.events.append(
            Done(
                *(generate.id, generate.attempt, "rejected", Counts(), 0),
                error=str(error),
                refusal=error.refusal,
                invalid=error.invalid,
            )
        )

    def look_up(self, generate: Generate, scopes: Mapping[str, Scope], looked: Callable[[], None]) -> bool:
        """There is no disk to ask."""
        return False

    def abort(self, id: str, choice: int | None = None, attempt: int = 0) -> bool:
        """Stop a request, or one choice of it; False if no such request runs. See `Engine.abort`."""
        parent = self._of(id, attempt)
        if parent is None:
            return False
        for child in parent.open():
            if choice is None or child.choice == choice:
                if choice is not None and child is parent.first and parent.waiting:
                    parent.prompt_only, child.max_output = True, 0  # the others wait for its prompt
                else:
                    self._end_choice(parent, child, "abort")
        return True

    def credit(self, id: str, delivered: int, limit: int, attempt: int = 0) -> tuple[int, int] | None:
        """Raise how many tokens may be sent. See `Engine.credit`."""
        parent = self._of(id, attempt)
        if parent is None:
            return None
        parent.delivered = max(parent.delivered, min(delivered, parent.output))
        for request in parent.children:
            request.credit = max(request.credit, limit - request.emitted)
        if not any(request.paused for request in parent.children):
            parent.timeline.credited()
        return parent.first.attempt, parent.delivered

    def _of(self, id: str, attempt: int) -> ParentRequest | None:
        parent = self._requests.get(id)
        return parent if parent is not None and attempt in (0, parent.first.attempt) else None

    # ------------------------------------------------------------ what a foreign engine has no part in

    def introduce(self, scope: Scope) -> None:
        """Nothing of a scope is kept here."""

    def forget(self, scope: str) -> None:
        """Its salt is never used again: its root dies with it."""

    def purge(self, scope: str, keys: Collection[bytes]) -> None:
        """A foreign engine cannot be told; its own cache forgets by use."""
        logger.warning("blocks of a foreign engine cannot be purged", scope=scope, blocks=len(keys))

    def drop_adapter(self, digest: str) -> None:
        """There are none."""

    def record_remote_service(self, replica: str, epoch: int, service: Mapping[str, int]) -> None:
        """Count what another replica gave against those flows here."""
        self.fairness.record_remote_service(replica, epoch, service)

    def record_stall(self) -> list[str]:
        """No step computes anything here."""
        return []

    def call_when_restored(self, wake: Callable[[], None]) -> None:
        """`wake` is called, in another thread, when `step` can go on with what a stream brought."""
        self._streams.arrived = wake

    def close(self, seconds: float) -> None:
        """No step follows."""
        self._streams.close(max(1.0, seconds))

    # ------------------------------------------------------------ the step

    @property
    def busy(self) -> bool:
        """Whether `step` would do something now."""
        return (
            bool(self._result.events)
            or (len(self.fairness) > 0 and len(self._running) < self.limits.max_running)
            or any(run.may_take for run in self._running.values())
        )

    @property
    def next_deadline(self) -> float | None:
        """When `step` has to be called for a timeout, in seconds since the Unix epoch."""
        return self._timeouts.next

    def step(self) -> StepResult:
        """Start what may run, take what has come. Returns what happened since the last call."""
        self._expire()
        self.fairness.begin_step(self._clock())
        while len(self._running) < self.limits.max_running and (request := self.fairness.peek(_nothing_cached)):
            self._begin(request)
        for run in list(self._running.values()):
            if run.request.arrival in self._running and run.may_take:
                self._take(self._requests[run.request.id], run)
        if self._result.events:
            self.steps += 1
        result, self._result = self._result, StepResult()
        return result

    def _begin(self, request: Request) -> None:
        generate, salt = self._asked[request.id]
        parent = self._requests[request.id]
        self.fairness.admitted(request)
        request.place([], 0, 0)
        self.fairness.placed(request)
        id = f"{request.id}-{request.attempt}-{request.choice}"
        least = min(request.max_output, max(0, request.sampling.min_tokens - request.emitted))
        sampling = msgspec.structs.replace(request.sampling, min_tokens=least)
        stream = Stream(ForeignRequest(id, list(request.tokens), sampling, request.max_output, salt, generate.grammar))
        self._running[request.arrival] = run = ForeignRun(request, stream)
        if not request.began:
            request.began = True
            counts = Counts(prompt=request.prompt, computed=request.prompt)
            misses = (Miss(0, request.prompt, "cold" if request.read else "no_read"),)
            self._result.events.append(Began(request.id, request.attempt, counts, misses))
            parent.timeline.begin(0)
            if parent.claim:
                self._result.claims[request.id] = parent.claim
            if parent.delivered:
                self._result.delivered[request.id] = parent.delivered
        self._streams.start(run.stream)

    def _take(self, parent: ParentRequest, run: ForeignRun) -> None:
        """Take what has come for a choice, as far as its credit goes."""
        request, stream = run.request, run.stream
        while run.may_take and stream.chunks:
            chunk = stream.chunks.popleft()
            if chunk.cached is not None or not run.counted:
                self._count_prompt(run, chunk.cached or 0)
            room = min(request.credit, request.max_output) - request.output
            if 0 < room < len(chunk.tokens) and request.output + room < request.max_output:
                chunk, later = chunk.split(room)
                stream.chunks.appendleft(later)
            tokens, ended = run.wanted(self._asked[request.id][0], () if run.ended else chunk.tokens[:room])
            if parent.waiting and request is parent.first:
                for child in parent.release_waiting():
                    self.fairness.push(child)
            if tokens:
                self._emit(parent, request, tokens, chunk.logprobs[: len(tokens)])
            self._streams.taken(stream, len(chunk.tokens))
            if ended is None and request.output >= request.max_output:
                ended = "length"
            run.ended = run.ended or ended or chunk.ended
            if run.ended is not None and (chunk.ended is not None or not self._client.counts_last):
                self._end_choice(parent, request, "abort" if parent.prompt_only and not request.output else run.ended)
                return
        if not stream.over or stream.chunks:
            return
        if run.ended is not None:  # its counts did not come
            self._end_choice(parent, request, run.ended)
        else:
            problem = f"the engine behind this replica: {stream.problem or 'its stream ended'}"
            logger.warning("a foreign request failed", request_id=request.id, cause=problem, trace_id=parent.trace_id)
            # What a lost engine did not finish goes on at another replica, as after an abort that nobody asked for.
            for child in parent.open():
                self._end_choice(parent, child, "abort" if stream.lost else "error", problem[:MAX_ERROR_CHARS])

    def _count_prompt(self, run: ForeignRun, cached: int) -> None:
        first = run.request.choice == self._requests[run.request.id].first.choice
        for name, tokens in run.count_prompt(cached, first=first).items():
            self.totals[name] += tokens

    def _emit(
        self, parent: ParentRequest, request: Request, tokens: list[int], logprobs: tuple[TokenLogprob, ...]
    ) -> None:
        start = request.output
        request.tokens.extend(tokens)
        self.totals["output"] += len(tokens)
        for _ in range(request.output // BLOCK_TOKENS - start // BLOCK_TOKENS):
            request.table.append(_BLOCK)  # type: ignore[arg-type]  # counted by fairness, and never read
            self.fairness.grown([request])
        parent.timeline.decodes += start > 0
        if not start and not parent.timeline.first:
            parent.timeline.first = time.monotonic()
        if request.paused:
            parent.timeline.out_of_credit()
        told = None
        if not start and not parent.told_prompt:
            parent.told_prompt = True
            first = parent.first.counts()
            told = PromptRead(Counts(prompt=first.prompt, computed=first.computed, read_hbm=first.read_hbm))
        self._result.events.append(
            Tokens(request.id, request.attempt, request.emitted + start, tokens, request.choice, logprobs, told)
        )
        self._result.progress.append(Progress(request.id, request.attempt, parent.counts()))

    # ------------------------------------------------------------ ends

    def _expire(self) -> None:
        if not self._timeouts:
            return
        now = self._clock()
        for parent in self._timeouts.expired_deadlines(now):
            for child in parent.open():
                self._end_choice(parent, child, "deadline")
        for parent in self._timeouts.queue_timeouts(now):
            self._refuse_waiting(parent.first, now)

    def _refuse_waiting(self, request: Request, now: float) -> None:
        waited = now - request.arrived_at
        wait = max(waited, expected_wait(self.fairness, request))
        self.fairness.remove(request)
        del self._requests[request.id]
        generate, _ = self._asked.pop(request.id)
        error = f"it waited {waited:.0f} s in its lane; another {wait:.0f} s are to be expected"
        self._reject(generate, Rejected(error, Refusal("lane", wait)))

    def _end_choice(self, parent: ParentRequest, child: Request, reason: Reason, error: str | None = None) -> None:
        run = self._running.pop(child.arrival, None)
        if run is not None:
            self._streams.end(run.stream)
            self.fairness.released(child)
        elif child in parent.waiting:
            parent.waiting.remove(child)
        else:
            self.fairness.remove(child)
        parent.ended[child.choice] = reason
        self._end_if_over(parent, error)

    def _end_if_over(self, parent: ParentRequest, error: str | None = None) -> None:
        if len(parent.ended) < len(parent.children):
            return
        first = parent.first
        del self._requests[first.id], self._asked[first.id]
        self.totals["finished"] += 1
        self.totals["errors"] += parent.reason == "error"
        counts = parent.counts()
        counts.check()
        self._result.events.append(
            Done(
                *(first.id, first.attempt, parent.reason, counts, 0),
                delivered=parent.delivered,
                error=error,
                reasons=parent.reasons,
                claim=parent.claim,
                timeline=parent.timeline.message(0),
            )
        )

    # ------------------------------------------------------------ metrics

    @property
    def running(self) -> int:
        """Choices at the engine."""
        return len(self._running)

    def heartbeat(self) -> Heartbeat:
        """What gateways are told each second. Whether the engine answers is what can be known of its steps."""
        self._beats += self._streams.reachable
        waiting: dict[str, int] = {}
        for request in self.fairness.waiting():
            waiting[request.lane] = waiting.get(request.lane, 0) + 1
        service = self.fairness.service_given()
        name = "turnpike_engine_"
        metrics = {
            f"{name}steps_total": self.steps,
            **{
                f"{name}{kind}_tokens_total": self.totals[kind] for kind in ("computed", "read", "output", "recomputed")
            },
            f"{name}requests_finished_total": self.totals["finished"],
            f"{name}requests_rejected_total": self.totals["rejected"],
            f"{name}requests_failed_total": self.totals["errors"],
            f"{name}service_seconds_total": self.fairness.service.all_given / 1e6,
            f"{name}service_elsewhere_seconds_total": self.fairness.service.all_heard / 1e6,
            f"{name}running_requests": self.running,
            f"{name}waiting_requests": len(self.fairness),
            ENGINE_DOWN: float(not self._streams.reachable),
        }
        return Heartbeat(self.steps + self._beats, self.running, waiting, (), service=service, metrics=metrics)


def _nothing_cached(request: Request) -> int:
    return 0
