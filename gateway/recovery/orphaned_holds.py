"""Releases the holds of gateway epochs that are over, once no replica's journal knows their requests.

A gateway that dies between the hold and `Generate` leaves a hold that nobody would ever settle. Every running worker
looks for such epochs. It tells each journal to which the epoch may have sent requests that the epoch is over (`Fence`),
and the journal answers which requests of it are still to be acknowledged (`Fenced`). `JournalRecovery` bills these, and
settles them in the database before the journal forgets them. When no journal knows any request more, or those that may
were declared lost, the holds still open belong to requests that never began. The database keeps what the journals
answered, so that any worker can go on at any time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import structlog

from billing.replica_journals import epoch_journals
from billing.reservation.hold_service import HoldService
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica_link import ReplicaLink, unnamed_journal
from gateway.recovery.background_tasks import BackgroundTasks
from protocol.replicas import FENCE_VERSION, Fence, Fenced
from storage.database.database import Database, DatabaseUnavailable

log = structlog.get_logger("gateway.recovery.orphaned_holds")

_PAUSE_S = 1.0


class OrphanedHolds:
    """Looks after the epochs of others. `epoch` is this worker's own, which is not over while it runs."""

    def __init__(self, epoch: str, *, database: Database, holds: HoldService, fleet: Fleet) -> None:
        self._epoch = epoch
        self._database = database
        self._holds = holds
        self._fleet = fleet
        self._met: set[str] = set()
        """The journals to which the database knows that this epoch may send requests."""
        self._known: dict[tuple[str, str], dict[str, int]] = {}
        """(epoch, journal) -> request -> its last attempt that the journal knew when it last answered, 0 if unknown."""
        self._said_at = float("-inf")
        """When the database was last told which journals we are connected to, by the monotonic clock."""
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        """Begin. Called before the fleet dials."""
        self._fleet.on_opened = self._opened
        self._fleet.on_fenced = self._fenced
        self._tasks.start(self._run())

    async def stop(self) -> None:
        """Leave the rest to other workers, or to the next start."""
        await self._tasks.stop()

    async def later_may_be_known(self, epoch: str, journal: str, replica: str, request: str, attempt: int) -> bool:
        """Whether a journal may know a later attempt of a request of an epoch that is over: another journal, or
        `journal` itself, since both attempts may have been sent to one replica. Raises DatabaseUnavailable."""
        for other in await epoch_journals.waited_for(self._database, epoch):
            known = self._known.get((epoch, other))
            if known is None and other == journal == unnamed_journal(replica):
                continue  # its replica is too old to answer
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
        self._tasks.start(self._meet(link, link.journal))

    def _fenced(self, link: ReplicaLink, message: Fenced) -> None:
        for name in self._names(link):
            self._known[message.epoch, name] = _last_attempts(message.requests)
        if not message.requests:
            self._tasks.start(self._clear(message.epoch, self._names(link)))

    @staticmethod
    def _names(link: ReplicaLink) -> tuple[str, ...]:
        """The names of a replica's journal: its identity, and what it was called before journals had one, if it is as
        old as that."""
        older = link.hello is not None and not link.hello.since
        return (link.journal, unnamed_journal(link.replica)) if older else (link.journal,)

    async def _meet(self, link: ReplicaLink, journal: str) -> None:
        hello = link.hello
        while hello is not None and link.hello is hello:
            try:
                await epoch_journals.register_journal(self._database, self._epoch, journal, hello.replica, hello.since)
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
            for name in names:
                await epoch_journals.mark_cleared(self._database, epoch, name)
        except DatabaseUnavailable:
            return  # the journal is fenced, and answers, again

    # ------------------------------------------------ epochs that are over

    async def _run(self) -> None:
        while True:
            try:
                await self._say_connected()
                for found in await epoch_journals.ended_epochs(self._database):
                    await self._end(found)
            except DatabaseUnavailable:
                pass
            except Exception:
                log.exception("holds of gateways that are gone could not be looked at, trying again")
            await asyncio.sleep(_PAUSE_S)

    async def _say_connected(self) -> None:
        """Keep those journals from being declared lost whose replicas are connected to us."""
        if (now := time.monotonic()) - self._said_at < epoch_journals.SEEN_EVERY_S:
            return
        if names := {name for link in self._fleet.links if link.up for name in self._names(link)}:
            await epoch_journals.see_journals(self._database, names)
            self._said_at = now

    async def _end(self, found: epoch_journals.EndedEpoch) -> None:
        """Do for an epoch what can be done now."""
        epoch = found.epoch
        open_holds = await self._holds.open_of(epoch)
        if open_holds or not found.surely_gone:
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
            if open_holds and (given_back := await self._holds.give_back(epoch)):
                log.warning("gave back the holds of requests that no replica ever began", epoch=epoch, holds=given_back)
        await epoch_journals.mark_holds_ended(self._database, epoch)
        for key in [key for key in self._known if key[0] == epoch]:
            del self._known[key]


def _last_attempts(requests: Iterable[tuple[str, int]]) -> dict[str, int]:
    """request -> its last attempt; 0 if the attempt is missing in any of its pairs."""
    last: dict[str, int] = {}
    for request, attempt in requests:
        before = last.get(request, attempt)
        last[request] = max(before, attempt) if before and attempt else 0
    return last
