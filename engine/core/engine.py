"""The step loop of one replica: schedule → run → sample → publish, free of sockets, threads and files.

Not thread-safe: one thread makes all calls. Events are collected, and `step` returns them in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from engine.adapters.adapter_store import Adapters
from engine.core.input_processor import InputProcessor, Rejected
from engine.core.metrics import heartbeat
from engine.core.output_processor import MAX_ERROR_CHARS, OutputProcessor, StepResult
from engine.core.parent_request import ParentRequest
from engine.core.quarantine import Quarantine
from engine.core.request_timeline import RequestTimeline
from engine.core.step_traffic import UNKNOWN_SIZE, ModelSize, StepTraffic
from engine.core.timeouts import TimeoutWatch
from engine.execution.executor import StepExecutor
from engine.grammar.guide import Grammar, Grammars
from engine.scheduling.dram_tier import MOST_SCOPES
from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.fairness.lanes import LANE_WEIGHTS
from engine.scheduling.fairness.queue_limits import QueueBounds, expected_wait
from engine.scheduling.request import Request
from engine.scheduling.scheduler import TOKEN_TARGETS, Scheduler
from engine.scheduling.step_work import DeviceFailed, Prefill, Step
from engine.scheduling.tier import Tier, look_in
from engine.speculation.speculator import NO_SPECULATION, Speculation, Speculator
from prompt_cache.kv.block_keys import BLOCK_TOKENS, model_root
from prompt_cache.kv.grouped_pool import GroupedPool
from prompt_cache.tiers.identity import ScopeAccess
from protocol.replicas import Heartbeat, Scope, owner_of
from protocol.requests import Generate, Lane, Refusal
from protocol.trace_context import trace_id_of

_STOP_PAUSE_S = 0.002
_LEAST_CLOSE_S = 0.5
logger = structlog.get_logger("engine.core.engine")


@dataclass(frozen=True)
class EngineLimits:
    context_tokens: int
    """Tokens of a prompt and its output together."""
    max_running: int = 256
    """Requests that hold KV blocks at once."""
    budget: int = 1024
    """Tokens in a step."""
    bounds: QueueBounds = field(default_factory=QueueBounds)
    """How much may wait."""
    queue_timeouts: Mapping[Lane, float] = field(default_factory=dict)
    """Seconds that a request may wait in its lane before it is refused; 0 or none for no limit."""
    lane_weights: Mapping[Lane, float] = field(default_factory=lambda: LANE_WEIGHTS)
    """Shares of engine time."""
    token_targets: Mapping[Lane, float] = field(default_factory=lambda: TOKEN_TARGETS)
    """µs between two tokens of a request."""


class Engine:
    """The requests of one served model on one device.

    `clock` gives seconds since the Unix epoch. `dram`: the pool of host memory; `tiers`: those behind it, the nearest
    first. `quarantine` None: an empty one in memory. `publishes`: whether others may find a request's blocks (C2).
    `adapters`: None where none are computed.
    """

    def __init__(
        self,
        executor: StepExecutor,
        pool: GroupedPool,
        limits: EngineLimits,
        model_digest: str,
        clock: Callable[[], float] = time.time,
        *,
        dram: GroupedPool | None = None,
        tiers: Sequence[Tier] = (),
        quarantine: Quarantine | None = None,
        grammars: Grammars | None = None,
        publishes: bool = True,
        speculation: Speculation = NO_SPECULATION,
        size: ModelSize = UNKNOWN_SIZE,
        adapters: Adapters | None = None,
    ) -> None:
        self.executor = executor
        self.copies, self.costs = executor.copies, executor.costs
        self.pool = pool
        self.tiers = tiers
        self.limits = limits
        self.steps = 0
        self.traffic = StepTraffic(size)
        self.quarantine = Quarantine(clock=clock) if quarantine is None else quarantine
        self.fairness = FairShare(self.costs, weights=limits.lane_weights)
        self.scheduler = Scheduler(
            pool,
            limits.budget,
            limits.max_running,
            self.fairness,
            costs=self.costs,
            targets=limits.token_targets,
            dram=dram,
            tiers=tiers,
            block_bytes=executor.block_bytes,
            # Where a copy takes the step's own time, it costs the same ahead, and in vain if the block is used again.
            most_drafts=executor.most_drafts,
            clean=-(-limits.context_tokens // BLOCK_TOKENS) + 1 if self.copies.beside else 0,
            adapters=None if adapters is None else adapters.slots,
        )
        longest = self.scheduler.needs.longest
        room = limits.context_tokens if longest is None else min(limits.context_tokens, longest * BLOCK_TOKENS)
        self.adapters = None if adapters is None else adapters.store
        self.input_processor = InputProcessor(
            executor.vocabulary,
            room,
            model_root(model_digest),
            clock,
            grammars,
            publishes=publishes,
            adapters=self.adapters,
        )
        self._clock = clock
        self._introduced: dict[str, Scope] = {}  # by the name that a gateway told
        self._retentions: dict[str, float] = {}  # their seconds, as gateways that know their keys said last
        self._requests: dict[str, ParentRequest] = {}
        self._timeouts = TimeoutWatch(self._requests, limits.queue_timeouts)
        self.scheduler.batch.pipeline = executor.pipeline
        self.speculator = Speculator(speculation, self.scheduler.batch, self.costs, limits.budget, executor.vocabulary)
        self.outputs = OutputProcessor(self._requests, self.scheduler, self.fairness, self.quarantine, self.speculator)

    # ------------------------------------------------------------ requests

    def add(
        self,
        generate: Generate,
        scopes: Mapping[str, Scope],
        grammar: Grammar | Rejected | None = None,
        *,
        arrived: float | None = None,
    ) -> None:
        """Queue a request. One that cannot run is answered by a `rejected` Done at the next `step`.

        `scopes`, by name, are those that its segments may be in. `grammar` is its compiled grammar, or why there is
        none; with None it is compiled here. `arrived`: when the request came, by `time.monotonic`; None: now.
        """
        try:
            if generate.id in self._requests:
                raise Rejected(f"id: {generate.id!r} is already running")
            parent = self.input_processor.accept(generate, scopes, grammar)
            for segment in generate.segments:
                self.introduce(scopes[segment.scope])
            self._check_quarantine(parent.first)
            self._check_queue_limits(parent)
        except Rejected as error:
            self.outputs.reject(generate.id, generate.attempt, error)
            return
        except Exception as error:  # raised by a grammar's library, for example: other requests go on
            logger.exception(
                "a request could not be taken", request_id=generate.id, trace_id=trace_id_of(generate.traceparent)
            )
            what = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
            self.outputs.reject(generate.id, generate.attempt, Rejected(what))
            return
        parent.timeline, self._requests[generate.id] = RequestTimeline(arrived), parent
        if generate.traceparent:
            parent.trace_id = trace_id_of(generate.traceparent)
        for first in parent.open()[:1]:
            self._timeouts.watch(first)
            self.scheduler.add(first)
        self.outputs.end_if_over(parent)

    def look_up(self, generate: Generate, scopes: Mapping[str, Scope], looked: Callable[[], None]) -> bool:
        """Let the tiers look for the prompt's blocks before the request is added, one after the other, as long as they
        do not know all that they hold: no step looks at a disk. Any thread may call this; `looked` is called in another
        one.

        Returns False where that is not needed: then `looked` is not called.
        """
        if not generate.read:
            return False
        return look_in(self.tiers, partial(self._blocks, generate, scopes), looked)

    def _blocks(self, generate: Generate, scopes: Mapping[str, Scope]) -> list[tuple[str, bytes]]:
        try:
            return self.input_processor.blocks(generate, scopes)
        except (Rejected, OverflowError, TypeError):  # it is refused when it is added
            return []

    def _running(self, id: str, attempt: int) -> ParentRequest | None:
        """The request with this id, if it is in this attempt; 0 stands for any."""
        parent = self._requests.get(id)
        return parent if parent is not None and attempt in (0, parent.first.attempt) else None

    def abort(self, id: str, choice: int | None = None, attempt: int = 0) -> bool:
        """Stop a request, or one choice of it, and free its memory now. Its Done follows at the next `step`.

        `attempt`: only if the request is in this attempt; 0 for any. Returns False if no such request runs.
        """
        parent = self._running(id, attempt)
        if parent is None:
            return False
        if choice is None:
            self.outputs.finish(parent, "abort")
            return True
        for child in parent.open():
            if child.choice == choice:
                self._stop_choice(parent, child)
        return True

    def _stop_choice(self, parent: ParentRequest, child: Request) -> None:
        if child is parent.first and parent.waiting:
            parent.prompt_only = True
            child.max_output = 0  # it still computes the prompt for the other choices
        else:
            self.outputs.end_choice(parent, child, "abort")

    def credit(self, id: str, delivered: int, limit: int, attempt: int = 0) -> tuple[int, int] | None:
        """Raise how many tokens may be sent. Returns the request's attempt and how many of its tokens were delivered.

        None for an unknown id or another attempt, whose end may be on its way.
        """
        parent = self._running(id, attempt)
        if parent is None:
            return None
        parent.delivered = max(parent.delivered, min(delivered, parent.output))
        for request in parent.children:
            request.credit = max(request.credit, limit - request.emitted)
            self.scheduler.credited(request)
        if not any(request.paused for request in parent.children):
            parent.timeline.credited()
        return parent.first.attempt, parent.delivered

    def record_remote_service(self, replica: str, epoch: int, service: Mapping[str, int]) -> None:
        """Count what another replica gave against those flows here: each flow has one share over all replicas."""
        self.fairness.record_remote_service(replica, epoch, service)

    def introduce(self, scope: Scope) -> None:
        """Tell the tiers whose blocks are to come, for how long they may be kept and how much of each tier is theirs.

        What was kept under a longer retention goes at once from the tiers beyond the device (C5). A gateway that cannot
        read a project's key does not know its retention either: it says 0, and nothing is deleted for that.
        """
        owner = owner_of(scope.scope)
        before = self._introduced.get(owner)
        if scope is before:
            return
        if len(self._introduced) >= MOST_SCOPES:
            self._introduced.clear()
        self._introduced[owner] = scope
        if scope.data_key:
            self._shorten(owner, scope.retention)
            self.speculator.retain(owner, scope.retention)
        self.scheduler.tiers.dram.introduce(replace(ScopeAccess.of(scope), scope=owner))
        if scope.limits or (before is not None and before.limits):
            self._share(owner, scope)

    def _shorten(self, owner: str, retention: float) -> None:
        """Delete what may stay no longer than `retention` seconds, and was written to stay longer."""
        before = self._retentions.pop(owner, None)
        if before is None:
            for tier in self.tiers:  # what an earlier start wrote
                tier.shorten(owner, retention)
            if len(self._retentions) >= MOST_SCOPES:
                del self._retentions[next(iter(self._retentions))]
        elif retention < before:
            self.scheduler.forget(owner, device=False)
        self._retentions[owner] = retention

    def _share(self, owner: str, scope: Scope) -> None:
        """Set what a scope may hold in the memories: bytes that are its own, and bytes at most."""
        shares = {limit.tier: (limit.reserve, limit.limit) for limit in scope.limits}
        self.pool.set_share(owner, shares.get("hbm"))
        if (dram := self.scheduler.tiers.dram.pool) is not None:
            dram.set_share(owner, shares.get("dram"))

    def forget(self, scope: str) -> None:
        """Make the blocks of a scope unfindable in every tier, zero those in host memory, and drop its key (C5)."""
        self._introduced.pop(scope, None)
        self._retentions.pop(scope, None)
        self.scheduler.forget(scope)
        self.speculator.forget(scope)
        for name in () if self.adapters is None else self.adapters.forget(scope):
            self.scheduler.adapters.forget(name)

    def purge(self, scope: str, keys: Collection[bytes]) -> None:
        """Make the blocks of a scope with these keys unfindable in every tier."""
        self.scheduler.purge(owner_of(scope), keys)
        self.speculator.purge(owner_of(scope))

    def call_when_restored(self, wake: Callable[[], None]) -> None:
        """`wake` is called, in any thread, when `step` can go on with what came from a tier, or went there."""
        for tier in self.tiers:
            tier.wake = wake
        self.scheduler.adapters.wake = wake

    def drop_adapter(self, name: str) -> None:
        """Give up an adapter. Requests that have its weights keep them to their end."""
        if self.adapters is not None:
            self.adapters.drop(name)
        self.scheduler.adapters.forget(name)

    def close(self, seconds: float) -> None:
        """No step follows: save what is retained, and end the tiers. Takes at most about this many seconds."""
        end = time.monotonic() + seconds
        savers = self.scheduler.tiers.savers
        for saver in savers:
            saver.stop(self._clock())
        while (unsaved := [saver for saver in savers if not saver.idle]) and time.monotonic() < end:
            step = self.scheduler.save_only(self._clock())
            self.copies.begin(step)
            if not self._take_copied(wait=True):
                time.sleep(_STOP_PAUSE_S)
        if unsaved:
            blocks = sum(len(saver.wishes) for saver in unsaved)
            logger.warning("not all that is retained was saved before the stop", blocks=blocks)
        for tier in self.tiers:
            tier.close(max(_LEAST_CLOSE_S, end - time.monotonic()))

    # ------------------------------------------------------------ the step

    @property
    def busy(self) -> bool:
        """Whether `step` would compute or return something now."""
        return self.scheduler.busy or bool(self.outputs.result.events) or self.copies.pending

    @property
    def next_deadline(self) -> float | None:
        """When `step` has to be called for a timeout, in seconds since the Unix epoch, if nothing happens before."""
        return min((at for at in (self._timeouts.next, self.scheduler.next_deadline) if at is not None), default=None)

    def step(self) -> StepResult:
        """Run one step if there is work. Returns what happened since the last call. Raises DeviceFailed."""
        self._expire()
        self._take_copied()
        step = self.scheduler.schedule(self._clock())
        for request in step.began:
            self.outputs.begin(request)
        self.speculator.draft(step, self.scheduler.token_target)
        self.copies.begin(step)
        # Without work there is nothing else to do than to wait for copies.
        done = self._take_copied(wait=not step.work)
        while step.needs_copies and step not in done:
            done += self._take_copied(wait=True)
        if step.work:
            self.steps += 1
            began, began_at = time.perf_counter(), time.monotonic()
            try:
                outcomes = self.executor.run(step.work)
            except DeviceFailed:
                self.quarantine.record_device_failure({work.request.input_key() for work in step.work})
                raise
            took = time.perf_counter() - began
            self.traffic.count(step.work, took)
            if len(step.work) == 1 and isinstance(work := step.work[0], Prefill):
                self.scheduler.tiers.restores.chooser.computed(work.start, work.count, took)
            self.outputs.commit(step.work, outcomes, began_at)
        return self.outputs.take_result()

    def _take_copied(self, *, wait: bool = False) -> list[Step]:
        """Tell the scheduler of the steps whose copies are done; returns them. `wait`: at least for one, if any."""
        finished = self.copies.finished(wait=wait)
        for step, bad in finished:
            self.scheduler.copied(step, bad)
        return [step for step, _ in finished]

    # ------------------------------------------------------------ deadlines

    def _expire(self) -> None:
        if self._timeouts:
            now = self._clock()
            for parent in self._timeouts.expired_deadlines(now):
                self.outputs.finish(parent, "deadline")
            for parent in self._timeouts.queue_timeouts(now):
                self._refuse_waiting(parent.first, now)

    def _refuse_waiting(self, request: Request, now: float) -> None:
        """Refuse a request that waited as long as its lane allows and never began."""
        self.scheduler.remove(request)
        del self._requests[request.id]
        waited = now - request.arrived_at
        # The estimate takes running requests to give way as fair shares say; in all that time they did not.
        wait = max(waited, expected_wait(self.fairness, request))
        error = f"it waited {waited:.0f} s in its lane; another {wait:.0f} s are to be expected"
        self.outputs.reject(request.id, request.attempt, Rejected(error, Refusal("lane", wait)))

    # ------------------------------------------------------------ limits

    def _check_quarantine(self, request: Request) -> None:
        """Raise Rejected if this input made the engine fail a while ago."""
        refused_seconds = self.quarantine.refused_seconds(request.input_key()) if len(self.quarantine) else None
        if refused_seconds is not None:
            error = f"tokens: this input made the engine fail; it is refused for {refused_seconds:.0f} s"
            raise Rejected(error, Refusal("input", refused_seconds))

    def _check_queue_limits(self, parent: ParentRequest) -> None:
        """Raise Rejected, with an estimate of the wait, if too many requests wait already; one that goes on may."""
        bounds, request, admitted = self.limits.bounds, parent.first, parent.earlier is not None
        # The choices of a request count as one: a few requests with many choices do not fill the queue.
        if not admitted and len(self._requests) - len({one.id for one in self.scheduler.running}) >= bounds.requests:
            refusal = Refusal("replica", expected_wait(self.fairness, request))
            raise Rejected(f"the queue is full: {bounds.requests} requests wait", refusal)
        request.expected_read = self.scheduler.blocks.cached_tokens(request)
        full = None if admitted else bounds.refusal(self.fairness, request)
        if full is not None:
            raise Rejected(f"the queue of this {full.whose} is full; a request would wait {full.wait_s:.0f} s", full)

    def record_stall(self) -> list[str]:
        """Quarantine the inputs of the work that runs now; returns its requests. Any thread may call this."""
        requests = [work.request for work in self.executor.working]
        self.quarantine.record_failure([request.input_key() for request in requests])
        return [request.id for request in requests]

    # ------------------------------------------------------------ metrics

    @property
    def running(self) -> int:
        """The number of requests that hold KV blocks."""
        return len(self.scheduler.running)

    def service(self) -> dict[str, int]:
        """Engine time in µs that this replica gave so far, by `lane/flow`."""
        return self.fairness.service_given()

    def heartbeat(self) -> Heartbeat:
        """What gateways are told each second."""
        return heartbeat(self)

    @property
    def longest_step_s(self) -> float:
        """Seconds that the largest step takes, by what steps took so far."""
        return self.costs.rates.step_time(self.limits.budget, self.limits.max_running) / 1e6
