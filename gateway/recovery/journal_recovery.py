"""Bills requests from replicas' journals: each request that a gateway did not acknowledge before it or the link died.

What happens when something dies, and where:
- A replica dies: the request goes on at another one or waits for the journal, in `gateway.generation.attempts` and
  `generation_task`. How long it waits is set in `gateway.admission.request_timeouts`: `retry` for a replica to go on
  at, `replay` for the journal of the lost one. The attempts before the last are recorded by
  `gateway.recovery.lost_attempts`.
- A gateway dies: its next start settles what is in its spool (`billing.spool`). What the spool lacks, journals repeat
  to any gateway, and this module bills it. Holds of requests that never began are released by
  `gateway.recovery.orphaned_holds`; a hold that nobody ended expires after `RequestTimeouts.hold`.

A request is billed from its hold's terms and the journal's counts, once: if a spool had its event already, the second
one is a repetition and changes nothing. The hold is the database's, or the one that the request carried (`claim`). A
request of another gateway is left to that gateway for as long as its epoch is not over.

The journal is acknowledged when the event is in the database; the spool is not enough, since `orphaned_holds` releases
what no journal knows. An entry of which no event can be made is acknowledged once it is kept for an operator
(`RefusedEntries`): else the request's hold, and its gateway's epoch, would never end.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import structlog

from billing.holds.records import Hold
from billing.money import MAX_PICO
from billing.prices import PriceCatalog, PriceVersion
from billing.replica_journals import epoch_journals
from billing.reservation.hold_service import HoldService
from billing.settlement.lost_attempt_events import attempt_id
from billing.settlement.settlement import has_event, settle
from billing.usage import MAX_TOKENS, InvalidUsage, UsageEvent
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica_link import ReplicaLink
from gateway.metering.billable_usage import NONSENSE, FinishedRequest, event_of, unpack
from gateway.metering.lease_outcomes import LeaseOutcomes
from gateway.metering.usage_recorder import RefusedEntries, UsageRecorder
from gateway.recovery.background_tasks import BackgroundTasks
from gateway.recovery.lost_attempts import LostAttempts
from gateway.recovery.orphaned_holds import OrphanedHolds
from protocol.requests import Ack, Done
from storage.database.circuit_breaker import until_available
from storage.database.database import Database, DatabaseUnavailable

log = structlog.get_logger("gateway.recovery.journal_recovery")

_PAUSE_S = 1.0


class _Source(msgspec.Struct, frozen=True):
    """The journal that repeated a request, and the entry's number there."""

    journal: str
    replica: str
    model_digest: str
    sequence: int


def _check_numbers(done: Done) -> None:
    """Raise InvalidUsage for a number that no database could keep."""
    if not 0 <= done.attempt <= MAX_TOKENS or not 0 < done.sequence <= MAX_PICO:
        raise InvalidUsage(f"attempt {done.attempt} or sequence {done.sequence} is no such number")


