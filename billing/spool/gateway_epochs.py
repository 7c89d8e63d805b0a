"""The epochs of gateway workers, and how far each is with what it has in its spool: what closing a period waits for.

An epoch is one run of a worker and owns one spool. It publishes its low watermark: no event that waits in its spool was
admitted before. A file beside the spool says that the epoch lives, by being locked. Whoever shares the folder and can
lock that file ends the epoch, once all of its spool has been adopted and settled. If the folder is lost, only a person
can say so: `declare_dead`.

A worker takes its name with its epoch: no two that live have one name. One whose epoch is over, whatever ended it,
finds that out when it publishes, and stops: its holds may have been given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
import structlog
from sqlalchemy import Select, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from billing.spool import locked_files
from billing.spool.spool import Spool, files_of
from billing.tables.books import NAMES_LOCK, gateway_epoch
from storage.backoff import pause
from storage.database.base import from_instant
from storage.database.database import Database, DatabaseUnavailable
from storage.free_text import REASON, check_text
from storage.reported_error import ReportedError

log = structlog.get_logger(__name__)

SUFFIX = ".epoch"
EVERY_S = 5
_STOP_S = 10
_LEASE_S = 30
"""A name belongs to an epoch that was heard of within so many seconds, where nobody can tell by its files."""
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
    folder: str = ""
    holds_ended_at: int | None = None


class GatewayNameTaken(ReportedError):
    """Another gateway that lives has this name."""

    temporary = True


class EpochAlive(ReportedError, ValueError):
    """The epoch cannot be declared dead: it lives, or its spool is here to be settled."""


class UnknownEpoch(ReportedError, ValueError):
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
        said = {"gateway": found.gateway, "watermark": found.watermark}
        await record_change(
            session,
            "journal.gateway_declared_dead",
            target="gateway_epoch",
            target_id=epoch,
            reason=reason,
            before=said | {"state": found.state},
            after=said | {"state": "dead"},
        )
    return dead


class EpochKeeper:
    """Publishes the epoch of one spool as long as it lives, and ends those whose owners are gone. `start`, `stop`."""

    def __init__(self, database: Database, spool: Spool, gateway: str, *, folder: str = "") -> None:
        """`folder` is the identity of the folder in which the spool lies."""
        self.on_over: Callable[[str], None] = lambda why: None
        """Called once, with the reason, when the epoch turns out to be over although we live: nothing may be sent or
        reserved under it any more."""
        self._database = database
        self._spool = spool
        self._gateway = gateway
        self._folder = folder
        self._over = False
        self._mark = self._spool.folder.joinpath(f"{spool.owner}{SUFFIX}")
        self._descriptor = -1
        self._claimed = False
        self._known = 0
        """The database's clock when we last heard it."""
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._failing = False

    async def start(self) -> None:
        """Take the name, and begin; before anything is admitted. Nothing happens a second time. Raises
        GatewayNameTaken, DatabaseUnavailable, and OSError if the spool's folder cannot be written."""
        if self._task is not None:
            return
        self._descriptor = await asyncio.to_thread(locked_files.create, self._mark, b"")
        try:
            await self._claim()
        except BaseException:
            self._mark.unlink(missing_ok=True)
            os.close(self._descriptor)
            raise
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
        """Say how far we are, or find out that our epoch is over. Raises DatabaseUnavailable."""
        # no entry: a gateway lives
        of = gateway_epoch.c
        async with self._database.transaction() as session:
            now = (await session.execute(select(self._database.clock))).scalar_one()
            oldest = self._spool.oldest
            # What we admit from now on is later than the clock that we heard before; what runs has an open hold.
            watermark = (self._known or now) if oldest is None else oldest
            rows = {row.epoch: Epoch(*row) for row in await session.execute(self._named())}
            ours = rows.pop(self._spool.owner, None)
            if ours is None and not self._known:
                await self._insert(session, now, watermark)
            elif ours is not None and ours.state == "live":
                said = {"seen_at": now, "watermark": watermark}
                await session.execute(update(gateway_epoch).where(of.epoch == ours.epoch).values(said))
        self._known = now
        if (why := self._why_over(ours, rows.values())) and not self._over:
            self._over = True
            log.error("this run of the gateway is over: it stops", epoch=self._spool.owner, cause=why)
            self.on_over(why)

    def _named(self) -> Select[Any]:
        """The epoch that is ours, and those of our name that live."""
        of = gateway_epoch.c
        living = (of.gateway == self._gateway) & (of.state == "live")
        return select(gateway_epoch).where(or_(of.epoch == self._spool.owner, living))

    def _why_over(self, ours: Epoch | None, others: Iterable[Epoch]) -> str:
        """Why our epoch is over; empty if it is not. `others` are the living epochs of our name."""
        if ours is None:
            return "" if self._known == 0 or not self._claimed else "the database does not know it any more"
        if ours.state != "live":
            return f"it was declared {ours.state}: {ours.reason}" if ours.reason else f"it is {ours.state}"
        later = [other for other in others if (other.started_at, other.epoch) > (ours.started_at, ours.epoch)]
        return f"another gateway has taken its name: epoch {later[0].epoch}" if later else ""

    async def _claim(self) -> None:
        """Take our name, unless a gateway that lives has it. Raises GatewayNameTaken, DatabaseUnavailable."""
        async with self._database.transaction() as session:
            if self._database.dialect == "postgresql":
                await session.execute(select(func.pg_advisory_xact_lock(NAMES_LOCK)))
            now = (await session.execute(select(self._database.clock))).scalar_one()
            for row in (await session.execute(self._named())).all():
                self._check_name(Epoch(*row), now)
            await self._insert(session, now, now)
        self._known = now
        self._claimed = True

    async def _insert(self, session: AsyncSession, now: int, watermark: int) -> None:
        # no entry: a gateway has started
        row = Epoch(self._spool.owner, self._gateway, now, now, watermark, "live", "", self._folder)
        await session.execute(insert(gateway_epoch).values(msgspec.structs.asdict(row)))

    def _check_name(self, other: Epoch, now: int) -> None:
        """Raise GatewayNameTaken if this living epoch of our name has an owner that lives, as far as can be told."""
        if self._is_gone(other):
            return
        quiet_s = (now - other.seen_at) // 1_000_000
        here = self._spool.folder.joinpath(f"{other.epoch}{SUFFIX}").exists()
        if here or quiet_s < _LEASE_S:
            where = f"in {self._spool.folder}" if here else f"with another data folder, heard of {quiet_s} s ago"
            raise GatewayNameTaken(
                f"gateway_name: a gateway named {self._gateway!r} runs already ({where}): give each its own name, "
                f"or stop that one and start this one again{'' if here else f' after {_LEASE_S} s'}"
            )

    def _is_gone(self, other: Epoch) -> bool:
        """Whether the owner of an epoch is surely gone: what its life would have locked in our folder is not."""
        mark = self._spool.folder.joinpath(f"{other.epoch}{SUFFIX}")
        if not mark.exists():
            return bool(self._folder) and other.folder == self._folder
        descriptor = locked_files.take(mark)
        if descriptor is None:
            return not mark.exists()
        os.close(descriptor)
        return True

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
        for epoch in await self._without_mark():
            await self._end(epoch)
            ended.append(epoch)
        return ended

    async def _without_mark(self) -> list[str]:
        """Living epochs of our folder that have no mark in it, and no files: they had ended before, and the database
        was restored from a time when they had not."""
        of, folder = gateway_epoch.c, self._spool.folder
        if not self._folder:
            return []
        async with self._database.reading() as session:
            query = select(of.epoch).where(of.folder == self._folder, of.state == "live")
            epochs = list(await session.scalars(query))
        return [
            epoch
            for epoch in epochs
            if not folder.joinpath(f"{epoch}{SUFFIX}").exists() and not files_of(folder, epoch)
        ]

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
        # no entry: nobody decides it: the spool is settled
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
