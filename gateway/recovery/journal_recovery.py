"""What earlier gateways left behind: a replica's journal repeats each request whose usage nobody acknowledged.

Such a request is billed from its hold's terms and the journal's counts, once: if an orphaned spool knew better, the
event is a repetition and changes nothing. The hold is the database's, or the one that the request carried. A request of
another gateway is left to that one as long as its epoch lives, however long that is.

The journal may forget a request when its event is in the database, not merely in our spool: what no journal knows any
more may be given back (`gateway.recovery.orphaned_holds`). Where no event can be made of what it says, it may forget
it when that is kept for a person (`gateway.recovery.refused_entries`): else the request's hold, and its gateway's run,
would never end.
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
from gateway.metering.billable_usage import unpack
from gateway.metering.usage_recorder import NONSENSE, FinishedRequest, UsageRecorder, event_of
from gateway.recovery.lost_attempts import LostAttempts
from gateway.recovery.orphaned_holds import OrphanedHolds
from gateway.recovery.refused_entries import RefusedEntries
from protocol.requests import Ack, Done
from storage.database.database import Database, DatabaseUnavailable

log = structlog.get_logger("gateway.recovery.journal_recovery")

_PAUSE_S = 1.0


class _Told(msgspec.Struct, frozen=True):
    """Who told of a request, and under which number."""

    journal: str
    replica: str
    model_digest: str
    sequence: int


def _check_numbers(done: Done) -> None:
    """Raise InvalidUsage for a number that no database could keep."""
    if not 0 <= done.attempt <= MAX_TOKENS or not 0 < done.sequence <= MAX_PICO:
        raise InvalidUsage(f"attempt {done.attempt} or sequence {done.sequence} is no such number")


class JournalRecovery:
    """Adopts what replicas repeat. `epoch` is this worker's own."""

    def __init__(
        self,
        epoch: str,
        *,
        database: Database,
        holds: HoldService,
        prices: PriceCatalog,
        recorder: UsageRecorder,
        fleet: Fleet,
        leftovers: OrphanedHolds,
        attempts: LostAttempts,
        refused: RefusedEntries,
    ) -> None:
        self._epoch = epoch
        self._database = database
        self._holds = holds
        self._prices = prices
        self._recorder = recorder
        self._fleet = fleet
        self._leftovers = leftovers
        self._attempts = attempts
        self._refused = refused
        self._running: dict[_Told, asyncio.Task[None]] = {}

    def stray(self, link: ReplicaLink, done: Done) -> None:
        """A `Done` came that no running request waits for."""
        # what is at the other end of a link may change while a request waits
        told = _Told(link.journal, link.replica, link.hello.model.digest if link.hello else "", done.sequence)
        if told not in self._running:
            task = self._running[told] = asyncio.create_task(self._recover(link, told, done))
            task.add_done_callback(lambda _: self._running.pop(told, None))

    async def stop(self) -> None:
        """Leave what is not finished to the next start."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _recover(self, link: ReplicaLink, told: _Told, done: Done) -> None:
        hold: Hold | None = None
        try:
            await self._attempts.until_over(done.id, min(max(0, done.attempt), MAX_TOKENS))
            hold = await self._ours_to_bill(told, done)
            _check_numbers(done)
            if not await self._attempts.record_stray(told.replica, told.model_digest, done) and hold is not None:
                await self._adopt(told, done, hold)
        except NONSENSE as error:
            await self._refused.keep(done, told.replica, error, hold)
        self._fleet.remember(done.id, done.sequence, done.attempt)
        if link.journal == told.journal:
            link.send(Ack(done.id, done.sequence))

    async def _ours_to_bill(self, told: _Told, done: Done) -> Hold | None:
        """The hold of the request, as soon as nobody else is going to bill it; None if somebody did, or it has none."""
        while True:
            try:
                hold = await self._find(done)
                if hold is None or not await self._is_anothers(told, done, hold):
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
        there = [event for event in events if await has_event(self._database, event)]
        return None if there else Hold.claimed(done.claim)

    async def _is_anothers(self, told: _Told, done: Done, hold: Hold) -> bool:
        """Whether somebody else is going to bill the request, and holds money for it: the gateway that runs it, or who
        is told of a later attempt of it, since this one was in vain."""
        if hold.state != "open" or hold.gateway == self._epoch:
            return False
        if not await epoch_journals.is_over(self._database, hold.gateway):
            return True
        later = self._leftovers.later_may_be_known
        return not done.delivered and await later(hold.gateway, told.journal, told.replica, done.id, done.attempt)

    async def _price(self, hold: Hold) -> PriceVersion:
        """What the request was admitted with: remembered, or the database's as soon as that can be asked."""
        while True:
            try:
                return await self._prices.version(hold.price_version)
            except DatabaseUnavailable:
                await asyncio.sleep(_PAUSE_S)

    async def _adopt(self, told: _Told, done: Done, hold: Hold) -> None:
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
                replica=told.replica,
                model_digest=told.model_digest,
                sequence=done.sequence,
                attempt=done.attempt,
            ),
        )
        await self._settle(event)
        log.info("recovered a request from a journal", request_id=done.id, replica=told.replica, reason=done.reason)

    async def _settle(self, event: UsageEvent) -> None:
        """Bring the event into the database. One that cannot be settled goes the way of all, by which it is kept."""
        while True:
            try:
                await settle(self._database, self._prices, [event])
            except DatabaseUnavailable:
                await asyncio.sleep(_PAUSE_S)
            except Exception:
                log.exception("a journal's request cannot be settled at once", request_id=str(event.id))
                await self._recorder.until_durable(event)
                return
            else:
                return
