"""Who may set which price when, what applies to whom, and that none of it can be changed afterwards."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import delete, insert, literal, select, update
from sqlalchemy.exc import DBAPIError

from billing.money import InvalidMoney, InvalidPrice
from billing.platform_settings import PlatformSettings
from billing.prices import PriceCatalog, PriceMissing, in_every_lane
from billing.prices.approval import BY_KEY, PriceSheets
from billing.prices.errors import (
    NotADraft,
    NothingToOverride,
    OverlappingPrices,
    PriceInPast,
    PriceRefused,
    SamePerson,
    UnknownBook,
    UnknownSheet,
    UnusualPrice,
    WrongCurrency,
)
from billing.prices.grid import digest
from billing.prices.price_books import PriceBooks
from billing.prices.sheets import PriceProposal, PriceSheet
from billing.prices.version import Cell
from billing.tables.prices import price_interval, price_sheet
from billing.verification.audit import audit_money
from storage.database.base import Base, Count, new_id
from storage.database.database import Database

DAY = 86_400_000_000
HOUR = 3_600_000_000
PLAIN = {"uncached": 400_000, "read_automatic": 40_000, "output": 1_600_000}


def rows(**changes: int) -> dict[Cell, int]:
    return in_every_lane(PLAIN | changes)


def base(model: str = "m", **fields: object) -> PriceProposal:
    return PriceProposal(**{"model": model, "rows": rows(), "currency": "USD"} | fields)  # type: ignore[arg-type]  # of a Proposal


async def written(database: Database) -> int:
    async with database.reading() as session:
        return len((await session.execute(select(price_sheet.c.id))).all())


async def test_one_persons_word_is_enough_where_it_is_said_to_be(database: Database) -> None:
    sheet = await PriceSheets(database).put(base(), by="ann", reason="launch")
    assert (sheet.state, sheet.author, sheet.book.name, sheet.book.currency) == ("active", "ann", "base", "USD")
    assert [(c.action, c.actor, c.reason, c.before_sha256) for c in sheet.changes] == [
        ("draft", "ann", "launch", ""),
        ("set", "ann", "launch", ""),
    ]
    assert {c.after_sha256 for c in sheet.changes} == {sheet.sha256} == {digest(rows())}
    after = await PriceSheets(database).put(base(rows=rows(output=1_700_000)), by="ann")
    assert after.changes[-1].before_sha256 == sheet.sha256
    assert (await PriceSheets(database).get(sheet.id)).state == "ended"
    assert [each.id for each in await PriceSheets(database).history("m")] == [after.id, sheet.id]
    assert (await PriceCatalog(database).current("m")).rows == rows(output=1_700_000)


async def _with_approvals(database: Database) -> PriceSheets:
    """Sheets for operators who presented their keys, on a platform where it takes two."""
    await PlatformSettings(database).set("approvals", "on", by="ann and bob", via="operator keys")
    return PriceSheets(database, via=BY_KEY)


async def test_where_it_takes_two_operators_nobody_is_believed_who_only_says_who_they_are(database: Database) -> None:
    named = PriceSheets(database, via="ann@host")
    forged = await named.draft(base(), by="ann")
    keyed = await _with_approvals(database)
    for call in (
        named.put(base(), by="ann", force="in a hurry"),
        named.draft(base(), by="ann"),
        named.approve(forged.id, by="bob"),
        named.withdraw(forged.id, by="bob"),
    ):
        with pytest.raises(PriceRefused, match="operator's key"):
            await call
    with pytest.raises(PriceRefused, match="drafted without an operator's key"):
        await keyed.approve(forged.id, by="bob")
    assert (await keyed.put(base(), by="ann", force="in a hurry")).state == "draft"
    assert await audit_money(database) == []


async def test_four_eyes(database: Database) -> None:
    sheets, catalog = await _with_approvals(database), PriceCatalog(database)
    draft = await sheets.put(base(), by="ann", reason="launch")
    assert (draft.state, draft.effective_at) == ("draft", None)
    with pytest.raises(PriceMissing):
        await catalog.current("m")
    for same in ("ann", " Ann "):
        with pytest.raises(SamePerson, match="another person"):
            await sheets.approve(draft.id, by=same)
    active = await sheets.approve(draft.id, by="bob", reason="looked at it")
    assert active.state == "active"
    assert [(c.action, c.actor) for c in active.changes] == [("draft", "ann"), ("approve", "bob")]
    with pytest.raises(NotADraft):
        await sheets.approve(draft.id, by="eve")
    with pytest.raises(NotADraft):
        await sheets.withdraw(draft.id, by="ann")
    catalog.forget()
    assert (await catalog.current("m")).rows == rows()
    with pytest.raises(UnknownSheet):
        await sheets.approve(99, by="bob")
    with pytest.raises(PriceRefused, match="who"):
        await sheets.draft(base(), by=" ")


async def test_from_draft_to_scheduled_to_active_to_ended(database: Database) -> None:
    now = await database.now()
    sheets, catalog = await _with_approvals(database), PriceCatalog(database)
    first = await sheets.approve((await sheets.draft(base(), by="ann")).id, by="bob")
    later = base(rows=rows(output=2_000_000), effective_at=now + HOUR)
    draft = await sheets.draft(later, by="ann")
    scheduled = await sheets.approve(draft.id, by="bob")
    assert (draft.state, scheduled.state) == ("draft", "scheduled")
    with pytest.raises(OverlappingPrices, match=f"price sheet {scheduled.id}"):
        await sheets.draft(later, by="eve")
    assert (await catalog.current("m", now + HOUR - 1)).rows == rows()
    assert (await catalog.current("m", now + HOUR)).rows == rows(output=2_000_000)
    database.clock = literal(now + HOUR, Count())
    assert [(await sheets.get(each.id)).state for each in (first, scheduled)] == ["ended", "active"]


async def test_what_is_scheduled_can_be_withdrawn_until_it_begins(database: Database) -> None:
    now = await database.now()
    sheets, catalog = PriceSheets(database), PriceCatalog(database)
    await sheets.put(base(), by="ann")
    slip = await sheets.put(base(rows=rows(output=9_000_000), effective_at=now + HOUR), by="ann")
    gone = await sheets.withdraw(slip.id, by="ann", reason="typo")
    assert (gone.state, gone.changes[-1].action, gone.changes[-1].reason) == ("withdrawn", "withdraw", "typo")
    assert (await catalog.current("m", now + 2 * HOUR)).rows == rows()
    again = await sheets.put(base(rows=rows(output=900_000), effective_at=now + HOUR), by="ann")
    assert again.state == "scheduled"
    with pytest.raises(NotADraft, match="withdrawn"):
        await sheets.withdraw(slip.id, by="ann")


@pytest.mark.both_databases
async def test_temporary_prices_come_before_standing_ones_and_never_overlap(database: Database) -> None:
    now = await database.now()
    sheets, catalog = PriceSheets(database), PriceCatalog(database)
    await sheets.put(base(), by="ann")
    offer = base(rows=rows(output=800_000), effective_at=now + DAY, effective_until=now + 3 * DAY)
    sheet = await sheets.put(offer, by="ann")
    standing = await sheets.put(base(rows=rows(output=2_000_000), effective_at=now + 2 * DAY), by="ann")
    outputs = [
        (await catalog.current("m", now + at)).price("output", "standard", 0)
        for at in (DAY - 1, DAY, 2 * DAY, 3 * DAY - 1, 3 * DAY)
    ]
    assert outputs == [1_600_000, 800_000, 800_000, 800_000, 2_000_000]
    for starts, ends in ((0, 2), (2, 4), (1, 3), (0, 9), (2, 3)):
        again = base(effective_at=now + starts * DAY + HOUR, effective_until=now + ends * DAY)
        with pytest.raises(OverlappingPrices):
            await sheets.put(again, by="ann")
    await sheets.put(base(effective_at=now + 3 * DAY, effective_until=now + 4 * DAY), by="ann")
    await sheets.put(base("other", effective_at=now + DAY, effective_until=now + 2 * DAY), by="ann")
    database.clock = literal(now + 3 * DAY, Count())
    assert [(await sheets.get(each.id)).state for each in (sheet, standing)] == ["ended", "active"]


async def test_the_database_refuses_overlaps_and_changes_too(database: Database) -> None:
    """What the code forgot: on PostgreSQL the exclusion constraint; on both the triggers."""
    now = await database.now()
    sheets = PriceSheets(database)
    offer = await sheets.put(base(effective_at=now + DAY, effective_until=now + 2 * DAY), by="ann")
    draft = await sheets.draft(base(effective_at=now + DAY), by="ann")
    sheet = await sheets.put(base(), by="ann")
    interval = {"book": sheet.book.id, "model": "m", "effective_at": now + DAY + 1, "effective_until": now + DAY + 2}
    if database.dialect == "postgresql":
        async with database.transaction() as session:
            with pytest.raises(DBAPIError, match="ex_price_interval_temporary"):
                await session.execute(insert(price_interval).values(sheet=draft.id, **interval))
            await session.rollback()
    for statement in (
        delete(price_interval).where(price_interval.c.sheet == sheet.id),
        update(price_interval).values(effective_at=now + 5 * DAY),
    ):
        async with database.transaction() as session:
            with pytest.raises(DBAPIError, match="immutable"):
                await session.execute(statement)
            await session.rollback()
    await PriceBooks(database).create_for(new_id(), "own")
    await PriceCatalog(database).current("m")
    await PlatformSettings(database).set("approvals", "off", by="ann", via="a test")
    for name in ("price_book", "price_sheet", "price_row", "price_change", "price_resolution", "platform_setting"):
        table = Base.metadata.tables[name]
        for statement in (update(table).values({list(table.columns)[-1].name: None}), delete(table)):
            async with database.transaction() as session:
                with pytest.raises(DBAPIError, match="immutable"):
                    await session.execute(statement)
                await session.rollback()
    assert (await sheets.get(offer.id)).state == "scheduled"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"effective_at": 1}, PriceInPast),
        ({"effective_until": 1}, PriceRefused),
        ({"currency": "EUR"}, WrongCurrency),
        ({"currency": "eur"}, InvalidMoney),
        ({"book": "nowhere"}, UnknownBook),
        ({"model": " "}, PriceRefused),
        ({"kind": "overrides"}, NothingToOverride),
        ({"rows": {}}, InvalidPrice),
        ({"rows": rows() | {("write_2h", "*", 0): 1}}, InvalidPrice),
        ({"rows": rows() | {("output", "express", 0): 1}}, InvalidPrice),
        ({"rows": rows() | {("output", "*", -1): 1}}, InvalidPrice),
        ({"rows": rows() | {("output", "*", 1000): 2_000_000}}, InvalidPrice),
        ({"rows": rows() | {("output", "batch", 0): 800_000}}, InvalidPrice),
        ({"rows": in_every_lane({"uncached": 400_000, "output": 400_000})}, InvalidPrice),
        ({"rows": rows(output=99)}, UnusualPrice),
        ({"rows": rows(output=10_000_000_001)}, UnusualPrice),
        ({"rows": rows(read_automatic=400_001)}, UnusualPrice),
        ({"rows": rows(write_5m=399_999)}, UnusualPrice),
        ({"rows": rows(write_1h=600_000, write_24h=500_000)}, UnusualPrice),
    ],
)
async def test_what_is_wrong_is_refused_and_nothing_written(
    database: Database, fields: dict[str, object], error: type[Exception]
) -> None:
    sheets = PriceSheets(database)
    await sheets.put(base("other"), by="ann")
    for write in (sheets.draft, sheets.put):
        with pytest.raises(error):
            await write(base(**fields), by="ann")
    with pytest.raises(error):
        await sheets.check(base(**fields))
    assert await written(database) == 1


async def test_unusual_prices_can_be_meant(database: Database) -> None:
    sheets = PriceSheets(database)
    odd = base(rows=rows(output=99, read_automatic=500_000))
    with pytest.raises(UnusualPrice, match=r"output.*read_automatic.*--force") as refusal:
        await sheets.put(odd, by="ann")
    assert {problem.meter for problem in refusal.value.problems} == {"output", "read_automatic"}
    with pytest.raises(PriceRefused, match="reason"):
        await sheets.put(odd, by="ann", force=" ")
    assert (await sheets.put(odd, by="ann", force="a contract")).forced == "a contract"
    free = await sheets.put(base("free", rows=in_every_lane(dict.fromkeys(PLAIN, 0))), by="ann")
    assert free.state == "active"


async def test_a_draft_whose_time_has_passed_is_not_approved(database: Database) -> None:
    now = await database.now()
    sheets = await _with_approvals(database)
    draft = await sheets.draft(base(effective_at=now + HOUR), by="ann")
    database.clock = literal(now + 2 * HOUR, Count())
    with pytest.raises(PriceInPast, match="draft it again"):
        await sheets.approve(draft.id, by="bob")


async def test_a_tenants_book_overrides_its_base_cell_by_cell(database: Database) -> None:
    sheets, books, catalog = PriceSheets(database), PriceBooks(database), PriceCatalog(database)
    tenant, other = new_id(), new_id()
    grid = {(meter, lane, 0): micro // n for meter, micro in PLAIN.items() for lane, n in (("*", 1), ("batch", 2))}
    await sheets.put(base(rows=grid), by="ann")
    await books.create_for(tenant, "acme")
    public = await catalog.current("m")
    assert await catalog.current("m", tenant_id=tenant) == public
    special = PriceProposal(model="m", rows={("output", "*", 0): 1_000_000}, book="acme", kind="overrides")
    await sheets.put(special, by="ann")
    catalog.forget()
    mine = await catalog.current("m", tenant_id=tenant)
    assert mine.rows == grid | {("output", "*", 0): 1_000_000}
    assert mine.price("output", "batch", 0) == 800_000
    assert await catalog.current("m", tenant_id=other) == public
    assert await PriceCatalog(database).version(mine.id) == mine
    # another process finds the same version, and does not make another
    assert (await PriceCatalog(database).current("m", tenant_id=tenant)).id == mine.id
    # the base changes: what the tenant's book does not say follows
    dearer = {cell: 2 * micro for cell, micro in grid.items()}
    await sheets.put(base(rows=dearer), by="ann")
    catalog.forget()
    follows = await catalog.current("m", tenant_id=tenant)
    assert follows.rows == dearer | {("output", "*", 0): 1_000_000}
    assert follows.id != mine.id
    assert (await catalog.version(mine.id)).rows == mine.rows
    # a whole sheet follows no more
    await sheets.put(PriceProposal(model="m", rows=rows(), book="acme"), by="ann")
    catalog.forget()
    assert (await catalog.current("m", tenant_id=tenant)).rows == rows()
    own = (await books.list())[1]
    assert (await catalog.in_book(own, "m")).rows == rows()
    assert (await catalog.in_book(None, "m")).rows == dearer


async def test_overrides_that_would_be_nothing_or_wrong_are_refused(database: Database) -> None:
    sheets, books = PriceSheets(database), PriceBooks(database)
    await sheets.put(base(), by="ann")
    await books.create_for(new_id(), "acme")
    for model, cell in (("m", ("output", "batch", 0)), ("m", ("write_5m", "*", 0)), ("unpriced", ("output", "*", 0))):
        with pytest.raises(NothingToOverride):
            await sheets.put(
                PriceProposal(model=model, rows={cell: 1_000_000}, book="acme", kind="overrides"), by="ann"
            )
    dear_read = {("read_automatic", "*", 0): 500_000}
    with pytest.raises(UnusualPrice):
        await sheets.put(PriceProposal(model="m", rows=dear_read, book="acme", kind="overrides"), by="ann")


async def test_books_have_names_bases_and_currencies(database: Database) -> None:
    books, tenant = PriceBooks(database), new_id()
    euro = await books.create("euro", "EUR")
    own = await books.create_for(tenant, "acme", "euro")
    assert (own.currency, own.base, own.tenant_id) == ("EUR", euro.id, tenant)
    for refused in (
        books.create("euro", "USD"),
        books.create(" ", "USD"),
        books.create_for(new_id(), "third", "acme"),
    ):
        with pytest.raises(PriceRefused):
            await refused
    with pytest.raises(UnknownBook):
        await books.create_for(new_id(), "x", "nowhere")
    with pytest.raises(InvalidMoney):
        await books.create("x", "euro")
    assert [book.name for book in await books.list()] == ["euro", "acme"]
    await PriceSheets(database).put(PriceProposal(model="m", rows=rows(), book="euro"), by="ann")
    version = await PriceCatalog(database).current("m", tenant_id=tenant)
    assert version.currency == "EUR"
    with pytest.raises(PriceMissing):
        await PriceCatalog(database).current("m")


async def test_people_who_set_the_same_price_at_once_do_not_both_succeed(database: Database) -> None:
    now = await database.now()
    sheets = [PriceSheets(database) for _ in range(5)]
    made = await asyncio.gather(
        *(each.put(base(effective_at=now + DAY), by=f"p{n}") for n, each in enumerate(sheets)), return_exceptions=True
    )
    assert [type(each) for each in made if not isinstance(each, PriceSheet)] == [OverlappingPrices] * 4
    versions = await asyncio.gather(*(PriceCatalog(database).current("m", now + DAY) for _ in range(5)))
    assert len({version.id for version in versions}) == 1


async def test_the_effect_of_a_sheet_is_what_it_changes(database: Database) -> None:
    sheets = PriceSheets(database)
    assert await sheets.check(base()) == ({}, rows(), "USD")
    first = await sheets.put(base(), by="ann")
    await PriceBooks(database).create_for(new_id(), "acme")
    special = PriceProposal(model="m", rows={("output", "*", 0): 1_000_000}, book="acme", kind="overrides")
    assert await sheets.check(special) == (rows(), rows(output=1_000_000), "USD")
    overriding = await sheets.put(special, by="ann")
    assert await sheets.effect(overriding) == (rows(), rows(output=1_000_000), "USD")
    assert await sheets.effect(first) == ({}, rows(), "USD")
    more = PriceProposal(model="m", rows={("uncached", "*", 0): 300_000}, book="acme", kind="overrides")
    assert await sheets.check(more) == (rows(output=1_000_000), rows(uncached=300_000), "USD")