class JournalRecovery:
    """Bills what replicas repeat. `epoch` is this worker's own."""

    def __init__(
        self,
        epoch: str,
        *,
        database: Database,
        holds: HoldService,
        prices: PriceCatalog,
        recorder: UsageRecorder,
        fleet: Fleet,
        orphaned_holds: OrphanedHolds,
        attempts: LostAttempts,
        refused: RefusedEntries,
        leases: LeaseOutcomes,
    ) -> None:
        self._epoch = epoch
        self._database = database
        self._holds = holds
        self._prices = prices
        self._recorder = recorder
        self._fleet = fleet
        self._orphaned_holds = orphaned_holds
        self._attempts = attempts
        self._refused = refused
        self._leases = leases
        self._running: set[_Source] = set()
        self._tasks = BackgroundTasks()

    def stray(self, link: ReplicaLink, done: Done) -> None:
        """Recover a `Done` that no running request waits for."""
        # what is at the other end of a link may change while a request waits
        source = _Source(link.journal, link.replica, link.hello.model.digest if link.hello else "", done.sequence)
        if source not in self._running:
            self._running.add(source)
            self._tasks.start(self._recover(link, source, done))

    async def stop(self) -> None:
        """Leave what is not finished to the next start."""
        await self._tasks.stop()

    async def _recover(self, link: ReplicaLink, source: _Source, done: Done) -> None:
        hold: Hold | None = None
        try:
            await self._attempts.until_over(done.id, min(max(0, done.attempt), MAX_TOKENS))
            hold = await self._ours_to_bill(source, done)
            _check_numbers(done)
            if not await self._attempts.record_stray(source.replica, source.model_digest, done) and hold is not None:
                await self._adopt(source, done, hold)
        except NONSENSE as error:
            await self._refused.keep(done, source.replica, error, hold)
        finally:
            self._running.discard(source)
        self._fleet.remember(done.id, done.sequence, done.attempt)
        if link.journal == source.journal:
            link.send(Ack(done.id, done.sequence))

    async def _ours_to_bill(self, source: _Source, done: Done) -> Hold | None:
        """The hold of the request, once it is certain that nobody else is going to bill it; None if somebody did, or if
        there is none."""
        while True:
            try:
                hold = await self._find(done)
                if hold is None or not await self._billed_elsewhere(source, done, hold):
                    return hold
            except DatabaseUnavailable:
                pass
            await asyncio.sleep(_PAUSE_S)

    async def _find(self, done: Done) -> Hold | None:
        """The hold that the request carried, if there is no event yet; else the database's. Raises
        DatabaseUnavailable."""
        request = UUID(done.id)
        if not done.claim:
            return await self._holds.get(request)
        _check_numbers(done)
        # a lost attempt may be all that there ever is: who tried again may have been refused
        events = request, attempt_id(request, done.attempt)
        recorded = [event for event in events if await has_event(self._database, event)]
        return None if recorded else Hold.claimed(done.claim)

    async def _billed_elsewhere(self, source: _Source, done: Done, hold: Hold) -> bool:
        """Whether another gateway is going to bill the request: the one that runs it, or the one that hears of a later
        attempt, which has what this one delivered."""
        if hold.state != "open" or hold.gateway_epoch == self._epoch:
            return False
        if not await epoch_journals.is_over(self._database, hold.gateway_epoch):
            return True
        return await self._orphaned_holds.later_may_be_known(
            hold.gateway_epoch, source.journal, source.replica, done.id, done.attempt
        )

    async def _price(self, hold: Hold) -> PriceVersion:
        """The price that the request was admitted with."""
        return await until_available(lambda: self._prices.version(hold.price_version), _PAUSE_S)

    async def _adopt(self, source: _Source, done: Done, hold: Hold) -> None:
        done.counts.check()
        price = await self._price(hold)
        delivered = min(done.delivered, done.counts.output)
        event = event_of(
            hold,
            unpack(hold.terms),
            price,
            done.counts,
            FinishedRequest(
                status="failed",
                reason=done.reason,
                fault="ours_after" if delivered else "ours_before",
                delivered=delivered,
                delivery="unconfirmed",
                source="journal",
                replica=source.replica,
                model_digest=source.model_digest,
                sequence=done.sequence,
                attempt=done.attempt,
            ),
        )
        await self._settle(event)
        self._leases.ended(hold, event.usage.prompt)
        log.info("recovered a request from a journal", request_id=done.id, replica=source.replica, reason=done.reason)

    async def _settle(self, event: UsageEvent) -> None:
        """Write the event to the database. One that cannot be settled goes to the spool, whose settler keeps it."""
        try:
            await until_available(lambda: settle(self._database, self._prices, [event]), _PAUSE_S)
        except Exception:
            log.exception("a journal's request cannot be settled at once", request_id=str(event.id))
            await self._recorder.until_durable(event)
