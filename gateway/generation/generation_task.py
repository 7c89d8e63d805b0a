"""The owner of a request: a task that outlives the HTTP handler, from the hold to the durable usage.

The HTTP side only reads the owner's delivery. Whatever happens to it, the owner hears the replica's last word, makes
usage of it and records it; the last chunk is given out after that.
"""

from __future__ import annotations

import asyncio
import time
from typing import Literal

import structlog
from msgspec import Struct

from billing.holds.records import Hold
from gateway.admission.admission import Admission, PreparedRequest, database_unavailable
from gateway.errors import GatewayError, Interrupted, InvalidRequest, TimedOut, Unavailable
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica_link import ReplicaLink
from gateway.fleet.replica_stream import LinkLost, ReplicaStream, TimeOver
from gateway.generation.choices import Choices
from gateway.generation.delivery import Delivery, Finished, FinishReason
from gateway.generation.hold_slices import HoldSlices
from gateway.generation.outcome import Outcome, decide_outcome, finish_reasons, observed_counts, whose_fault
from gateway.metering.usage_recorder import NONSENSE, FinishedRequest, UsageRecorder, event_of
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.recovery.lost_attempts import LostAttempts
from gateway.recovery.refused_entries import RefusedEntries
from gateway.request_context import public_name
from prompt_cache.promise.cache_domains import CacheDomains
from protocol.requests import Began, Done, Generate, PromptLogprobs, Tokens
from storage.disk_space import DiskWatch

log = structlog.get_logger("gateway.generation.generation_task")

_MOST_ATTEMPTS = 2
_DEADLINE_GRACE = 2.0
"""Seconds that the replica has to end an overdue request by itself, before we abort it."""

Stage = Literal["reserving", "running", "retrying", "lost", "recording", "ended"]


class GenerationDependencies(Struct, frozen=True):
    """What an owner works with."""

    admission: Admission
    fleet: Fleet
    domains: CacheDomains
    recorder: UsageRecorder
    attempts: LostAttempts
    refused: RefusedEntries
    metrics: GatewayMetrics
    disk: DiskWatch


