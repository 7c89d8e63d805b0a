"""What earlier gateways left behind: a replica's journal repeats each request whose usage nobody acknowledged.

Such a request is billed from its hold's terms and the journal's counts, once: if an orphaned spool knew better, the
event is a repetition and changes nothing. The hold is the database's, or the one that the request carried.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import structlog

from billing.holds.records import Hold
from billing.holds.reserving import Holds
from billing.prices import PriceBook, PriceMissing, PriceVersion, UnknownPriceVersion
from billing.usage import InvalidUsage
from engine.protocol.requests import Ack, Done
from gateway.fleet.fleet import Fleet
from gateway.fleet.link import Link
from gateway.lost_attempts import LostAttempts
from gateway.metering import unpack
from gateway.recording import Record, Recorder, event_of
from storage.database import DatabaseUnavailable

log = structlog.get_logger("gateway.recovery")

_PAUSE_S = 1.0


class Recovery:
    """Adopts what replicas repeat. A hold of another gateway, which may be alive, is left alone for `courtesy` s."""

    def __init__(
        self,
        gateway: str,
        *,
        holds: Holds,
        prices: PriceBook,
        recorder: Recorder,
        fleet: Fleet,
        attempts: LostAttempts,
        courtesy: float = 30.0,
    ) -> None:
        self._gateway = gateway
        self._holds = holds
        self._prices = prices
        self._recorder = recorder
        self._fleet = fleet
        self._attempts = attempts
        self._courtesy = courtesy
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}

    def stray(self, link: Link, done: Done) -> None:
        """A `Done` came that no running request waits for."""
        attempt = done.id, done.attempt
        if attempt not in self._running:
            task = self._running[attempt] = asyncio.create_task(self._recover(link, done))
            task.add_done_callback(lambda _: self._running.pop(attempt, None))

    @property
    def busy(self) -> bool:
        """Whether something is being adopted."""
        return bool(self._running)

    async def stop(self) -> None:
        """Leave what is not finished to the next start."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _recover(self, link: Link, done: Done) -> None:
        try:
            await self._attempts.until_over(done)
            hold = await self._find(done)
            if hold is not None and hold.gateway != self._gateway:
                await asyncio.sleep(self._courtesy)
                hold = await self._find(done)
            if not await self._attempts.record_stray(link, done) and hold is not None:
                await self._adopt(link, done, hold)
        except (InvalidUsage, msgspec.MsgspecError, PriceMissing, UnknownPriceVersion, ValueError) as error:
            log.error("a journal's request makes no sense", request_id=done.id, replica=link.replica, cause=str(error))
            return
        self._fleet.remember(done.id, done.sequence, done.attempt)
        link.send(Ack(done.id, done.sequence))

    async def _find(self, done: Done) -> Hold | None:
        """The hold that the request carried; else the database's, as soon as that can be asked."""
        if done.claim:
            return Hold.claimed(done.claim)
        while True:
            try:
                return await self._holds.get(UUID(done.id))
            except DatabaseUnavailable:
                await asyncio.sleep(_PAUSE_S)

    async def _price(self, hold: Hold) -> PriceVersion:
        """What the request was admitted with: remembered, or the database's as soon as that can be asked."""
        while True:
            try:
                return await self._prices.version(hold.price_version)
            except DatabaseUnavailable:
                await asyncio.sleep(_PAUSE_S)

    async def _adopt(self, link: Link, done: Done, hold: Hold) -> None:
        done.counts.check()
        price = await self._price(hold)
        delivered = min(done.delivered, done.counts.output)
        event = event_of(
            hold,
            unpack(hold.terms),
            price,
            done.counts,
            Record(
                status="failed",
                reason=done.reason,
                fault="ours_after" if delivered else "ours_before",
                delivered=delivered,
                delivery="unconfirmed",
                source="journal",
                replica=link.replica,
                model_digest=link.hello.model.digest if link.hello else "",
                sequence=done.sequence,
                attempt=done.attempt,
            ),
        )
        await self._recorder.until_durable(event)
        log.info("recovered a request from a journal", request_id=done.id, replica=link.replica, reason=done.reason)
