"""Runs one request from the hold to its durable usage, in a task of its own that outlives the HTTP handler.

The HTTP side only reads the task's delivery. Whatever happens to that side, the task hears the replica's last word,
makes usage of it and records it; only after that is the last chunk given out. `gateway.generation.request_state` draws
the phases; everything here that changes the request's course goes through `RequestState.move`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from functools import partial
from typing import Literal

import structlog
from msgspec.structs import replace

from billing.holds.records import Hold
from billing.service_levels.service_hours import Measure
from gateway.admission.admission import database_unavailable
from gateway.admission.prepared_request import PreparedRequest
from gateway.errors import GatewayError, Interrupted, NotCached, TimedOut, Unaffordable, Unavailable
from gateway.fleet.replica_link import ReplicaLink
from gateway.fleet.replica_stream import LinkLost, ReplicaStream, TimeOver
from gateway.generation.answer_parts import AnswerParts
from gateway.generation.attempts import Attempts, continued
from gateway.generation.choices import Choices
from gateway.generation.delivery import Delivery, Finished, FinishReason, Started
from gateway.generation.dependencies import GenerationDependencies
from gateway.generation.hold_slices import HoldSlices
from gateway.generation.outcome import (
    Undone,
    computed_prompt,
    finish_reasons,
    invalid_grammar,
    outcome_of,
    replica_lost_error,
)
from gateway.generation.request_state import Event, Outcome, RequestState, failed
from gateway.generation.task_trace import TaskTrace, chosen_by, request_facts
from gateway.generation.usage_recording import EndedRequest, UsageRecording
from gateway.limits.permit import AskedPermit
from gateway.metering.billable_usage import NONSENSE, to_billing_counts, usage_of
from gateway.request_context import public_name
from protocol.requests import Began, Done, Lost, PromptLogprobs, PromptRead, Tokens
from waterfall.marks import (
    BEGAN,
    END,
    EXPLAIN,
    HOLD,
    LIMITS,
    LOST,
    PREFIX_WAIT,
    PROMISE,
    READER,
    RETRY,
    SCOPE_KEYS,
    SPOOL,
)
from waterfall.record import Attempt
from waterfall.writer import Entry

log = structlog.get_logger("gateway.generation.generation_task")

_OUR_FAULT = 500
"""The status from which an error is ours."""
_DEADLINE_GRACE = 2.0
"""Seconds that the replica has to end an overdue request by itself, before it is asked to."""


class GenerationTask:
    """One request. `state` says how far it is and what came of it."""

    def __init__(
        self,
        deps: GenerationDependencies,
        prepared: PreparedRequest,
        *,
        streamed: bool,
        permit: AskedPermit | None = None,
        parts: AnswerParts | None = None,
    ) -> None:
        self.prepared = prepared
        self.marks = prepared.marks
        self.marks.taken = True
        self.state = RequestState()
        self.delivery = Delivery(
            streamed=streamed, on_confirmed=self._confirmed, on_left=self._client_left, on_failed=self._told_failure
        )
        self.admitted = asyncio.Event()
        """Set when its money is held and its limits let it through, or when it ends without that."""
        self._deps = deps
        self._permit = permit or AskedPermit()
        self._parts = parts or AnswerParts()
        self._parts.join(self)
        self._name = public_name(prepared.request_id)
        self._logged = {"request_id": self._name}
        """What every line of the log says of the request."""
        if deps.traces is not None:
            trace = self.marks.trace or deps.traces.begin(self.marks)
            self._logged["trace_id"] = trace.trace_id
        self._attempts = Attempts(deps.attempts, prepared.generation.first_attempt)
        self._undone: Undone | None = None
        """What became of the replica of the attempt before, where another follows."""
        self._choices = Choices(prepared)
        self._stream: ReplicaStream | None = None
        """The current attempt's."""
        self._slices: HoldSlices | None = None
        self._hold: Hold | None = None
        self._promise: Literal["open", "stands", "broken"] = "open"
        """Whether what leases promise holds for good, and may be told; `broken`: nothing is cached that was to be."""
        self._timer: asyncio.TimerHandle | None = None
        self._began: Began | None = None
        """Of the attempt that computed the prompt; once `_prompt_known`, with counts that do not change any more."""
        self._prompt_known = False
        self._lost: tuple[Lost, ...] = ()
        self._started = time.monotonic()
        self._deadline = time.time() + deps.admission.timeouts.request
        self._last_token = 0.0
        self._finished: Finished | None = None
        """What its last chunk said, if it ended well."""
        self._held_s = 0.0
        self._began_s: float | None = None
        """Seconds from the start until a replica began."""
        self._trace = TaskTrace(self.marks)
        self._sent_s = 0.0
        """Seconds from the start until the request was sent to a replica, the last time."""

    async def run(self) -> None:
        """Run the request to its end; raises nothing but CancelledError, which leaves its usage to recovery."""
        try:
            await self._run()
        except GatewayError as failure:
            refusal = await self._permit.refusal()
            await self._end_permit()
            self._fail(refusal or failure)
        except Exception:
            log.exception("a request failed inside the gateway", **self._logged, model=self.prepared.model.name)
            self._fail(Interrupted("The gateway failed while it ran the request."))
        finally:
            if self.state.phase != "ended":
                self.state.move("failed", failed(Interrupted("The gateway stopped."), "abandoned"))
            self._disarm()
            self._end_writes(succeeded=self.state.outcome is not None and self.state.outcome.status == "ok")
            await self._stop_slices()
            if self._slices is not None:
                self._trace.topped_up, self._slices = self._slices.waited_us, None
            for stream in (*self._attempts.leave(), self._stream):
                if stream is not None:
                    self._deps.fleet.end(stream)
            self.delivery.fail(Interrupted("The request ended before its answer did."))  # if a reader waits still
            self.delivery.detach()
            self._parts.ended(self)
            await self._permit.refusal()
            await self._end_permit()
            self.admitted.set()
            self._note_times()

    @property
    def entry(self) -> Entry:
        """What is known of its times by now."""
        output, held = self._choices.tokens, self._hold is not None
        self._trace.beside = self._permit.beside
        return self._trace.entry(self.prepared, self.state.outcome, output, streamed=self.delivery.streamed, held=held)

    def _note_times(self) -> None:
        """Let its times be written, when it is answered and settled."""
        kept, traces = self._deps.waterfalls, self._deps.traces
        kept = kept if kept is not None and kept.enabled else None
        if kept is None and traces is None:
            return
        self.marks.mark(END)
        entry = self.entry
        if kept is not None:
            kept.note(entry)
        if traces is not None:
            outcome = self.state.outcome
            status = 200 if outcome is None or outcome.failure is None else outcome.failure.status
            facts = partial(request_facts, self.prepared, status, self._finished, self._choices.tokens)
            traces.note(entry, failed=status >= _OUR_FAULT, facts=facts)

    def interrupt(self, failure: GatewayError) -> None:
        """End the request for a reason of ours; what was delivered is billed."""
        self._stop("interrupted", "shutdown", failed(failure))
        self.admitted.set()

    def abandon(self, failure: GatewayError) -> None:
        """End the request because we cannot hand its answer on; what was delivered is billed."""
        self._stop("reader_failed", "abandoned", failed(failure))
        self.delivery.leave("abandoned")

    @property
    def ended_badly(self) -> bool:
        """Whether it cannot end well any more."""
        return self.state.outcome is not None and self.state.outcome.status != "ok"

    def fail_beside(self, failure: GatewayError) -> None:
        """End the request because one that is answered with it failed so: none of it is given out."""
        reason = "" if self.state.outcome is None else self.state.outcome.reason
        self._stop("reader_failed", "abandoned", failed(failure, reason))
        self.delivery.fail(failure)

    # ------------------------------------------------ from hold to record

    async def _begin(self) -> tuple[Hold, ReplicaStream]:
        """Hold its money and send it to a replica. Raises GatewayError for what is not sent; its hold is released."""
        recorder, domains, payer = self._deps.recorder, self._deps.domains, self.prepared.payer
        if not domains.ready(payer.project_id):
            await domains.prepare(payer.tenant_id, payer.project_id)
            self.marks.mark(SCOPE_KEYS)
        hold = self._hold = await self._reserve()
        self._held_s = time.monotonic() - self._started
        self.marks.mark(HOLD)
        why = "a fault before it was sent"
        try:
            if (refused := await self._hear_limits()) is not None:
                why = "rate limited"
                raise refused
            self.admitted.set()
            await self._parts.admitted(self)
            await self._join_writes()
            uncached = await self._foresee_promise()
            if self.state.outcome is not None:  # no wait comes between this and `_send`
                why = "ended before it began"
                raise self.state.outcome.failure or Interrupted("The client left.")
            if uncached is not None:
                why = "not cached"
                raise uncached
            try:
                return hold, self._send(hold)
            except GatewayError as failure:
                why = "no replica"
                self.delivery.fail(failure)
                raise
        except Exception:
            if self._stream is None:  # no replica says what became of it
                await recorder.release(hold, why)
            raise

    async def _run(self) -> None:
        hold, stream = await self._begin()
        stream, done = await self._run_attempts(hold, stream)
        await self._stop_slices()
        self._disarm()
        ends = finish_reasons(done, self._choices.ends, shortened=self.prepared.shortened)
        grammar = self.prepared.generation.grammar
        invalid = None if done is None or grammar is None else invalid_grammar(done, grammar)
        self._know_prompt(None if done is None or not done.counts.prompt else PromptRead(done.counts))
        computed = computed_prompt(done, self._began, self.state.outcome)
        if invalid is None and computed and (refusal := await self._settle_promise(computed)) is not None:
            invalid = failed(refusal)
        self.state.move("answered" if invalid is None else "input_refused", invalid or outcome_of(done, ends))
        if self._outcome().failure is not None:
            await self._end_permit()  # before the client is told: it may try again at once
        await self._deliver_rest()
        self.state.move("delivered")
        outcome = self._outcome()
        await self._record(stream, done, outcome, ends)
        self._attempts.watch(hold)
        self.state.move("recorded")
        self._served(outcome.status, time.monotonic() - self._started)
        log.info(
            "request ended",
            **self._logged,
            model=self.prepared.model.name,
            status=outcome.status,
            reason=outcome.reason,
            replica=stream.replica,
            prompt_tokens=len(self.prepared.prompt.tokens),
            output_tokens=self._choices.tokens,
            seconds=round(time.monotonic() - self._started, 3),
        )

    async def _join_writes(self) -> None:
        """Wait for the request that computes what this one reads, and begin the writes of this one."""
        if (leases := self.prepared.leases) is None:
            return
        lane = self.prepared.generation.lane
        shared = await self._deps.writes.join(leases, lane, unless=lambda: self.state.outcome is not None)
        self.prepared = replace(self.prepared, leases=replace(leases, collapsed=shared))
        if shared:
            self.marks.mark(PREFIX_WAIT)

    async def _hear_limits(self) -> GatewayError | None:
        """Why the limits refuse the request, where they were asked beside the hold."""
        refused = await self._permit.refusal()
        if self._permit.beside is not None:
            self.marks.mark(LIMITS)
        return refused

    async def _reserve(self) -> Hold:
        try:
            self.prepared, hold = await self._deps.admission.reserve(self.prepared, self._reserve_late)
            return hold
        except Unaffordable:
            raise
        except (Exception, asyncio.CancelledError) as error:
            # the hold may exist although no answer came
            await self._deps.recorder.once_release(self.prepared.request_id, "not admitted")
            outcome = self.state.outcome
            if isinstance(error, Unavailable) and outcome is not None and outcome.failure is not None:
                await self._release_again()
            raise

    def _reserve_late(self) -> None:
        """The database has not answered: tell the client. A hold that comes after all is given back when it does."""
        self.interrupt(database_unavailable())
        self._tell_failure()

    async def _release_again(self) -> None:
        """Release the hold a second time, when the database answers: one that was silent until the connection ended may
        make the hold after the first release."""
        self.state.move("hold_unknown")
        await self._deps.admission.until_database_answers()
        await self._deps.recorder.once_release(self.prepared.request_id, "not admitted")

    def _send(self, hold: Hold, link: ReplicaLink | None = None, before: ReplicaStream | None = None) -> ReplicaStream:
        """Begin an attempt at this replica, else at the one that fleet chooses. `before`: the attempt that it follows,
        and goes on after if tokens had come. Raises Unavailable."""
        prepared, fleet = self.prepared, self._deps.fleet
        payer = prepared.payer
        partition = prepared.generation.cache.partition
        segments, scopes = self._deps.domains.prompt_segments(
            payer.tenant_id, payer.project_id, prepared.model.names, prepared.prompt.tokens, partition
        )
        window, choices = max(1, prepared.sampling.max_tokens), self._choices
        if self.delivery.streamed:
            unread = choices.shown - self.delivery.confirmed
            window = max(0, choices.longest + fleet.options.credit_window - unread)
        in_slices = prepared.held_output < prepared.sampling.max_tokens
        paid = prepared.held_output if self._slices is None else self._slices.paid
        credit = min(window, paid) if in_slices else window
        number = self._attempts.number
        message = prepared.message(hold, segments, attempt=number, credit=credit, deadline=self._deadline)
        if choices.tokens:
            message = continued(message, choices, self._began, self.delivery.delivered)
        among = () if link is None else (link,)
        sent = fleet.choose(prepared.model.name, prepared.routed, message.version, among=among)
        try:
            if in_slices:
                self._slices = self._slices or HoldSlices(self._deps.admission, prepared, hold, self._paid)
            self.state.move("sent")  # before it is: what must not be sent is not, and what is sent can be stopped
            stream = self._stream = fleet.generate(sent, scopes, message)
        except BaseException:
            fleet.give_up(sent)
            raise
        other_numerics = before is not None and choices.tokens > 0 and before.numerics != stream.numerics
        attempt = Attempt(stream.replica, None, self._undone or "", choices.tokens, other_numerics, chosen_by(sent))
        self._trace.sent(attempt)
        self._sent_s = time.monotonic() - self._started
        if self._slices is not None:
            stream.pay(self._slices.paid, wish=window)
        self._arm(max(0.0, self._deadline - time.time()) + _DEADLINE_GRACE)
        return stream

    async def _run_attempts(self, hold: Hold, stream: ReplicaStream) -> tuple[ReplicaStream, Done | None]:
        """Listen to this attempt, and to the next where it may be retried. Returns the last attempt and how it ended,
        None if its replica never said."""
        while True:
            done = await self._listen(stream)
            if self.state.phase != "retrying":
                return stream, done
            link = await self._replica_for_retry(stream, done)
            if link is not None:
                stream = self._retry(self._hold or hold, stream, done, link)
            elif done is not None:
                return stream, done

    def _retry_if_possible(self, stream: ReplicaStream, done: Done | None) -> bool:
        """Decide to go on at another replica if this one was lost, stopped or refused."""
        if self.state.phase != "running":
            return False
        self._undone = self._attempts.may_follow(stream, done, self._choices.ends)
        return self._undone is not None and self.state.move("will_retry")

    async def _replica_for_retry(self, lost: ReplicaStream, done: Done | None) -> ReplicaLink | None:
        """Wait for another replica, or for the same one started again; for that one alone if it probably died of this
        request. None if there is none in time: then the request ends with its first attempt."""
        deps, timeouts = self._deps, self._deps.admission.timeouts
        goes_on = self._choices.tokens > 0
        self._disarm()
        # A replica that refused a new request is not waited for: whoever asks later may be refused again.
        refused = self._undone == "refused" and not goes_on
        timeout_s = 0.0 if refused else min(timeouts.retry, self._deadline - time.time())
        if lost.suspect:
            log.warning("a replica was lost with a request that may be why", **self._logged, lost=lost.replica)
        model = self.prepared.model.name
        link = await deps.fleet.wait_for(
            model, timeout_s, after=lost, goes_on=goes_on, unless=lambda: self.state.outcome is not None
        )
        self.marks.mark(RETRY)
        if link is not None:
            return link
        if not refused:
            self.state.move("no_replica", failed(self._lost_error()))
        if done is None:
            self._await_journal()
        return None

    def _retry(self, hold: Hold, lost: ReplicaStream, done: Done | None, link: ReplicaLink) -> ReplicaStream:
        """Begin the next attempt: it goes on after the tokens that have come, or from the start if none have."""
        model, undone, tokens = self.prepared.model.name, self._undone or "lost", self._choices.tokens
        same = link.hello is not None and link.hello.numerics == lost.numerics
        log.warning(
            "a request goes on at another replica" if tokens else "a request is tried again",
            **self._logged,
            lost=lost.replica,
            replica=link.replica,
            cause=undone,
            output_tokens=tokens,
            same_numerics=same,
        )
        self._attempts.begin_next(lost, done)
        if tokens:
            self._deps.metrics.continued(model, undone, same_numerics=same)
            if self._began is not None:
                self._know_prompt(PromptRead(self._began.counts))  # an older replica would have said it at the end
        else:
            self._deps.metrics.tried_again(model)
            self._choices, self._began = Choices(self.prepared), None
            self._prompt_known, self._lost = False, ()
        return self._send(hold, link, lost)

    async def _listen(self, stream: ReplicaStream) -> Done | None:
        """Hear an attempt out. None if its replica never says how it ended, or is lost and the request is retried."""
        while True:
            event = await stream.next()
            if isinstance(event, Tokens):
                self._trace.tokens()
                self._know_prompt(event.prompt)
                if (refusal := await self._settle_promise()) is not None:
                    self._stop("interrupted", "not cached", failed(refusal))
                self._take(event)
            elif isinstance(event, Began):
                self._begin_attempt(event)
            elif isinstance(event, PromptLogprobs):
                self._choices.score_prompt(event)
            elif isinstance(event, Done):
                self._trace.done(event)
                self._retry_if_possible(stream, event)
                return event
            elif isinstance(event, LinkLost):
                self.marks.mark(LOST)
                if self._retry_if_possible(stream, None):
                    return None
                self._replica_lost()
            elif self._deps.fleet.waits_for_disk(stream):
                # The client is told now; the counts come when the replica's disk has room.
                self._time_out()
                self._tell_failure()
                self._arm(self._deps.admission.timeouts.done)
            elif self.state.phase == "running":
                self._time_out()
            else:
                log.error("the replica does not answer", **self._logged, replica=stream.replica)
                return None

    def _begin_attempt(self, began: Began) -> None:
        """A replica has begun, and its journal has the request. What its prompt takes counts in the first attempt of
        which tokens come."""
        self.marks.mark(BEGAN)
        if self._hold is not None:
            self._attempts.watch(self._hold)
        if self._choices.tokens:
            return
        self._began = began
        self._began_s = time.monotonic() - self._started
        self._served("queue", self._began_s - self._sent_s)
        if self._promise == "stands":
            self._tell_start(began)

    def _know_prompt(self, read: PromptRead | None) -> None:
        """It has a token, or has ended. `read`: what became of the prompt, for good. An older replica says that at the
        end alone; until then only a plan without farther tiers is a fact."""
        if self._began is None or self._prompt_known:
            return
        if read is not None:
            self._began, self._lost = replace(self._began, counts=read.counts), read.lost
        elif not _is_certain(self._began):
            return
        self._prompt_known = True
        if self._promise == "stands":
            self._tell_start(self._began)

    async def _foresee_promise(self) -> NotCached | None:
        """The error of a request that is to run only if it is cached, if it is not."""
        promises = self._deps.promises
        if promises is None or not promises.needed(self.prepared):
            self._promise = "stands"
            return None
        return await promises.refusal(self.prepared)

    async def _settle_promise(self, reach: int | None = None) -> NotCached | None:
        """Let what leases promise stand for good, and tell it; or the error, if nothing is cached after all. `reach`:
        as for `LeaseConfirmations.confirm`."""
        if self._promise != "open":
            return None
        assert self._deps.promises is not None
        assert self._hold is not None
        try:
            self.prepared, self._hold = await self._deps.promises.confirm(self.prepared, self._hold, reach)
        except NotCached as refusal:
            self._promise = "broken"
            return refusal
        finally:
            self.marks.mark(PROMISE)
        self._promise = "stands"
        if self._began is not None:
            self._tell_start(self._began)
        return None

    def _tell_start(self, began: Began) -> None:
        """Tell the reader how the prompt will be billed, from what the replica counted and what leases promise. What is
        still to come from farther tiers is no fact yet: limits and `Cache-Status` wait until the prompt is known."""
        known = self._prompt_known or _is_certain(began)
        try:
            usage = usage_of(began.counts, self.prepared.terms, 0, "none")
            prepared, counted = self.prepared, usage.prompt - sum(usage.read.values())
            if known:
                self._permit.began(prepared.request_id, prepared.conversation, usage.prompt, counted)
            self.delivery.start(Started(usage, to_billing_counts(began.counts) if known else None))
        except NONSENSE:
            log.warning("a replica began with counts that make no sense", **self._logged)

    def _take(self, message: Tokens) -> None:
        metrics, name, now = self._deps.metrics, self.prepared.model.name, time.monotonic()
        if message.choice == 0:  # the first choice's times stand for all
            if message.start == 0:
                self._end_writes(succeeded=True)
                metrics.first_token(name, self.prepared.generation.lane, now - self._started, self.marks.trace)
                self._served("first_token", now - self._started)
            else:
                metrics.between_tokens(name, now - self._last_token, len(message.tokens))
            self._last_token = now
        if self.state.phase != "running" or self._choices.end_of(message.choice) == "stop":
            return
        if self._slices is not None:
            self._slices.reached(message.start + len(message.tokens))
        for delta in self._choices.take(message):
            self.delivery.push(delta, self._choices.shown)
        if self._choices.end_of(message.choice) == "stop":
            self._end_choice(message.choice)
        elif self.delivery.streamed and self._choices.shown < self._choices.tokens:
            self._confirmed(self.delivery.confirmed)
        self._end_unpaid()

    def _end_choice(self, choice: int) -> None:
        """A stop string ended this choice."""
        if self._choices.stopped:
            self._stop("stop_string", "stop", Outcome("ok", "stop"))
        elif self._stream is not None:
            self._stream.abort("stop", choice)

    def _served(self, measure: Measure, seconds: float) -> None:
        """Count how long the request took until here, beside the others of its hour."""
        if self._deps.service is not None and self._hold is not None:
            payer, generation = self.prepared.payer, self.prepared.generation
            model, at = self.prepared.model.name, self._hold.admitted_at
            admitted = (payer.tenant_id, payer.project_id, model, generation.lane, at)
            self._deps.service.count(admitted, measure, int(seconds * 1_000_000))

    def _end_permit(self) -> Awaitable[object]:
        return self._permit.ended(self.prepared.request_id, self._choices.tokens)

    def _end_writes(self, *, succeeded: bool) -> None:
        if self.prepared.leases is not None:
            self._deps.writes.end(self.prepared.request_id, succeeded=succeeded)

    async def _deliver_rest(self) -> None:
        """Hand out what is left, and wait until it reached the client or nobody reads any more."""
        self._tell_failure()
        if self._outcome().status == "ok":
            for delta in self._choices.finish():
                self.delivery.push(delta, self._choices.tokens)
        await self.delivery.drained()
        if not self.ended_badly:
            await self._parts.answered(self)
        self.marks.mark(READER)

    async def _record(
        self, stream: ReplicaStream, done: Done | None, outcome: Outcome, ends: tuple[FinishReason, ...]
    ) -> None:
        """Usage and its acknowledgement, what is remembered, and then the last chunk."""
        assert self._hold is not None
        deps, prepared = self._deps, self.prepared
        delivered = self._choices.tokens if outcome.status == "ok" else self.delivery.delivered
        after_s = None if self._began_s is None else self._began_s - self._held_s
        answer = self._choices.answer_digests if outcome.status == "ok" else None
        ended = EndedRequest(
            prepared, self._hold, stream, outcome, self._began, after_s, self._lost, done, delivered, answer
        )
        recording = UsageRecording(deps)
        freed = self._end_permit()
        recorded = await recording.record(ended, self._tell_unrecorded)
        event = None if recorded is None else recorded.event
        self.marks.mark(SPOOL)
        explanation = None if event is None else await recording.remember(ended, event)
        if explanation is not None:
            self.marks.mark(EXPLAIN)
        await freed  # whoever has the answer may ask again at once
        if self._permit.limited:
            self.marks.mark(LIMITS)
        if recorded is not None and event is not None and event.status == "ok":
            currency, stops = prepared.price.currency, self._choices.stop_strings
            until = None if prepared.leases is None else prepared.leases.expires_at
            usage, cost, reasoning = event.usage, event.cost_pico, self._choices.reasoning
            predicted = self._choices.predicted
            receipts = () if recorded.receipt is None else (recorded.receipt,)
            self._finished = Finished(
                ends, event.counts, usage, cost, currency, stops, until, explanation, reasoning, predicted, receipts
            )
            self.delivery.finish(self._finished)

    def _tell_unrecorded(self) -> Outcome | None:
        """Tell the client that its usage cannot be recorded. An answer that is not streamed is not given out then, and
        not billed."""
        failure = Interrupted("The answer's usage could not be recorded.")
        self.delivery.fail(failure)
        return None if self.delivery.streamed else failed(failure)

    # ------------------------------------------------ what changes the request's course

    def _outcome(self) -> Outcome:
        assert self.state.outcome is not None, "from `delivering` on there is one"
        return self.state.outcome

    def _stop(self, event: Event, why: str, outcome: Outcome) -> None:
        """Give the request this outcome, if it counts; ask the replica to stop if it was still to go on."""
        if self.state.move(event, outcome) and self._stream is not None:
            self._stream.abort(why)
            self._arm(self._deps.admission.timeouts.done)
        self._parts.wake()

    def _client_left(self, why: str) -> None:
        self._stop("client_left", why, Outcome("cancelled", ""))

    def _time_out(self) -> None:
        self._stop("timed_out", "deadline", failed(TimedOut("The request's time is over.")))

    def _replica_lost(self) -> None:
        """The replica is gone: tell the client now, and wait for its journal's word on what was done."""
        self.state.move("replica_lost", failed(self._lost_error()))
        self._await_journal()

    def _lost_error(self) -> GatewayError:
        """The error for a request that cannot go on after its replica was lost."""
        if self.delivery.handed_out:
            return Interrupted("The model's replica was lost while it ran the request.")
        return replica_lost_error()

    def _await_journal(self) -> None:
        timeouts = self._deps.admission.timeouts
        self._tell_failure()
        complete = self.state.outcome is not None and self.state.outcome.status == "ok"
        self._arm(timeouts.done if complete else timeouts.replay)

    def _tell_failure(self) -> None:
        """Tell the client how the request failed, if it did, before its usage is known."""
        if self.state.outcome is not None and self.state.outcome.failure is not None:
            self.delivery.fail(self.state.outcome.failure)

    def _told_failure(self, failure: GatewayError) -> None:
        self._parts.failed(self, failure)

    def _fail(self, failure: GatewayError) -> None:
        """End without the replica's word, which recovery hears instead; a replica that still works is stopped."""
        if self._stream is not None and self.state.phase in ("running", "stopping"):
            self._stream.abort("abandoned")
        if self._hold is not None:
            self._attempts.watch(self._hold)
        self.state.move("failed", failed(failure))
        self.delivery.fail(failure)

    # ------------------------------------------------ credit, money and time

    def _confirmed(self, tokens: int) -> None:
        if self._stream is not None:
            options, delivered = self._deps.fleet.options, self.delivery.delivered
            held = self._choices.tokens - self._choices.shown
            window, step = options.credit_window, options.credit_step
            self._stream.credit(delivered, read=tokens, held=held, window=window, step=step)

    def _paid(self) -> None:
        """More is paid for, or nothing more is going to be."""
        if self._stream is not None and self._slices is not None and self.state.phase == "running":
            self._stream.pay(self._slices.paid, delivered=self.delivery.delivered)
            self._end_unpaid()

    def _end_unpaid(self) -> None:
        """End the choices that have come to the end of the money."""
        if self._slices is None or not self._slices.final or self._stream is None or self.state.phase != "running":
            return
        for choice in self._stream.choices_at(self._slices.paid):
            if self._choices.end_of(choice) is None:
                self._choices.end_unpaid(choice)
                if self.prepared.generation.choices > 1:
                    self._stream.abort("budget", choice)
        if all(end is not None for end in self._choices.ends):
            self._stop("money_ended", "budget", Outcome("ok", ""))

    async def _stop_slices(self) -> None:
        if self._slices is not None:
            await self._slices.stop()

    def _arm(self, seconds: float) -> None:
        self._disarm()
        if self._stream is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._stream.hear, TimeOver())

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_certain(began: Began) -> bool:
    """Whether nothing of what it plans to read can still fail to come: no block is in a farther tier."""
    return began.counts.read == began.counts.read_hbm
