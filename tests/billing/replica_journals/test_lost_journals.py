"""A journal that is lost with its machine: nothing of it is called doubled, and a person's word closes the books."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from sqlalchemy import delete, insert, literal, select, update
from sqlalchemy.exc import DBAPIError

from billing.calendar import period_bounds
from billing.prices import PriceCatalog
from billing.replica_journals import epoch_journals
from billing.replica_journals.comparison import JournalReport
from billing.replica_journals.lost_journals import JournalAnswers, UnknownJournal, declare_lost, known_journals
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.tables.books import gateway_epoch, journal_loss
from billing.usage import Usage
from billing.verification.audit import audit_money
from billing.verification.reconciliation import reconcile
from storage.database.base import Count
from storage.database.database import Database
from storage.free_text import InvalidText
from tests.billing.money import Tenant

NOVEMBER = "2026-11"
LONG_AGO = literal(period_bounds("2026-12")[0] - 61_000_001, Count())
OLD, NEW = 7, 90
"""Epochs of the replica `r1` in which a journal began."""


async def _begin(database: Database, epoch: str) -> None:
    """A gateway's run."""
    row = {"epoch": epoch, "gateway": "g", "started_at": 1, "seen_at": 1, "watermark": 1, "state": "live", "reason": ""}
    async with database.transaction() as session:
        await session.execute(insert(gateway_epoch).values(row))


async def _end(database: Database, epoch: str, state: str = "ended") -> None:
    async with database.transaction() as session:
        await session.execute(update(gateway_epoch).where(gateway_epoch.c.epoch == epoch).values(state=state))


async def _use(database: Database, tenant: Tenant, epoch: int, numbers: Sequence[int]) -> None:
    holds = [await HoldService(database).reserve(tenant.request(10**8)) for _ in numbers]
    events = [
        tenant.event(hold, Usage(uncached=100), sequence=(epoch << 32) + number)
        for hold, number in zip(holds, numbers, strict=True)
    ]
    await settle(database, PriceCatalog(database), events)


@pytest.fixture
async def tenant(database: Database) -> Tenant:
    """Of a replica whose journal was lost: numbers 1, 2 and 4 have events, 3 had not been acknowledged."""
    database.clock = LONG_AGO
    tenant = await Tenant.rich(database, 10**13)
    await _begin(database, "g-1")
    await epoch_journals.register_journal(database, "g-1", "the old one", "r1", OLD)
    database.clock = literal(period_bounds("2026-12")[0] - 1, Count())
    await _use(database, tenant, OLD, [1, 2, 4])
    return tenant


async def test_what_waits_in_a_journal_is_not_lost(database: Database, tenant: Tenant) -> None:
    """The replica crashed, and is not back; then it is, and nobody has acknowledged number 3."""
    away = await reconcile(database, NOVEMBER)
    assert (away.lost, away.unacknowledged, away.clean) == (0, 1, False)
    back = await reconcile(database, NOVEMBER, [JournalReport("r1", 5, 2, "the old one", OLD)])
    assert (back.lost, back.unacknowledged, back.doubled, back.clean) == (0, 2, 0, False)
    assert (await reconcile(database, NOVEMBER, [JournalReport("r1", 5, 0, "the old one", OLD)])).lost == 2


@pytest.mark.both_databases
async def test_a_lost_journal_is_declared_so_and_the_books_are_closed(database: Database, tenant: Tenant) -> None:
    await epoch_journals.register_journal(database, "g-1", "the new one", "r1", NEW)
    await _use(database, tenant, NEW, [1, 2])
    answers = [JournalReport("r1", 2, 0, "the new one", NEW)]
    gone = await reconcile(database, NOVEMBER, answers)
    assert (gone.doubled, gone.clean) == (0, False)
    assert [(one.journal, one.events) for one in gone.gone] == [("the old one", 3)]

    with pytest.raises(JournalAnswers):
        await declare_lost(database, "the new one", author="me", reason="?", answering={"the new one"})
    with pytest.raises(UnknownJournal):
        await declare_lost(database, "r9", author="me", reason="the disk burned")
    with pytest.raises(UnknownJournal, match="several"):
        await declare_lost(database, "r1", author="me", reason="the disk burned")
    with pytest.raises(UnknownJournal, match="reason"):
        await declare_lost(database, "r1", author="me", reason=" ", answering={"the new one"})
    for reason in ("two\nlines", "x" * 501):
        with pytest.raises(InvalidText, match="reason"):
            await declare_lost(database, "r1", author="me", reason=reason, answering={"the new one"})
    loss = await declare_lost(database, "r1", author="me", reason="the disk burned", answering={"the new one"})
    assert (loss.journal, loss.events, loss.missing, loss.holds, loss.reason) == (
        "the old one", 3, 1, 0, "the disk burned",
    )  # fmt: skip
    assert await declare_lost(database, "the old one", author="you", reason="again") == loss
    closed = await reconcile(database, NOVEMBER, answers)
    assert (closed.lost, closed.doubled, closed.declared_lost, closed.clean) == (0, 0, 1, True)
    assert [(one.journal, one.state, one.reason) for one in await known_journals(database)] == [
        ("the old one", "lost", "the disk burned"),
        ("the new one", "known", ""),
    ]
    assert await audit_money(database) == []
    for statement in (update(journal_loss).values(reason="another"), delete(journal_loss)):
        async with database.transaction() as session:
            with pytest.raises(DBAPIError, match="immutable"):
                await session.execute(statement)
            await session.rollback()


