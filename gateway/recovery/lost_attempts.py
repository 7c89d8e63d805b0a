"""Attempts that were lost with their replica, whose requests were tried again: recorded as ours, billed to nobody."""

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
from gateway.metering.billable_usage import to_billing_counts
from gateway.metering.usage_recorder import NONSENSE, UsageRecorder
from gateway.recovery.refused_entries import RefusedEntries
from protocol.requests import Done
from storage.database.database import Database, DatabaseUnavailable

log = structlog.get_logger("gateway.recovery.lost_attempts")

_PAUSE_S = 0.2
_SETTLED_S = 30.0
"""Under load a spool is never empty: after so long, what was in it is settled."""


class LostAttempts:
    """Hears from journals what lost attempts did. `patience`: seconds that a replica has to come back with its journal;
    one that takes longer repeats it as a stray."""

    def __init__(
        self,
        database: Database,
        recorder: UsageRecorder,
        fleet: Fleet,
        spool: Spool,
        *,
        refused: RefusedEntries,
        patience: float,
    ) -> None:
        self._database = database
        self._refused = refused
        self._spool = spool
        self._recorder = recorder
        self._fleet = fleet
        self._patience = patience
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, exchange: ReplicaStream, hold: Hold, done: Done | None) -> None:
        """A request is tried again: record what this attempt did, which `done` says or its journal will."""
        task = asyncio.create_task(self._watch(exchange, hold, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Leave what no journal has told of yet to who hears of it next."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, exchange: ReplicaStream, hold: Hold, done: Done | None) -> None:
        try:
            done = done or await self._hear(exchange)
            if done is not None and done.sequence:
                names = AttemptedRequest.__struct_fields__
                of = AttemptedRequest(**{name: getattr(hold, name) for name in names})
                try:
                    await self._record(of, done, exchange.replica, exchange.model_digest, "gateway")
                except NONSENSE as error:
                    await self._refused.keep(done, exchange.replica, error)
                self._fleet.acknowledge(exchange, done.sequence)
        finally:
            self._fleet.end(exchange)

    async def _hear(self, exchange: ReplicaStream) -> Done | None:
        """What the journal says; None if the replica does not come back in time."""
        timer = asyncio.get_running_loop().call_later(self._patience, exchange.hear, TimeOver())
        try:
            while True:
                heard = await exchange.next()
                if isinstance(heard, Done):
                    return heard
                if isinstance(heard, TimeOver):
                    return None
        finally:
            timer.cancel()

    async def until_over(self, request_id: str, attempt: int) -> None:
        """Wait until this gateway has come to the end of the request, and what it recorded is settled.

        What a journal repeats of a request that runs here, or whose event is still in the spool, may be a lost attempt.
        """
        while self._fleet.runs(request_id):  # noqa: ASYNC110  # the end of another task, seldom waited for
            await asyncio.sleep(_PAUSE_S)
        end = time.monotonic() + _SETTLED_S
        while not self._spool.drained and time.monotonic() < end:
            asked = time.monotonic()
            if await self._find(request_id, attempt) is not None:
                return
            end += time.monotonic() - asked  # while the database is away, nothing is settled
            await asyncio.sleep(_PAUSE_S)

    async def record_stray(self, replica: str, model_digest: str, done: Done) -> bool:
        """Record what a journal repeats, if it is a lost attempt: its request's event is that of another attempt.

        False if it is not. Raises ValueError (InvalidUsage) where its counts cannot be true.
        """
        of = await self._find(done.id, done.attempt)
        if of is None:
            return False
        await self._record(of, done, replica, model_digest, "journal")
        return True

    async def _find(self, request_id: str, attempt: int) -> AttemptedRequest | None:
        """The request of a lost attempt, as soon as the database can be asked."""
        while True:
            try:
                return await other_attempt(self._database, UUID(request_id), attempt)
            except DatabaseUnavailable:
                await asyncio.sleep(_PAUSE_S)

    async def _record(
        self, of: AttemptedRequest, done: Done, replica: str, model_digest: str, source: RecordedBy
    ) -> None:
        counts = to_billing_counts(done.counts)
        lost = LostAttempt(done.attempt, replica, model_digest, done.sequence, done.reason, counts, source)
        await self._recorder.until_durable(lost_attempt(of, lost))
        log.info("recorded a lost attempt", request_id=done.id, attempt=done.attempt, replica=replica)
