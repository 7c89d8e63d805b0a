"""Journals that are lost with their machine: which ones gateways wait for, and a person's word that one will not come
back. That is recorded for ever, sealed, with what was known of the journal at that time."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

import msgspec
from sqlalchemy import ColumnElement, Table, func, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from billing.integrity.row_seals import seal_rows
from billing.money import format_pico
from billing.replica_journals.comparison import JournalComparison, compare, events_between
from billing.replica_journals.sequences import missing_between
from billing.tables.books import gateway_epoch, journal_loss, journal_of_epoch, replica_journal
from billing.tables.money import hold_batch
from storage.database.base import from_instant
from storage.database.database import Database
from storage.free_text import NAME, REASON, check_text
from storage.reported_error import ReportedError

_FOR_EVER = (1 << 31) - 1
_ALIVE_S = 60
"""A journal to which a gateway was connected within so many seconds is not declared lost."""


class UnknownJournal(ReportedError, ValueError):
    """No journal, or more than one, is meant by what was given."""


class JournalAnswers(ReportedError, ValueError):
    """The journal is not lost: a replica has it, or had it a moment ago."""


class KnownJournal(msgspec.Struct, frozen=True):
    """A journal that gateways have met. `epochs`: the gateway epochs that are over and wait for its word; `holds` and
    `held_pico`: what their open holds reserve. `reason`: why it was declared lost, if it was."""

    journal: str
    replica: str
    since: int
    seen_at: int
    state: Literal["known", "lost"]
    epochs: int
    holds: int
    held_pico: int
    reason: str = ""


class JournalLoss(msgspec.Struct, frozen=True):
    """A journal that was declared lost. `events`: its requests that were recorded; `missing`: its numbers without an
    event; `holds`: those that may be given back without its word."""

    journal: str
    replica: str
    since: int
    at: int
    author: str
    reason: str
    events: int
    missing: int
    holds: int
    held_pico: int


async def known_journals(database: Database) -> list[KnownJournal]:
    """Every journal that gateways have met, by replica and age. Raises DatabaseUnavailable."""
    of, lost = replica_journal.c, journal_loss.c
    async with database.reading() as session:
        rows = await session.execute(
            select(of.journal, of.replica, of.since, of.seen_at, lost.reason)
            .outerjoin_from(replica_journal, journal_loss, lost.journal == of.journal)
            .order_by(of.replica, of.since)
        )
        return [
            KnownJournal(
                row.journal,
                row.replica,
                row.since,
                row.seen_at,
                "known" if row.reason is None else "lost",
                *(await _waiting(session, row.journal)),
                row.reason or "",
            )
            for row in rows.all()
        ]


async def declare_lost(
    database: Database, which: str, *, author: str, reason: str, answering: Collection[str] = ()
) -> JournalLoss:
    """Wait no more for a journal: `which` is its identity, or its replica's name if only one of its journals is not
    here. `answering`: the journals that answer now. Whoever asks may not reach all replicas, so that what gateways are
    connected to counts too. A second time changes nothing.

    Raises UnknownJournal, JournalAnswers, InvalidText, DatabaseUnavailable.
    """
    reason = reason.strip()
    if not reason:
        raise UnknownJournal("--reason: say what happened to the journal")
    check_text("reason", reason, REASON)
    check_text("by", author, NAME)
    async with database.transaction() as session:
        known = [
            JournalLoss(*row) for row in await session.execute(select(journal_loss).where(_named(journal_loss, which)))
        ]
        found = await _choose(session, which, answering, {one.journal for one in known})
        if found is None:
            return known[-1]
        if found.journal in answering:
            raise JournalAnswers(f"journal {found.journal} of {found.replica} answers: it is not lost")
        now = (await session.execute(select(database.clock))).scalar_one()
        if now - found.seen_at < _ALIVE_S * 1_000_000:
            seen = from_instant(found.seen_at).isoformat(timespec="seconds")
            raise JournalAnswers(
                f"a gateway was connected to journal {found.journal} of {found.replica} at {seen}: if it is lost, "
                f"stop what answers for it, and say so again {_ALIVE_S} s later"
            )
        compared = {one.journal: one for one in await compare(session, ())}
        until = _until(found, compared.values())
        events = await events_between(session, found.replica, found.since, until)
        missing = await missing_between(session, found.replica, found.since, until)
        _, holds, pico = await _waiting(session, found.journal)
        loss = JournalLoss(found.journal, found.replica, found.since, now, author, reason, events, missing, holds, pico)
        await session.execute(insert(journal_loss).values(msgspec.structs.asdict(loss)))
        await seal_rows(session, journal_loss, journal_loss.c.journal == loss.journal)
        said = {name: getattr(loss, name) for name in ("replica", "since", "events", "missing", "holds")}
        await record_change(session, "journal.declared_lost", target="journal", target_id=loss.journal, reason=reason,
                            after=said | {"held": format_pico(loss.held_pico)})  # fmt: skip
    return loss


def _named(table: Table, which: str) -> ColumnElement[bool]:
    return or_(table.c.journal == which, table.c.replica == which)


async def _choose(session: AsyncSession, which: str, answering: Collection[str], lost: Collection[str]) -> _Met | None:
    """The journal that is meant; None if it was declared lost already."""
    rows = await session.execute(select(replica_journal).where(_named(replica_journal, which)))
    met = [_Met(row.journal, row.replica, row.since, row.seen_at) for row in rows]
    exact = [one for one in met if one.journal == which]
    if exact:
        return None if exact[0].journal in lost else exact[0]
    left = [one for one in met if one.journal not in lost]
    absent = [one for one in left if one.journal not in answering]
    if len(absent) == 1:
        return absent[0]
    if absent:
        names = ", ".join(one.journal for one in absent)
        raise UnknownJournal(f"{which} has several journals that do not answer: name one of {names}")
    if left:
        return left[0]  # it answers
    if lost:
        return None
    raise UnknownJournal(f"no gateway has met a journal {which!r}, or of a replica of that name")


class _Met(msgspec.Struct, frozen=True):
    """A journal, as gateways met it."""

    journal: str
    replica: str
    since: int
    seen_at: int


def _until(journal: _Met, others: Iterable[JournalComparison]) -> int:
    """In which epoch of the replica the next journal began."""
    after = [one.since for one in others if one.replica == journal.replica and one.since > journal.since]
    return min(after, default=_FOR_EVER)


async def _waiting(session: AsyncSession, journal: str) -> tuple[int, int, int]:
    """How many gateway epochs that are over wait for this journal, and how many open holds they have, of how much."""
    link, epoch, hold = journal_of_epoch.c, gateway_epoch.c, hold_batch.c
    waiting = (
        select(link.epoch)
        .join(gateway_epoch, epoch.epoch == link.epoch)
        .where(link.journal == journal, link.cleared_at.is_(None), epoch.state != "live")
    )
    epochs = list(await session.scalars(waiting))
    if not epochs:
        return 0, 0, 0
    # all tenants: a journal is everybody's
    query = select(func.sum(hold.open), func.sum(hold.amount_pico)).where(hold.gateway.in_(epochs))
    holds, pico = (await session.execute(query)).one()
    return len(epochs), int(holds or 0), int(pico or 0)
