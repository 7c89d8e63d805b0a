"""Which replicas' journals may have requests of a gateway epoch, as the database has it.

Before a gateway worker sends its first request to a journal, a row says that this journal may know requests of its
epoch. A hold of an ended epoch is given back once each of these journals has said that it has nothing more of the
epoch, and never will (`protocol.replicas.Fence`), or was declared lost by a person. No clock decides it.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from sqlalchemy import delete, func, select, update

from billing.tables.books import gateway_epoch, journal_loss, journal_of_epoch, replica_journal
from storage.database.database import Database

SEEN_EVERY_S = 15
"""How often gateways say to which journals they are connected. Another gateway's word is as good."""


class EpochOver(Exception):
    """The gateway epoch has ended: it must not send requests any more."""


class JournalLost(Exception):
    """The journal was declared lost while this gateway epoch lived: nobody would wait for what it says of the epoch."""


class EndedEpoch(msgspec.Struct, frozen=True):
    """A gateway epoch that has ended, and of which holds may be open. `surely_gone`: its process does not live."""

    epoch: str
    surely_gone: bool


async def register_journal(database: Database, epoch: str, journal: str, replica: str, since: int) -> None:
    """Record that requests of a living epoch may go to this journal. Raises EpochOver, JournalLost,
    DatabaseUnavailable."""
    of = gateway_epoch.c
    async with database.transaction() as session:
        # whoever ends the epoch waits, or has ended it: nobody overlooks this journal
        living = select(of.started_at).where(of.epoch == epoch, of.state == "live")
        if (row := (await session.execute(database.locked(living))).one_or_none()) is None:
            raise EpochOver(epoch)
        lost = select(journal_loss.c.journal).where(journal_loss.c.journal == journal, journal_loss.c.at >= row[0])
        if (await session.execute(lost)).one_or_none() is not None:
            raise JournalLost(journal)
        now = (await session.execute(select(database.clock))).scalar_one()
        row = {"journal": journal, "replica": replica, "since": since, "seen_at": now}
        put = database.insert(replica_journal).values(row)
        await session.execute(put.on_conflict_do_update(index_elements=["journal"], set_={"seen_at": now}))
        known = database.insert(journal_of_epoch).values(epoch=epoch, journal=journal, cleared_at=None)
        await session.execute(known.on_conflict_do_nothing())


async def see_journals(database: Database, journals: Collection[str]) -> None:
    """Record that a gateway is connected to these journals now. Raises DatabaseUnavailable."""
    # no entry: a gateway and a replica live
    of = replica_journal.c
    async with database.transaction() as session:
        now = (await session.execute(select(database.clock))).scalar_one()
        stale = of.journal.in_(journals) & (of.seen_at < now - SEEN_EVERY_S * 1_000_000)
        await session.execute(update(replica_journal).where(stale).values(seen_at=now))


async def is_over(database: Database, epoch: str) -> bool:
    """Whether this gateway epoch has ended; one that the database does not know has. Raises DatabaseUnavailable."""
    of = gateway_epoch.c
    async with database.reading() as session:
        state = (await session.execute(select(of.state).where(of.epoch == epoch))).scalar_one_or_none()
    return state != "live"


async def ended_epochs(database: Database) -> list[EndedEpoch]:
    """The epochs that have ended, and of which holds may be open. Raises DatabaseUnavailable."""
    of = gateway_epoch.c
    async with database.reading() as session:
        rows = await session.execute(
            select(of.epoch, of.state).where(of.state != "live", of.holds_ended_at.is_(None)).order_by(of.epoch)
        )
        return [EndedEpoch(row.epoch, row.state == "ended") for row in rows]


async def waited_for(database: Database, epoch: str) -> list[str]:
    """The journals that may know something of an epoch, and were not declared lost since it began: one that was lost
    before turned up again, and took its requests. Raises DatabaseUnavailable."""
    of = journal_of_epoch.c
    began = select(gateway_epoch.c.started_at).where(gateway_epoch.c.epoch == epoch).scalar_subquery()
    lost = select(journal_loss.c.journal).where(journal_loss.c.at >= func.coalesce(began, 0))
    async with database.reading() as session:
        query = select(of.journal).where(of.epoch == epoch, of.cleared_at.is_(None), of.journal.not_in(lost))
        return list(await session.scalars(query.order_by(of.journal)))


async def mark_cleared(database: Database, epoch: str, journal: str) -> None:
    """Record that this journal has nothing more of an epoch, and never will. Raises DatabaseUnavailable."""
    of = journal_of_epoch.c
    async with database.transaction() as session:
        now = (await session.execute(select(database.clock))).scalar_one()
        here = (of.epoch == epoch, of.journal == journal, of.cleared_at.is_(None))
        await session.execute(update(journal_of_epoch).where(*here).values(cleared_at=now))


async def mark_holds_ended(database: Database, epoch: str) -> None:
    """Record that no hold of an ended epoch is open any more. Raises DatabaseUnavailable."""
    # no entry: nobody decides it: the journals have answered
    of = gateway_epoch.c
    async with database.transaction() as session:
        now = (await session.execute(select(database.clock))).scalar_one()
        here = (of.epoch == epoch, of.state != "live", of.holds_ended_at.is_(None))
        await session.execute(update(gateway_epoch).where(*here).values(holds_ended_at=now))
        await session.execute(delete(journal_of_epoch).where(journal_of_epoch.c.epoch == epoch))