class GenerationTask:
    """One request. `stage` says how far it is."""

    def __init__(self, around: GenerationDependencies, prepared: PreparedRequest, *, streamed: bool) -> None:
        self.prepared = prepared
        self.request_id = prepared.request_id
        self._name = public_name(prepared.request_id)
        self.stage: Stage = "reserving"
        self.affordable_max_tokens: int | None = None
        """The `max_tokens` that could be paid for, where that was less than there was room for."""
        self.delivery = Delivery(streamed=streamed, on_delivered=self._delivered, on_left=self._left)
        self._deps = around
        self._attempt = 1
        self._version = 1
        """The protocol version that a replica must know to run it."""
        self._choices = self._new_choices()
        self._exchange: ReplicaStream | None = None
        self._slices: HoldSlices | None = None
        self._cut: set[int] = set()
        """Choices that we ended where their money did."""
        self._failure: GatewayError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._aborted = False
        self._began: Began | None = None
        self._started = time.monotonic()
        self._deadline = time.time() + around.admission.lifetimes.request
        self._last_token = 0.0

    async def run(self) -> None:
        """The whole life of the request; never raises but for cancellation."""
        labels = {"request_id": self._name, "model": self.prepared.model.name}
        try:
            await self._run()
        except GatewayError as failure:
            self.delivery.fail(failure)
        except Exception:
            log.exception("a request failed inside the gateway", **labels)
            self.delivery.fail(Interrupted("The gateway failed while it ran the request."))
        finally:
            self.stage = "ended"
            self._disarm()
            await self._stop_slices()
            self._slices = None
            if self._exchange is not None:
                self._deps.fleet.end(self._exchange)
            self.delivery.part()

    def interrupt(self, failure: GatewayError) -> None:
        """End the request for a reason of ours; what was delivered is billed."""
        if self._failure is None and self.stage in ("reserving", "running", "retrying"):
            self._failure = failure
            self._abort("shutdown")

    # ------------------------------------------------ from hold to record

    async def _run(self) -> None:
        around = self._deps
        hold = await self._reserve()
        prepared = self.prepared
        if self._unwanted():
            await around.recorder.release(hold, "ended before it began")
            raise self._failure or Interrupted("The client left.")
        try:
            exchange = self._dispatch(hold)
        except GatewayError as failure:
            self.delivery.fail(failure)
            await around.recorder.release(hold, "no replica")
            return
        done = await self._listen(exchange)
        while self._may_retry(exchange, done):
            again = await self._try_again(hold, exchange, done)
            if again is None:
                done = done or await self._listen(exchange)
                break
            exchange = again
            done = await self._listen(exchange)
        await self._stop_slices()
        grammar = prepared.generation.grammar
        if done is not None and done.invalid == "grammar" and grammar is not None:
            self._failure = InvalidRequest(
                f"{grammar.path}: {(done.error or '').removeprefix('grammar: ')}.",
                path=grammar.path,
                code="invalid_value",
            )
        self._disarm()
        self.stage = "recording"
        shortened = self.affordable_max_tokens is not None
        ends = finish_reasons(done, self._choices.stops_by_string, shortened=shortened, cut=self._cut)
        ending = decide_outcome(
            done, stopped=self._choices.stopped, left=self.delivery.left, failure=self._failure, ends=ends
        )
        await self._deliver_rest(ending)
        if ending.status == "ok" and self.delivery.left:
            ending = Outcome("cancelled", ending.reason)
        await self._record(hold, exchange, done, ending, ends)
        log.info(
            "request ended",
            request_id=self._name,
            model=prepared.model.name,
            status=ending.status,
            reason=ending.reason,
            replica=exchange.replica,
            prompt_tokens=len(prepared.prompt.tokens),
            output_tokens=self._choices.tokens,
            seconds=round(time.monotonic() - self._started, 3),
        )

    async def _reserve(self) -> Hold:
        try:
            asked = self.prepared
            self.prepared, hold = await self._deps.admission.reserve(asked, self._reserve_late)
            if self.prepared is not asked:
                self.affordable_max_tokens = self.prepared.sampling.max_tokens
            return hold
        except (Unavailable, asyncio.CancelledError) as error:
            # the hold may exist although we were not told
            await self._deps.recorder.once_release(self.request_id, "not admitted")
            if self._failure is not None and isinstance(error, Unavailable):
                await self._release_again()
            raise

    def _reserve_late(self) -> None:
        """The database has not answered: tell the client. A hold that comes after all is given back when it does."""
        if self._failure is None:
            self._failure = database_unavailable()
            self.delivery.fail(self._failure)

    async def _release_again(self) -> None:
        """The database was silent until the connection ended. It may still do what it was asked, after it did what we
        ask it now: so ask again when it answers."""
        self.stage = "lost"
        await self._deps.admission.until_database_answers()
        await self._deps.recorder.once_release(self.request_id, "not admitted")

    def _dispatch(self, hold: Hold, link: ReplicaLink | None = None) -> ReplicaStream:
        """Send the request to this replica, else to the one that fleet chooses. Raises Unavailable."""
        prepared, fleet = self.prepared, self._deps.fleet
        payer, tokens = prepared.payer, prepared.prompt.tokens
        segments, scopes = self._deps.domains.segments(payer.tenant_id, payer.project_id, len(tokens))
        wish = fleet.options.credit_window if self.delivery.streamed else max(1, prepared.sampling.max_tokens)
        in_slices = prepared.held_output < prepared.sampling.max_tokens
        paid = prepared.held_output if self._slices is None else self._slices.paid
        generate = Generate(
            id=str(hold.request_id),
            attempt=self._attempt,
            segments=segments,
            tokens=tokens,
            sampling=prepared.sampling,
            credit=min(wish, paid) if in_slices else wish,
            flow=str(payer.tenant_id),
            sub_flow=str(payer.key_id),
            lane=prepared.generation.lane,
            deadline=self._deadline,
            read=prepared.plan.read != "none",
            store=prepared.plan.store,
            choices=prepared.generation.choices,
            grammar=None if prepared.generation.grammar is None else prepared.generation.grammar.text,
            claim=hold.claim,
        )
        self._version = generate.version
        link = link or fleet.choose(prepared.model.name, generate.version)
        exchange = self._exchange = fleet.generate(link, scopes, generate)
        if in_slices:
            self._slices = self._slices or HoldSlices(self._deps.admission, prepared, hold, self._paid)
            exchange.pay(self._slices.paid, wish=wish)
        self.stage = "running"
        self._arm(max(0.0, self._deadline - time.time()) + _DEADLINE_GRACE)
        return exchange

    def _may_retry(self, exchange: ReplicaStream, done: Done | None) -> bool:
        """Whether the replica was lost, or stopped, and nothing of the request was delivered: it may be tried again."""
        if self._attempt >= _MOST_ATTEMPTS or self._aborted or self._unwanted():
            return False
        lost = done is None and exchange.link is None
        ours = bool(self._cut) or any(self._choices.stops_by_string)  # we ended some of its choices
        stopped = done is not None and done.reason == "abort" and not ours
        refused = done is not None and done.reason == "rejected" and done.refusal is None and done.invalid is None
        return (lost or stopped or refused) and self.delivery.start_over()

    async def _try_again(self, hold: Hold, before: ReplicaStream, done: Done | None) -> ReplicaStream | None:
        """Send the request to another replica, or to the same one when it is back: to that one alone, if it probably
        died of this request. None if there is none in time: then the first attempt is all there is, and the client is
        told."""
        around, model = self._deps, self.prepared.model.name
        self.stage = "retrying"
        self._disarm()
        # A replica that refused is not waited for: whoever asks later may be refused again.
        refused = done is not None and done.reason == "rejected"
        patience = 0.0 if refused else min(around.admission.lifetimes.retry, self._deadline - time.time())
        if before.suspect:
            log.warning("a replica was lost with a request that may be why", request_id=self._name, lost=before.replica)
        link = await around.fleet.wait_for(model, self._version, patience, after=before, unless=self._unwanted)
        if link is None or self._unwanted():
            self.stage = "running"
            self._failure = self._failure or (None if refused else _replica_lost())
            if done is None:
                self._lost()
            return None
        log.warning("a request is tried again", request_id=self._name, lost=before.replica, replica=link.replica)
        around.metrics.tried_again(model)
        around.attempts.watch(before, hold, done)
        self._attempt += 1
        self._choices, self._began, self._cut = self._new_choices(), None, set()
        return self._dispatch(hold, link)

    def _new_choices(self) -> Choices:
        prepared = self.prepared
        return Choices(prepared.generation, prepared.model, prepared.prompt, prepared.sampling)

    async def _listen(self, exchange: ReplicaStream) -> Done | None:
        """Hear the replica out. None if it never says how the request ended, or is lost and may be tried again."""
        while True:
            heard = await exchange.next()
            if isinstance(heard, Tokens):
                self._take(heard)
            elif isinstance(heard, Done):
                return heard
            elif isinstance(heard, Began):
                self._began = heard
            elif isinstance(heard, PromptLogprobs):
                self._choices.score_prompt(heard)
            elif isinstance(heard, LinkLost):
                if self._may_retry(exchange, None):
                    return None
                self._lost()
            elif self._deps.fleet.waits_for_disk(exchange):
                self._hear_out_later()
            elif self._aborted:
                log.error("the replica does not answer", request_id=self._name, replica=exchange.replica)
                if self._failure is None and not self.delivery.left and not self._choices.stopped:
                    self._failure = Interrupted("The model's replica does not answer.")
                return None
            else:
                self._failure = TimedOut("The request's time is over.")
                self._abort("deadline")

    def _take(self, message: Tokens) -> None:
        metrics, name, now = self._deps.metrics, self.prepared.model.name, time.monotonic()
        if message.choice:
            pass  # the first choice's times stand for all
        elif message.start == 0:
            metrics.first_token(name, now - self._started)
        else:
            metrics.between_tokens(name, now - self._last_token, len(message.tokens))
        self._last_token = now if message.choice == 0 else self._last_token
        if self._aborted or self._failure is not None or self._choices.stops(message.choice):
            return
        if self._slices is not None:
            self._slices.reached(message.start + len(message.tokens))
        for part in self._choices.take(message):
            self.delivery.push(part, self._choices.shown)
        if self._choices.stopped:
            self._abort("stop")
        elif self._choices.stops(message.choice):
            self._stop_choice(message.choice)
        elif self.delivery.streamed and self._choices.shown < self._choices.tokens:
            self._delivered(self.delivery.delivered)
        self._cut_off()

    async def _deliver_rest(self, ending: Outcome) -> None:
        """Hand out what is left, and wait until it reached the client or nobody reads any more."""
        if ending.failure is not None:
            self.delivery.fail(ending.failure)
        elif ending.status == "ok":
            for part in self._choices.finish():
                self.delivery.push(part, self._choices.tokens)
        await self.delivery.drained()

    async def _record(
        self, hold: Hold, exchange: ReplicaStream, done: Done | None, ending: Outcome, ends: tuple[FinishReason, ...]
    ) -> None:
        """Usage, spool, acknowledgement, last chunk: in this order."""
        around, prepared = self._deps, self.prepared
        known = done is not None and done.reason != "rejected"
        counts = (
            done.counts
            if known and done
            else observed_counts(self._began.counts if self._began else None, exchange.received)
        )
        sequence = done.sequence if done else 0
        if not known and not counts.prompt and not counts.output:
            await around.recorder.release(hold, ending.reason)
            return
        delivered = self._choices.tokens if ending.status == "ok" else self.delivery.delivered
        record = FinishedRequest(
            status=ending.status,
            reason=ending.reason,
            fault=whose_fault(ending, delivered),
            delivered=delivered,
            delivery="confirmed",
            source="gateway",
            replica=exchange.replica,
            model_digest=exchange.model_digest,
            sequence=sequence,
            attempt=self._attempt,
        )
        try:
            event = event_of(hold, prepared.terms, prepared.price, counts, record)
        except NONSENSE as error:
            if done is None or not sequence:
                raise
            await around.refused.keep(done, exchange.replica, error)
            await around.recorder.release(hold, "what the replica counted makes no sense")
            around.fleet.acknowledge(exchange, sequence)
            raise Interrupted("What the answer took cannot be told.") from error
        unrecorded = Interrupted("The answer's usage could not be recorded.")
        await around.recorder.use(hold, event, failing=lambda: self.delivery.fail(unrecorded))
        if sequence:
            around.fleet.acknowledge(exchange, sequence)
        around.metrics.finished(prepared.model.name, ending.status, event.usage)
        if ending.status == "ok":
            self.delivery.finish(Finished(ends, event.counts, event.usage, event.cost_pico, prepared.price.currency))

    # ------------------------------------------------ what happens on the side

    def _delivered(self, tokens: int) -> None:
        if self._exchange is not None:
            options = self._deps.fleet.options
            held = self._choices.tokens - self._choices.shown
            self._exchange.credit(tokens, held=held, window=options.credit_window, step=options.credit_step)

    def _paid(self) -> None:
        """More is paid for, or nothing more is going to be."""
        if self._exchange is not None and self._slices is not None and self.stage == "running":
            self._exchange.pay(self._slices.paid, delivered=self.delivery.delivered)
            self._cut_off()

    def _cut_off(self) -> None:
        """End the choices that have come to the end of the money."""
        if self._slices is None or not self._slices.final or self._exchange is None or self._aborted:
            return
        several = self.prepared.generation.choices > 1
        for choice in self._exchange.at(self._slices.paid):
            if choice not in self._cut and not self._choices.stops(choice):
                self._cut.add(choice)
                self._exchange.abort("budget", choice if several else None)

    async def _stop_slices(self) -> None:
        if self._slices is not None:
            await self._slices.stop()

    def _unwanted(self) -> bool:
        return self.delivery.left or self._failure is not None

    def _left(self, why: str) -> None:
        if self.stage in ("reserving", "running"):
            self._abort(why)

    def _lost(self) -> None:
        """The replica is gone: tell the client now, and wait for the journal's word on what was done."""
        self.stage = "lost"
        self._aborted = True
        if self._failure is None and not self.delivery.left and not self._choices.stopped:
            if self.delivery.handed_out:
                self._failure = Interrupted("The model's replica was lost while it ran the request.")
            else:
                self._failure = _replica_lost()
        if self._failure is not None:
            self.delivery.fail(self._failure)
        lifetimes = self._deps.admission.lifetimes
        self._arm(lifetimes.done if self._choices.stopped else lifetimes.replay)

    def _abort(self, why: str) -> None:
        if self._exchange is not None and self.stage == "running" and not self._aborted:
            self._aborted = True
            self._exchange.abort(why)
            self._arm(self._deps.admission.lifetimes.done)

    def _hear_out_later(self) -> None:
        """The time is over while the replica waits for its disk: the client is told, and the counts are waited for."""
        if self._failure is None and not self.delivery.left:
            self._failure = TimedOut("The request's time is over.")
            self.delivery.fail(self._failure)
        self._abort("deadline")
        self._arm(self._deps.admission.lifetimes.done)

    def _stop_choice(self, choice: int) -> None:
        if self._exchange is not None and self.stage == "running" and not self._aborted:
            self._exchange.abort("stop", choice)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        if self._exchange is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._exchange.hear, TimeOver())

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _replica_lost() -> Unavailable:
    return Unavailable("The model's replica was lost; try again shortly.", retry_after=2.0)
