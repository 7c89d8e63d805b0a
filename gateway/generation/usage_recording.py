"""Makes durable usage of a request that has ended, and remembers it for the history of its project.

Usage, spool, acknowledgement: in this order, so that a replica forgets an attempt only when the gateway cannot.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
from msgspec import Struct

from billing.holds.records import Hold
from billing.receipts.answer_receipts import AnswerDigests, Receipt
from billing.usage import UsageEvent
from gateway.admission.prepared_request import PreparedRequest
from gateway.errors import Interrupted
from gateway.fleet.replica_stream import ReplicaStream
from gateway.generation.dependencies import GenerationDependencies
from gateway.generation.outcome import finished_request, observed_counts
from gateway.generation.request_history import Explanation
from gateway.generation.request_state import Outcome
from gateway.metering.billable_usage import NONSENSE, event_of
from gateway.request_context import public_name
from protocol.requests import Began, Done, Lost

log = structlog.get_logger("gateway.generation.usage_recording")


class EndedRequest(Struct, frozen=True):
    """A request whose last attempt is over. `done`: the replica's last word, None if it never said any."""

    prepared: PreparedRequest
    hold: Hold
    stream: ReplicaStream
    outcome: Outcome
    began: Began | None
    began_s: float | None
    """Seconds from when the hold was taken until the replica began."""
    lost: tuple[Lost, ...]
    """What of the prompt the replica computed although it lay in a farther tier."""
    done: Done | None
    delivered: int
    """Output tokens that reached the client."""
    answer: AnswerDigests | None = None
    """What its receipt says of prompt and output; None: it gets no receipt."""


class RecordedUsage(Struct, frozen=True):
    """A request's event, which is durable, and its receipt if it gets one."""

    event: UsageEvent
    receipt: Receipt | None = None


class UsageRecording:
    """Records ended requests: with the recorder, or as refused entries where the counts make no sense."""

    def __init__(self, deps: GenerationDependencies) -> None:
        self._deps = deps

    async def record(self, ended: EndedRequest, failing: Callable[[], Outcome | None]) -> RecordedUsage | None:
        """Record the request's usage; None if there was none, and its hold is released.

        `failing`: called when it cannot be recorded yet. Its outcome takes the place of the request's where the client
        then gets nothing of the answer. Raises Interrupted where the counts make no sense.
        """
        prepared, hold, stream, done = ended.prepared, ended.hold, ended.stream, ended.done
        if done is not None and done.reason != "rejected":
            counts = done.counts
        else:
            counts = observed_counts(ended.began.counts if ended.began else None, stream.received)
            if not counts.prompt and not counts.output:
                await self._deps.recorder.release(hold, ended.outcome.reason)
                return None
        sequence = done.sequence if done else 0
        record = finished_request(ended.outcome, stream, delivered=ended.delivered, sequence=sequence)
        try:
            event = event_of(hold, prepared.terms, prepared.price, counts, record)
        except NONSENSE as error:
            if done is None or not sequence:
                raise
            await self._deps.refused.keep(done, stream.replica, error)
            await self._deps.recorder.release(hold, "what the replica counted makes no sense")
            self._deps.fleet.acknowledge(stream, sequence)
            raise Interrupted("What the answer took cannot be told.") from error
        issuer, answer = self._deps.receipts, ended.answer
        pending = None if issuer is None or answer is None else issuer.prepare(event, answer)

        def record_instead() -> UsageEvent:
            nonlocal event, pending
            if (outcome := failing()) is not None:
                unread = finished_request(outcome, stream, delivered=0, sequence=sequence)
                event, pending = event_of(hold, prepared.terms, prepared.price, counts, unread), None
            return event

        await self._deps.recorder.use(hold, event, failing=record_instead)
        if sequence:
            self._deps.fleet.acknowledge(stream, sequence)
        name, lane, currency = prepared.model.name, prepared.generation.lane, prepared.price.currency
        self._deps.metrics.finished(name, lane, event.status, event, currency)
        self._deps.blocks.note(prepared, stream.model_digest, wrote=bool(event.usage.write))
        return RecordedUsage(event, None if pending is None else pending.issue())

    async def remember(self, ended: EndedRequest, event: UsageEvent) -> Explanation | None:
        """Note the request for the history; and explain it at once, to a client who asked."""
        history, prepared = self._deps.history, ended.prepared
        if history is None:
            return None
        try:
            misses = () if ended.began is None else ended.began.misses
            observed = history.observed(prepared, ended.hold, event, misses, ended.began_s, lost=ended.lost)
            if observed is None:
                return None
            asked = prepared.generation.cache.compare_with is not None
            explanation = await history.explain(observed) if asked else None
            history.note(observed)
        except Exception:
            log.exception("a request is left out of the history", request_id=public_name(prepared.request_id))
            return None
        return explanation
