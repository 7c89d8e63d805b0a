"""Holds of gateway epochs that are over: given back when no journal knows their requests, and not before.

A gateway that dies between the hold and `Generate` leaves a hold that nobody would ever settle. Every living worker
looks for such epochs, its own name's and others'. Each journal that an epoch may have sent requests to is told that the
epoch is over (`Fence`), and says what it still knows of it. That is billed by recovery, and settled in the database
before the journal forgets it. When all journals know nothing more, or were declared lost, what is still open was never
begun. What was found out stands in the database, so that it does not matter which worker goes on, or when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable

import structlog

from billing.replica_journals import epoch_journals
from billing.reservation.hold_service import HoldService
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica_link import ReplicaLink, unnamed_journal
from protocol.replicas import FENCE_VERSION, Fence, Fenced
from storage.database.database import Database, DatabaseUnavailable

log = structlog.get_logger("gateway.recovery.orphaned_holds")

_PAUSE_S = 1.0


class OrphanedHolds:
    """`epoch` is this worker's own, which is not over while it works."""

    def __init__(self, epoch: str, *, database: Database, holds: HoldService, fleet: Fleet) -> None:
        self._epoch = epoch
        self._database = database
        self._holds = holds
        self._fleet = fleet
        self._met: set[str] = set()
        """The journals that may be sent requests of our epoch, as the database knows."""
        self._known: dict[tuple[str, str], dict[str, int]] = {}
        """What journals knew of epochs when they last said so: the last attempt by request, 0 where they do not know
        which."""
        self._task: asyncio.Task[None] | None = None
        self._noting: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin, before the fleet dials."""
        self._fleet.on_opened = self._opened
        self._fleet.on_fenced = self._fenced
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Leave the rest to others, or to the next start."""
        tasks = [*self._noting, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def later_may_be_known(self, epoch: str, journal: str, replica: str, request: str, attempt: int) -> bool:
        """Whether a journal may know a later attempt of a request of an epoch that is over: another one, or this one of
        this replica, to which it may have been sent twice. Raises DatabaseUnavailable."""
        for other in await epoch_journals.waited_for(self._database, epoch):
            known = self._known.get((epoch, other))
            if known is None and other == journal == unnamed_journal(replica):
                continue  # it is too old to say
            if known is None:
                return True
            if request in known and (not known[request] or known[request] > attempt):
                return True
        return False

    # ------------------------------------------------ what links say

    def _opened(self, link: ReplicaLink) -> None:
        """A replica may be sent requests once the database knows that its journal may know some."""
        if link.journal in self._met:
            link.may_run = True  # at once, whether or not the database answers
        self._spawn(self._meet(link, link.journal))

    def _fenced(self, link: ReplicaLink, message: Fenced) -> None:
        for known_as in self._names(link):
            self._known[message.epoch, known_as] = _last_attempts(message.requests)
        if not message.requests:
            self._spawn(self._clear(message.epoch, self._names(link)))

    @staticmethod
    def _names(link: ReplicaLink) -> tuple[str, ...]:
        """What the journal of a replica is called, and was before it had an identity, if it is as old."""
        older = link.hello is not None and not link.hello.since
        return (link.journal, unnamed_journal(link.replica)) if older else (link.journal,)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def _meet(self, link: ReplicaLink, journal: str) -> None:
        hello = link.hello
        while hello is not None and link.hello is hello:
            try:
                await epoch_journals.meet(self._database, self._epoch, journal, hello.replica, hello.since)
            except DatabaseUnavailable:
                await asyncio.sleep(_PAUSE_S)
            except epoch_journals.EpochOver:
                log.error("this run of the gateway is over: it sends nothing more", epoch=self._epoch)
                return
            except epoch_journals.JournalLost:
                self._met.discard(journal)
                if link.journal == journal:
                    link.may_run = False
                log.error(
                    "a journal that was declared lost is back: its replica gets no requests until this gateway is "
                    "started again",
                    replica=hello.replica,
                    journal=journal,
                )
                return
            else:
                self._met.add(journal)
                if link.up and link.journal == journal:
                    link.may_run = True
                return

    async def _clear(self, epoch: str, names: Iterable[str]) -> None:
        try:
            for known_as in names:
                await epoch_journals.clear(self._database, epoch, known_as)
        except DatabaseUnavailable:
            return  # it is asked again

    # ------------------------------------------------ epochs that are over

    async def _run(self) -> None:
        while True:
            try:
                for found in await epoch_journals.over(self._database):
                    await self._end(found)
            except DatabaseUnavailable:
                pass
            except Exception:
                log.exception("holds of gateways that are gone could not be looked at, trying again")
            await asyncio.sleep(_PAUSE_S)

    async def _end(self, found: epoch_journals.EndedEpoch) -> None:
        """Do for an epoch what can be done now."""
        epoch = found.epoch
        left = await self._holds.open_of(epoch)
        if left or not found.surely_gone:
            waited_for = set(await epoch_journals.waited_for(self._database, epoch))
            for link in self._fleet.links:
                if (
                    not waited_for.isdisjoint(self._names(link))
                    and link.up
                    and link.hello is not None
                    and link.hello.version >= FENCE_VERSION
                ):
                    link.send(Fence(epoch))
            if waited_for:
                return
            if left and (given_back := await self._holds.give_back(epoch)):
                log.warning("gave back the holds of requests that no replica ever began", epoch=epoch, holds=given_back)
        await epoch_journals.finish(self._database, epoch)
        for key in [key for key in self._known if key[0] == epoch]:
            del self._known[key]


def _last_attempts(requests: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The last attempt of each request; 0 if any of its attempts is not said."""
    last: dict[str, int] = {}
    for request, attempt in requests:
        before = last.get(request, attempt)
        last[request] = max(before, attempt) if before and attempt else 0
    return last
