"""Records attempts that were lost with their replica and whose requests went on: they are billed to nobody. What one of
them put out is billed with the last attempt, which went on after it and counts it too.

How long a request waits for a replica to be retried on is `RequestTimeouts.retry`
(`gateway.admission.request_timeouts`).
"""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

import structlog

from billing.holds.records import Hold
from billing.settlement.lost_attempt_events import AttemptedRequest, LostAttempt, lost_attempt, other_attempt
from billing.spool.spool import Spool
from billing.usage import RecordedBy
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica_stream import ReplicaStream, TimeOver
from gateway.metering.billable_usage import NONSENSE, to_billing_counts
from gateway.metering.usage_recorder import RefusedEntries, UsageRecorder
from gateway.recovery.background_tasks import BackgroundTasks
from protocol.requests import Done
from storage.database.circuit_breaker import until_available
from storage.database.database import Database

log = structlog.get_logger("gateway.recovery.lost_attempts")

_PAUSE_S = 0.2
_SETTLED_S = 30.0
"""Under load a spool is never empty: after so long, what was in it is settled."""


class LostAttempts:
    """Learns from journals what lost attempts did. `timeout`: seconds that a replica has to come back with its
    journal; what one repeats later goes to `JournalRecovery`."""

    def __init__(
        self,
        database: Database,
        recorder: UsageRecorder,
        fleet: Fleet,
        spool: Spool,
        *,
        refused: RefusedEntries,
        timeout: float,
    ) -> None:
        self._database = database
        self._refused = refused
        self._spool = spool
        self._recorder = recorder
        self._fleet = fleet
        self._timeout = timeout
        self._watching = BackgroundTasks()

    def watch(self, stream: ReplicaStream, hold: Hold, done: Done | None) -> None:
        """Record what this attempt did, which `done` says or its replica's journal will: its request went on."""
        self._watching.start(self._watch(stream, hold, done))

    async def stop(self) -> None:
        """Leave attempts that no journal has told of to the gateway that hears of them next."""
        await self._watching.stop()

    async def _watch(self, stream: ReplicaStream, hold: Hold, done: Done | None) -> None:
        try:
            done = done or await self._final_word(stream)
            if done is not None and done.sequence:
                names = AttemptedRequest.__struct_fields__
                request = AttemptedRequest(**{name: getattr(hold, name) for name in names})
                try:
                    await self._record(request, done, stream.replica, stream.model_digest, "gateway")
                except NONSENSE as error:
                    await self._refused.keep(done, stream.replica, error)
                self._fleet.acknowledge(stream, done.sequence)
        finally:
            self._fleet.end(stream)

    async def _final_word(self, stream: ReplicaStream) -> Done | None:
        """What the replica's journal says of the attempt; None if the replica does not come back in time."""
        timer = asyncio.get_running_loop().call_later(self._timeout, stream.hear, TimeOver())
        try:
            while True:
                event = await stream.next()
                if isinstance(event, Done):
                    return event
                if isinstance(event, TimeOver):
                    return None
        finally:
            timer.cancel()

    async def until_over(self, request_id: str, attempt: int) -> None:
        """Wait until the request does not run here any more and what this gateway recorded of it is settled.

        Until then it is not known whether what a journal repeats of it is a lost attempt.
        """
        while self._fleet.runs(request_id):  # noqa: ASYNC110  # the end of another task, seldom waited for
            await asyncio.sleep(_PAUSE_S)
        end = time.monotonic() + _SETTLED_S
        while not self._spool.drained and time.monotonic() < end:
            before = time.monotonic()
            if await self._find(request_id, attempt) is not None:
                return
            end += time.monotonic() - before  # while the database is unavailable, nothing is settled
            await asyncio.sleep(_PAUSE_S)

    async def record_stray(self, replica: str, model_digest: str, done: Done) -> bool:
        """Record what a journal repeats, if it is a lost attempt: its request's event is that of another attempt.

        False if it is not. Raises ValueError (InvalidUsage) where its counts cannot be true.
        """
        request = await self._find(done.id, done.attempt)
        if request is None:
            return False
        await self._record(request, done, replica, model_digest, "journal")
        return True

    async def _find(self, request_id: str, attempt: int) -> AttemptedRequest | None:
        """The request of a lost attempt, as soon as the database can be asked."""
        return await until_available(lambda: other_attempt(self._database, UUID(request_id), attempt), _PAUSE_S)

    async def _record(
        self, request: AttemptedRequest, done: Done, replica: str, model_digest: str, source: RecordedBy
    ) -> None:
        counts = to_billing_counts(done.counts)
        lost = LostAttempt(done.attempt, replica, model_digest, done.sequence, done.reason, counts, source)
        await self._recorder.until_durable(lost_attempt(request, lost))
        log.info("recorded a lost attempt", request_id=done.id, attempt=done.attempt, replica=replica)
