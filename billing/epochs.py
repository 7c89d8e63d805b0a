"""The epochs of gateway workers, and how far each is with what it has in its spool: what closing a period waits for.

An epoch is one run of a worker and owns one spool. It publishes its low watermark: no event that waits in its spool was
admitted before. A file beside the spool says that the epoch lives, by being locked. Whoever shares the folder and can
lock that file ends the epoch, once all of its spool has been adopted and settled. If the folder is lost, only a person
can say so: `declare_dead`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Literal

import msgspec
import structlog
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from billing import locked_files
from billing.spool import Spool, files_of
from billing.tables.periods import gateway_epoch
from storage.base import from_instant
from storage.database import Database, DatabaseUnavailable
from storage.free_text import REASON, check_text
from storage.retry import pause

log = structlog.get_logger(__name__)

SUFFIX = ".epoch"
EVERY_S = 5
_STOP_S = 10
_ALIVE_S = 60
"""An epoch that was heard of within so many seconds is not declared dead."""


class Epoch(msgspec.Struct, frozen=True):
    """An epoch as the database knows it; instants are microseconds since the Unix epoch, by the database's clock."""

    epoch: str
    gateway: str
    started_at: int
    seen_at: int
    watermark: int
    state: Literal["live", "ended", "dead"]
    reason: str


class EpochAlive(ValueError):
    """The epoch cannot be declared dead: it lives, or its spool is here to be settled."""


class UnknownEpoch(ValueError):
    """There is no such epoch."""

    def __init__(self, epoch: str) -> None:
        super().__init__(f"there is no gateway epoch {epoch!r}: see `turnpike periods list`")
        self.epoch = epoch


async def epochs_before(session: AsyncSession, instant: int) -> list[Epoch]:
    """The live epochs that may still have events from before this instant."""
    query = select(gateway_epoch).where(gateway_epoch.c.state == "live", gateway_epoch.c.watermark < instant)
    return [Epoch(*row) for row in await session.execute(query.order_by(gateway_epoch.c.watermark))]


async def declare_dead(database: Database, epoch: str, reason: str, spool_folder: Path | None = None) -> Epoch:
    """Let no period wait for this epoch any more: it is gone, and its spool with it. Should something of it turn up all
    the same, it is settled as late usage.

    Raises UnknownEpoch, InvalidText, and EpochAlive if it was heard of a moment ago or has files in `spool_folder`.
    """
    check_text("reason", reason, REASON)
    async with database.transaction() as session:
        row = (await session.execute(select(gateway_epoch).where(gateway_epoch.c.epoch == epoch))).one_or_none()
        if row is None:
            raise UnknownEpoch(epoch)
        found = Epoch(*row)
        if found.state != "live":
            return found
        now = (await session.execute(select(database.clock))).scalar_one()
        if now - found.seen_at < _ALIVE_S * 1_000_000:
            seen = from_instant(found.seen_at).isoformat(timespec="seconds")
            raise EpochAlive(f"epoch {epoch} was heard of at {seen}: stop the gateway {found.gateway} first")
        if spool_folder is not None and files_of(spool_folder, epoch):
            raise EpochAlive(f"epoch {epoch} has usage in {spool_folder}: start a gateway there, which settles it")
        dead = msgspec.structs.replace(found, state="dead", reason=reason)
        here = gateway_epoch.c.epoch == epoch
        await session.execute(update(gateway_epoch).where(here).values(state="dead", reason=reason))
    return dead


class EpochKeeper:
    """Publishes the epoch of one spool as long as it lives, and ends those whose owners are gone. `start`, `stop`."""

    def __init__(self, database: Database, spool: Spool, gateway: str) -> None:
        self._database = database
        self._spool = spool
        self._gateway = gateway
        self._mark = self._spool.folder.joinpath(f"{spool.owner}{SUFFIX}")
        self._descriptor = -1
        self._known = 0
        """The database's clock when we last heard it."""
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._failing = False

    async def start(self) -> None:
        """Begin, before anything is admitted. Raises OSError if the spool's folder cannot be written."""
        self._descriptor = await asyncio.to_thread(locked_files.create, self._mark, b"")
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop, and end the epoch if its spool is drained; otherwise who adopts the spool will."""
        if self._task is None:
            return
        # What it says at the moment it may say: cancelled while its connection is made, it would leave that open.
        self._stopping.set()
        _, pending = await asyncio.wait([self._task], timeout=_STOP_S)
        for task in pending:
            task.cancel()
            await asyncio.wait([task])
        self._task = None
        if self._spool.drained:
            with contextlib.suppress(DatabaseUnavailable):  # then the next one here ends it
                await self._end(self._spool.owner)
                self._mark.unlink(missing_ok=True)
        os.close(self._descriptor)

    async def publish(self) -> None:
        """Say how far we are. Raises DatabaseUnavailable."""
        async with self._database.transaction() as session:
            now = (await session.execute(select(self._database.clock))).scalar_one()
            oldest = self._spool.oldest
            # What we admit from now on is later than the clock that we heard before; what runs has an open hold.
            watermark = (self._known or now) if oldest is None else oldest
            row = Epoch(self._spool.owner, self._gateway, now, now, watermark, "live", "")
            put = self._database.insert(gateway_epoch).values(msgspec.structs.asdict(row))
            said = {"seen_at": now, "watermark": watermark, "state": "live", "reason": ""}
            await session.execute(put.on_conflict_do_update(index_elements=["epoch"], set_=said))
        self._known = now

    async def end_gone(self) -> list[str]:
        """End the epochs whose owners are gone and whose spool is settled. Raises DatabaseUnavailable, OSError."""
        ended = []
        for path, descriptor in await asyncio.to_thread(self._gone):
            try:
                await self._end(path.stem)
                path.unlink(missing_ok=True)
                ended.append(path.stem)
            finally:
                os.close(descriptor)
        return ended

    def _gone(self) -> list[tuple[Path, int]]:
        """The marks of owners that are gone and have no files left, locked by us."""
        found = []
        for path in sorted(self._spool.folder.glob(f"*{SUFFIX}")):
            if path == self._mark or files_of(self._spool.folder, path.stem):
                continue
            descriptor = locked_files.take(path)
            if descriptor is None:
                continue
            if files_of(self._spool.folder, path.stem):  # it wrote one before it went
                os.close(descriptor)
            else:
                found.append((path, descriptor))
        return found

    async def _end(self, epoch: str) -> None:
        live = (gateway_epoch.c.epoch == epoch) & (gateway_epoch.c.state == "live")
        async with self._database.transaction() as session:
            await session.execute(update(gateway_epoch).where(live).values(state="ended"))

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await self.publish()
                for epoch in await self.end_gone():
                    log.info("the epoch of a gateway that is gone has ended: its spool is settled", epoch=epoch)
                self._failing = False
            except (DatabaseUnavailable, OSError) as error:
                if not self._failing:
                    log.warning("the gateway's watermark cannot be published", cause=str(error))
                self._failing = True
            await pause(EVERY_S, self._stopping)