@pytest.mark.both_databases
async def test_holds_wait_for_a_journal_until_it_is_declared_lost(database: Database, tenant: Tenant) -> None:
    holds = HoldService(database)
    held = await holds.reserve(msgspec.structs.replace(tenant.request(10**8, lifetime_s=1), gateway_epoch="g-1"))
    assert await holds.sweep(2**62) == 0, "its gateway lives"
    await _end(database, "g-1")
    assert [found.epoch for found in await epoch_journals.ended_epochs(database)] == ["g-1"]
    assert await epoch_journals.waited_for(database, "g-1") == ["the old one"]
    assert await holds.sweep(2**62) == 0, "a journal may know it"
    (waiting,) = await known_journals(database)
    assert (waiting.epochs, waiting.holds, waiting.held_pico) == (1, 1, held.amount_pico)
    with pytest.raises(epoch_journals.EpochOver):
        await epoch_journals.register_journal(database, "g-1", "a third", "r2", 1)
    loss = await declare_lost(database, "r1", author="me", reason="the disk burned")
    assert (loss.holds, loss.held_pico) == (1, held.amount_pico)
    assert await epoch_journals.waited_for(database, "g-1") == []
    assert await holds.give_back("g-1") == 1
    await epoch_journals.mark_holds_ended(database, "g-1")
    assert await epoch_journals.ended_epochs(database) == []
    assert await audit_money(database) == []


async def test_a_journal_that_knows_nothing_is_not_waited_for_again(database: Database, tenant: Tenant) -> None:
    await _end(database, "g-1")
    await epoch_journals.mark_cleared(database, "g-1", "the old one")
    assert await epoch_journals.waited_for(database, "g-1") == []
    await epoch_journals.mark_holds_ended(database, "g-1")
    assert await epoch_journals.ended_epochs(database) == []


@pytest.mark.both_databases
async def test_a_lost_journal_that_turns_up_is_waited_for_again(database: Database, tenant: Tenant) -> None:
    """Its machine is back: what it gets from now on, it alone may know. A run from before sends it nothing."""
    await declare_lost(database, "r1", author="me", reason="the machine burns")
    with pytest.raises(epoch_journals.JournalLost):
        await epoch_journals.register_journal(database, "g-1", "the old one", "r1", OLD)
    async with database.transaction() as session:
        later = (await session.execute(select(database.clock))).scalar_one() + 1
        row = {"epoch": "g-2", "gateway": "g", "started_at": later, "seen_at": later, "watermark": later}
        await session.execute(insert(gateway_epoch).values(row | {"state": "live", "reason": ""}))
    await epoch_journals.register_journal(database, "g-2", "the old one", "r1", OLD)
    for epoch in ("g-1", "g-2"):
        await _end(database, epoch)
    assert await epoch_journals.waited_for(database, "g-1") == []
    assert await epoch_journals.waited_for(database, "g-2") == ["the old one"]


async def test_the_journal_of_a_replica_that_was_too_old_to_name_it_can_be_declared_lost(
    database: Database, tenant: Tenant
) -> None:
    now, database.clock = database.clock, LONG_AGO
    await epoch_journals.register_journal(database, "g-1", "replica r2", "r2", 0)
    database.clock = now
    loss = await declare_lost(database, "r2", author="me", reason="the disk burned")
    assert (loss.journal, loss.events, loss.missing) == ("replica r2", 0, 0)


async def test_a_journal_to_which_a_gateway_was_connected_a_moment_ago_is_not_lost(
    database: Database, tenant: Tenant
) -> None:
    """Whoever says so may not reach its replica: nothing answered, and the gateway has it all the same."""
    now, database.clock = database.clock, LONG_AGO
    await epoch_journals.see_journals(database, ["the old one", "never met"])
    database.clock = now
    await epoch_journals.see_journals(database, ["the old one"])
    for which in ("r1", "the old one"):
        with pytest.raises(JournalAnswers, match="connected"):
            await declare_lost(database, which, author="me", reason="the disk burned")
    (known,) = await known_journals(database)
    assert known.state == "known"
