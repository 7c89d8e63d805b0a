"""Writes usage events and releases of holds to the spool until they are durable. Nothing here talks to a client.

Entries of replicas' journals of which no event can be made are kept in the database instead, for an operator to look
at. Once one is kept, the journal may forget it and its request's hold ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

import msgspec
import structlog

from billing.holds.records import Hold
from billing.reservation.allowances import Allowances
from billing.settlement.settlement import JournalEntry, refuse_entry
from billing.spool.spool import Spool, SpoolUnavailable
from billing.usage import Release, SpoolRecord, UsageEvent
from gateway.metering.lease_outcomes import LeaseOutcomes
from protocol.requests import Done
from storage.backoff import Backoff
from storage.database.circuit_breaker import until_available
from storage.database.database import Database

log = structlog.get_logger("gateway.metering.usage_recorder")

_PAUSE_FIRST, _PAUSE_MOST, _REFUSAL_PAUSE_S = 0.1, 5.0, 1.0
_FAILING_S = 10.0


class UsageRecorder:
    """Writes usage and releases to the spool, and retries while that fails; then frees what the requests held."""

    def __init__(self, spool: Spool, allowances: Allowances, leases: LeaseOutcomes) -> None:
        self._spool = spool
        self._allowances = allowances
        self._leases = leases
        self._failed_at: float | None = None

    @property
    def failing(self) -> bool:
        """Whether the last record failed, less than 10 seconds ago: then no request may be started."""
        return self._failed_at is not None and time.monotonic() - self._failed_at < _FAILING_S

    async def once(self, record: SpoolRecord) -> bool:
        """Try once; False if the record is not durable."""
        try:
            await self._spool.append(record)
        except SpoolUnavailable as error:
            if self._failed_at is None:
                log.error("usage cannot be recorded; new requests are refused", cause=str(error))
            self._failed_at = time.monotonic()
            return False
        if self._failed_at is not None:
            log.info("usage can be recorded again")
        self._failed_at = None
        return True

    async def until_durable(self, record: SpoolRecord) -> None:
        """Try for ever."""
        backoff = Backoff(_PAUSE_FIRST, _PAUSE_MOST)
        while not await self.once(record):
            await backoff.wait()

    async def use(self, hold: Hold, event: UsageEvent, *, failing: Callable[[], UsageEvent]) -> None:
        """Record the usage of a request that held this; `failing` is called if that does not succeed at once, and says
        what is recorded then."""
        if not await self.once(event):
            event = failing()
            await self.until_durable(event)
        self._allowances.ended(hold, event.cost_pico)
        self._leases.ended(hold, event.usage.prompt)

    async def once_release(self, request_id: UUID, reason: str) -> None:
        """Try once to record the release of a hold that may not exist. If it does and this fails, it ends when this
        worker's epoch is over."""
        await self.once(Release(request_id, reason))

    async def release(self, hold: Hold, reason: str) -> None:
        """Record that nothing was done, so that the hold is given back."""
        if hold.allowance is None:
            await self.until_durable(Release(hold.request_id, reason, hold.batch))
        self._allowances.ended(hold)
        self._leases.ended(hold, 0)


class RefusedEntries:
    """`count`: how many entries this worker has refused since it was started."""

    def __init__(self, database: Database) -> None:
        self.count = 0
        self._database = database

    async def keep(self, done: Done, replica: str, cause: Exception, hold: Hold | None = None) -> None:
        """Write the entry to the database, however long that is unavailable, and release this hold of its request. Only
        after that may the entry be acknowledged."""
        entry = JournalEntry(replica, done.sequence, done.id, msgspec.msgpack.encode(done))
        why = f"{type(cause).__name__}: {cause}"
        holds = {} if hold is None else {hold.request_id: hold.batch}
        await until_available(lambda: refuse_entry(self._database, entry, why, holds), _REFUSAL_PAUSE_S)
        self.count += 1
        log.error(
            "a journal's entry makes no sense and is kept aside; nothing is billed for it",
            request_id=done.id,
            replica=replica,
            sequence=done.sequence,
            cause=why,
        )
