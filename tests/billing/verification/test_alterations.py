"""Whatever is altered in the books, column by column, the audit notices."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import msgspec
import pytest
from sqlalchemy import CheckConstraint, Column, LargeBinary, Table, Text, insert, literal, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

import billing.tables
from audit_log.actors import Actor, acting_as
from billing.accounts.balances import Balances
from billing.accounts.budgets import BudgetSettings
from billing.approvals.kinds import SettingArguments
from billing.events.rollups import HOUR
from billing.exports.datasets import DisplayNames
from billing.exports.jobs import ExportJobs
from billing.integrity import row_seals
from billing.integrity.recorded_tables import PAYMENT_CUSTOMERS, RECORDED_TABLES
from billing.integrity.seal_checkpoints import checkpoint_message, write_checkpoint
from billing.invoices.advances import top_ups
from billing.invoices.collection import pay
from billing.invoices.credit_notes import credit
from billing.invoices.parties.store import Parties
from billing.invoices.registers.exchange_rates import PublishedRates, record_rates
from billing.invoices.registers.vat_checks import VatAnswer, check_vat_id
from billing.payments.auto_top_ups import AutoTopUps
from billing.payments.cash import CashBook
from billing.payments.customers import Customers
from billing.payments.disputes import Disputes
from billing.payments.dunning.due import DueReminder
from billing.payments.dunning.reminders import Reminders
from billing.payments.provider import DisputeFact, MoneyIn
from billing.payments.pushing import DocumentPusher
from billing.payments.recording import change_recorded
from billing.payments.refunds import Refunds
from billing.payments.top_ups import TopUps
from billing.pending_changes import ChangePending, propose
from billing.platform_settings import PlatformSettings
from billing.prices import PriceCatalog
from billing.prices.approval import PriceSheets
from billing.prices.sheets import PriceProposal
from billing.prices.version import RESIDENT, STORAGE
from billing.rating.contract_store import Contracts
from billing.rating.hourly_meters import READY_ADAPTERS, Stored, record_hours
from billing.rating.terms import ContractTerms
from billing.receipts.policies import ReceiptPolicies
from billing.replica_journals.lost_journals import declare_lost
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.tables.books import replica_journal, seal, seal_checkpoint
from billing.tables.invoices import invoice
from billing.tables.money import balance, grant
from billing.tables.prices import residency_event, storage_event
from billing.usage import Usage
from billing.verification.audit import audit_money
from billing.verification.reconciliation import reconcile
from billing.verification.seals import NO_CHECKPOINT
from prompt_cache.promise.lease_decisions import LIFE_S
from prompt_cache.tables import lease
from storage.database.base import Base, Count, Id, new_id
from storage.database.database import Database
from storage.database.keyring import Keyring
from tests.billing.invoices.customers import USD, Customer, set_clock
from tests.billing.invoices.documents import BUYER
from tests.billing.invoices.test_registers import ScriptedRegister
from tests.billing.money import Tenant
from turnpike.commands.audit.leases import audit_leases

SECOND = 1_000_000
UNSAID: Mapping[str, Mapping[str, str]] = {
    **{recorded.table.name: recorded.unrecorded for recorded in RECORDED_TABLES if recorded.table is not balance},
    "budget_window": {"told": "whether a message was sent of a threshold"},
    "hold_batch": {"id": "its holds are found by their own"},
    "ended_hold": {
        "amount_pico": "it reserves nothing any more: usage that comes late costs what its event says",
        "state": "why it ended: nothing is paid by it",
        "ended_at": "when it may be forgotten",
    },
}
"""Columns that nothing compares, each with the reason why that is harmless."""
WORKING = {
    "payment_inbox": "what a provider told: it only says what to ask for",
    "payment_job": "work that is left to do: what comes of it is recorded",
    "payment_reconciliation": "a report of a comparison, which can be made again",
    "bank_statement": "which files were read: what they brought are receipts",
    "gateway_epoch": "which gateways live: each writes its own row anew every few seconds",
    "replica_journal": "written anew by each gateway that meets the journal",
    "journal_of_epoch": "what recovery still has to ask; its losses are sealed, its requests in events and holds",
    "service_hour": "counts that gateways keep in memory; nothing is billed by them",
    "refused_settlement": "each of its rows is a finding already",
    "usage_traits": "what events refer to: `test_chain` alters it with them",
    "usage_fact": "`test_chain` alters it column by column",
}
"""Tables that are not books, or are tried elsewhere, each with the reason."""
UNSAID_OF_LEASES = {
    "id": "by it nothing is found but by its owner",
    "prefix_key": "of a prompt that nobody keeps: no request is promised more than the tokens that it has itself",
    "base": "through which tokens and payment are counted once",
    "new_tokens": "how many of its tokens count against the project's limit",
    "written_at": "how old a lease is for those who ask for a younger one",
    "reads": "a count that is shown",
    "told": "whether its writer, who has paid, may still be replaced",
    "billed": "whether those before it are paid for: the worker sets it again",
    "unsettled_base": "whether one before it that ended is paid for: it can only end the lease early",
    "paid": "whether its writer has paid: the worker sets it again",
}
"""Columns of a lease that is paid for that nothing compares, each with what it decides."""
UNSAID_ROWS: Mapping[str, Mapping[str, str]] = {
    "deleted": {},
    "inserted": {},
}
"""Tables of which a row that is gone, or new, is not named, each with the reason."""


def _tables_of_billing() -> tuple[Table, ...]:
    modules = (import_module(module.name) for module in iter_modules(billing.tables.__path__, "billing.tables."))
    tables = {value for module in modules for value in vars(module).values() if isinstance(value, Table)}
    books = (table for table in tables if table.metadata is Base.metadata and table.name not in WORKING)
    return tuple(sorted(books, key=lambda table: str(table.name)))


TABLES = _tables_of_billing()
COLUMNS = int(os.environ.get("ALTERED_COLUMNS", "1"))
"""How many columns of each table are altered, one after the other: `make test-long` alters all."""


ONLY = frozenset(filter(None, os.environ.get("ALTERED_TABLES", "").split(",")))
"""Names of the tables that are altered, to try some of them alone; none: all."""


def _tried(database: Database) -> tuple[Table, ...]:
    """All tables; on PostgreSQL a third of them, since what is compared is the same, but in `make test-long`."""
    if ONLY:
        return tuple(table for table in TABLES if table.name in ONLY)
    return TABLES if database.dialect == "sqlite" or COLUMNS > 1 else TABLES[::3]


@pytest.fixture
async def books(database: Database, tmp_path: Path) -> Database:
    """Books with a row in every table."""
    database.keyring = Keyring(1, {1: b"a key that is kept apart"})
    customer = await Customer.make(database, 10**12)
    rows = dict(customer.tenant.version.rows) | {(STORAGE, "*", 0): 3_600_000, (RESIDENT, "*", 0): 50_000_000}
    await PriceSheets(database).put(PriceProposal(model="stdlib-qa", rows=rows), by="ann")
    catalog = PriceCatalog(database)
    customer.tenant.version = await catalog.current("stdlib-qa")
    await PlatformSettings(database).set("approvals", "off", by="ann", via="a test")
    await BudgetSettings(database).set(customer.id, "tenant", "", "total", limit_pico=10**15, currency="USD")
    await Balances(database).grant(customer.id, 10**12, "USD", kind="promo", model="stdlib-qa", expires_at=2 * 10**15)
    set_clock(database, "2026-10-03")
    parties = Parties(database)
    await check_vat_id(database, ScriptedRegister(VatAnswer(valid=True, name="Client SAS")), customer.id)
    await record_rates(database, ScriptedRegister(PublishedRates("2026-10-02", {"USD": "1.25"})))
    await parties.set_buyer(customer.id, msgspec.structs.replace(BUYER, country="DE", vat_id=""))
    await parties.set_seller(msgspec.structs.replace(USD, prepayment="advance"), reason="from now on in advance")
    await top_ups(database).grant(customer.id, 10**12, "USD", reason="bank 1")
    await Contracts(database, catalog).put(customer.id, ContractTerms(), "2026-10", "ann")
    await customer.use("2026-10-03", Usage(uncached=20_000_000, output=10_000_000))
    hour = await database.now() // HOUR * HOUR
    set_clock(database, "2026-10-04")
    await record_hours(
        database, catalog, [Stored(customer.id, customer.tenant.project_id, "stdlib-qa", hour, 3_600 * 10**6)]
    )
    ready = Stored(customer.id, customer.tenant.project_id, "stdlib-qa:support", hour, 500, base="stdlib-qa")
    await record_hours(database, catalog, [ready], READY_ADAPTERS)
    holds = HoldService(database)
    expired = await holds.reserve(customer.tenant.request(10**9))
    await holds.sweep(expired.expires_at)
    await ReceiptPolicies(database).set(customer.id, customer.tenant.project_id, always=True)
    sent = await customer.invoice("2026-10")
    await pay(database, sent, "bank", 100)
    await credit(database, sent, "why", request="1", amounts={1: 10})
    await holds.reserve(customer.tenant.request(10**9))
    async with database.transaction() as session:
        await session.execute(insert(replica_journal).values(journal="a journal", replica="r1", since=1, seen_at=1))
    await declare_lost(database, "a journal", author="ann", reason="a test")
    jobs = ExportJobs(database, catalog, tmp_path)
    await jobs.queue(customer.id, new_id(), "usage", "2026-10", "csv")
    assert await jobs.run_next(_no_names)
    with acting_as(Actor("operator_key", "key", "ann")), pytest.raises(ChangePending):
        await propose(database, "platform_setting.set", SettingArguments("approvals", "on"), "approvals on")
    await reconcile(database, "2026-10")
    await _collect(database, customer)
    assert await write_checkpoint(database) == 1
    return database


async def _collect(database: Database, customer: Customer) -> None:
    """A row in each recorded table of payments, as payments write them."""
    now = await database.now()
    customers, auto, top_ups = Customers(database), AutoTopUps(database), TopUps(database)
    await customers.connect(customer.id, "stripe")
    await auto.put(customer.id, currency="USD", threshold_pico=0, amount=100, enabled=False)
    made = await top_ups.create(customer.id, "stripe", 2500, "USD")
    async with database.transaction() as session:
        values = {"provider_id": "cus_1", "updated_at": now}
        await change_recorded(session, PAYMENT_CUSTOMERS, "payment_customer.made", customer.id, values)
    money = MoneyIn(provider="stripe", id="pi_1", amount=2500, currency="USD", at=now)
    await CashBook(database).take_top_up(money, made.id, "cus_1")
    await DocumentPusher(database).queue_finished("stripe")
    fact = DisputeFact(
        id="du_1", payment="pi_1", amount=2500, currency="USD", reason="fraud", withdrawn=False, outcome="open"
    )
    await Disputes(database).follow("stripe", fact)
    await Disputes(database).follow("stripe", msgspec.structs.replace(fact, outcome="won"))
    await Refunds(database).create(customer.id, made.id, 100, "asked for")
    reminders = Reminders(database)
    await reminders.want(customer.id, "a test", enabled=True)
    async with database.reading() as session:
        number = await session.scalar(select(invoice.c.id).where(invoice.c.tenant_id == customer.id).limit(1))
    assert await reminders._queue(DueReminder(customer.id, number, "1", 1, "a@example.com", "USD", 1, "2026-11-01"))


async def _no_names() -> DisplayNames:
    return DisplayNames()


@asynccontextmanager
async def unguarded(database: Database) -> AsyncIterator[AsyncSession]:
    """Do what somebody could who owns the database: put its triggers aside, and on SQLite its checks."""
    async with database.transaction() as session:
        if database.dialect == "postgresql":
            await session.execute(text("SET LOCAL session_replication_role = replica"))
        else:
            await session.execute(text("PRAGMA ignore_check_constraints = ON"))
            for name in (await session.scalars(text("SELECT name FROM sqlite_schema WHERE type = 'trigger'"))).all():
                await session.execute(text(f"DROP TRIGGER {name}"))
        yield session


@pytest.mark.slow
async def test_columns_of_every_table(books: Database) -> None:
    assert await audit_money(books) == []
    missed, impossible, tried = set(), set(), set()
    for table in _tried(books):
        row = await _a_row(books, table)
        for column in list(table.columns)[-COLUMNS:]:
            tried.add((table.name, column.name))
            there, altered = row, row | {column.name: _other(column, row[column.name])}
            try:
                await _become(books, table, there, altered)
            except IntegrityError as error:
                if "check constraint" not in str(error):  # which on PostgreSQL nobody can put aside
                    impossible.add((table.name, column.name))
                tried.remove((table.name, column.name))
                continue
            if not await audit_money(books):
                missed.add((table.name, column.name))
            await _become(books, table, altered, there)
    unsaid = {(table, name) for table, names in UNSAID.items() for name in names}
    assert missed == tried & unsaid
    may_be_impossible = {(table.name, name) for table in TABLES for name in _referring(table)}
    assert impossible <= may_be_impossible
    assert await audit_money(books) == []


@pytest.mark.slow
async def test_a_row_that_is_gone_and_one_that_is_new_in_every_table(books: Database) -> None:
    missed: dict[str, set[str]] = {"deleted": set(), "inserted": set()}
    for table in _tried(books):
        row = await _a_row(books, table)
        this_row = [key == row[key.name] for key in table.primary_key]
        with suppress(IntegrityError):
            async with unguarded(books) as session:
                await session.execute(table.delete().where(*this_row))
            if not await audit_money(books):
                missed["deleted"].add(str(table.name))
            async with unguarded(books) as session:
                await session.execute(table.insert().values(row))
        keys = {key.name for key in table.primary_key} | {name for name in _referring(table) if name != "tenant_id"}
        copy = row | {name: _other(table.c[name], row[name]) for name in keys}
        with suppress(IntegrityError):
            async with unguarded(books) as session:
                await session.execute(table.insert().values(copy))
            if not await audit_money(books):
                missed["inserted"].add(str(table.name))
            async with unguarded(books) as session:
                await session.execute(table.delete().where(*(key == copy[key.name] for key in table.primary_key)))
    assert missed == {what: set(tables) for what, tables in UNSAID_ROWS.items()}
    assert await audit_money(books) == []


async def _a_row(database: Database, table: Table) -> dict[str, Any]:
    async with database.reading() as session:
        first = select(table).order_by(*table.primary_key).limit(1)
        row = (await session.execute(first)).mappings().one_or_none()
    assert row is not None, f"the books have no row of {table.name}"
    return dict(row)


def _referring(table: Table) -> set[str]:
    """Columns of which not every value can be: the database itself refuses it."""
    constraints = [each for each in table.constraints if not isinstance(each, CheckConstraint)]
    indexes = [index for index in table.indexes if index.unique]
    return {column.name for each in (*constraints, *indexes) for column in each.columns}


async def _become(database: Database, table: Table, before: dict[str, Any], after: dict[str, Any]) -> None:
    changed = {name: value for name, value in after.items() if value != before[name]}
    async with unguarded(database) as session:
        await session.execute(update(table).where(*(k == before[k.name] for k in table.primary_key)).values(changed))


def _other(column: Column[Any], value: Any) -> Any:
    if isinstance(column.type, Id):
        return new_id()
    if isinstance(column.type, LargeBinary):
        return (value or b"") + b"x"
    if isinstance(column.type, Text):
        return f"{value or ''}1"
    return 7 if value is None else value + 100


@pytest.mark.slow
async def test_storage_that_does_not_recompute_or_is_not_billed(books: Database) -> None:
    not_the_sum = "an invoice is not the sum of its events"
    for column, more, whats in (
        (storage_event.c.cost_pico, 1, {"storage does not recompute"}),
        (
            storage_event.c.token_seconds,
            3600,
            {"storage does not recompute", not_the_sum},
        ),
        (residency_event.c.millihours, 1, {"residency does not recompute", not_the_sum}),
    ):
        async with unguarded(books) as session:
            await session.execute(update(column.table).values({column: column + more}))
        assert {finding.what for finding in await audit_money(books)} == {"a row of the books was altered", *whats}
        async with unguarded(books) as session:
            await session.execute(update(column.table).values({column: column - more}))
    assert await audit_money(books) == []


def test_seals_say_all_that_rows_say() -> None:
    """A column that is added to a sealed table needs a second form."""
    changing = {"invoice": {"state", "paid", "credited", "settled_pico"}, "billing_period": {"state"}}
    said_by_content = {
        "invoice": {"returned_pico", "advance_tax", "drawn", "deferred_pico"}
    }  # which is sealed, and which the audit compares with the row
    for form in row_seals.CURRENT.values():
        said = {*form.columns, *([form.instant] if form.instant else [])}
        more = changing.get(form.name, set()) | said_by_content.get(form.name, set())
        assert said | more == set(form.table.columns.keys()), form.name
        assert form.key == tuple(form.table.primary_key.columns.keys())
        if form.part:
            assert {*form.part.columns, form.part.of} == set(form.part.table.columns.keys())


def test_a_seal_is_of_every_column() -> None:
    for form in row_seals.CURRENT.values():
        row = {column.name: new_id() if isinstance(column.type, Id) else 5 for column in form.table.columns}
        parts = {row[form.key[0]]: [{column.name: 5 for column in form.part.table.columns}] * 2 if form.part else []}
        before = row_seals.sealed(form, row, parts)
        for name in (*form.columns, *([form.instant] if form.instant else [])):
            other = row | {name: 6}
            assert row_seals.sealed(form, other, {other[form.key[0]]: parts[row[form.key[0]]]}) != before, (
                form.name,
                name,
            )
        for name in form.part.columns if form.part else ():
            (one, two) = parts[row[form.key[0]]]
            for altered in ([one | {name: 6}, two], [one]):
                assert row_seals.sealed(form, row, {row[form.key[0]]: altered}) != before, (form.name, name)


@pytest.mark.slow
async def test_rows_that_are_gone_and_rows_that_are_new(books: Database) -> None:
    for name in ("price_change", "contract_terms", "storage_event"):
        table = Base.metadata.tables[name]
        async with books.reading() as session:
            row = dict((await session.execute(select(table).limit(1))).mappings().one())
        key = [column == row[column.name] for column in table.primary_key]
        new = row | ({"model": "other"} if name == "storage_event" else {"id": 99})
        async with unguarded(books) as session:
            await session.execute(table.delete().where(*key))
        found = await audit_money(books)
        assert "a row of the books is missing" in {finding.what for finding in found}
        assert any(name in finding.detail for finding in found)
        async with unguarded(books) as session:
            await session.execute(table.insert().values(new))
        whats = {finding.what for finding in await audit_money(books)}
        assert {"a row of the books is missing", "a row of the books was never written"} <= whats
        async with unguarded(books) as session:
            await session.execute(table.delete().where(*(c == new[c.name] for c in table.primary_key)))
            await session.execute(table.insert().values(row))
        assert await audit_money(books) == []


# ---------------------------------------------------------------- leases

LEASED = 1_795_000_000_000_000
"""When the request was admitted that wrote the leases."""


@pytest.fixture
async def leased(database: Database) -> Database:
    """Two leases and the usage that paid for them: of 640 tokens that were read, 640 written for an hour, and 128 for
    five minutes."""
    tenant = await Tenant.rich(database, 10**12)
    usage = Usage(uncached=10, read={"1h": 640}, write={"1h": 640, "5m": 128})
    event = tenant.event(tenant.request(0), usage)
    await settle(database, PriceCatalog(database), [event])
    for tokens, new, name in ((1280, 640, "1h"), (1408, 128, "5m")):
        values = {
            **{"id": new_id(), "tenant_id": tenant.id, "project_id": tenant.project_id, "prefix_key": name.encode()},
            **{"model": event.model, "tokens": tokens, "new_tokens": new, "lease_class": name, "created_at": LEASED},
            **{"written_at": LEASED, "expires_at": LEASED + LIFE_S[name] * SECOND, "read_at": None, "reads": 0},
            **{"writer": event.id, "billed": 1, "blocks": bytes(tokens // 8), "base": None, "told": 1, "paid": 1},
        }
        async with database.transaction() as session:
            await session.execute(insert(lease).values(values))
    database.clock = literal(LEASED + 60 * SECOND, Count())
    return database


async def _named(database: Database, name: str, changes: dict[str, Any]) -> bool:
    """Whether the audit names the lease of this class when it is altered so; it is put right again."""
    of_class = lease.c.lease_class == name
    async with database.reading() as session:
        there = dict((await session.execute(select(lease).where(of_class))).mappings().one())
    before = {column.key: there[column.name] for column in lease.columns}
    async with unguarded(database) as session:
        await session.execute(update(lease).where(of_class).values(changes))
    findings = await audit_leases(database)
    async with unguarded(database) as session:
        mine = lease.c.id == changes.get("id", before["id"])
        await session.execute(update(lease).where(mine).values({key: before[key] for key in changes}))
    assert {finding.what for finding in findings} <= {"a lease is not what was paid for"}
    assert len(findings) <= 1
    return bool(findings)


async def test_columns_of_leases(leased: Database) -> None:
    assert await audit_leases(leased) == []
    tried = {}
    for column in lease.columns:
        other = 0 if column.name in ("told", "billed", "paid") else None
        value = {"class": "24h", "read_at": LEASED + 1, "blocks": b"x", "prefix_key": b"x", "writer": new_id()}.get(
            column.name, other
        )
        if value is None:
            value = _other(column, {"tokens": 1280, "new_tokens": 640, "reads": 0}.get(column.name, LEASED))
        tried[column.key] = value
    leased.clock = literal(LEASED + 3599 * SECOND, Count())
    missed = {key for key, value in tried.items() if not await _named(leased, "1h", {key: value})}
    assert missed == {*UNSAID_OF_LEASES, "writer"}, "the event of a writer may come long after its request has ended"
    assert await audit_leases(leased) == []


async def test_a_lease_of_more_than_was_paid_for(leased: Database) -> None:
    """However well its own columns agree."""
    day, five = LIFE_S["24h"] * SECOND, LIFE_S["5m"] * SECOND
    for name, tokens, changes in (
        ("1h", 1280, {"lease_class": "24h", "expires_at": LEASED + day}),
        ("1h", 1344, {}),
        ("1h", 640, {"new_tokens": 1}),
        ("5m", 1472, {}),
        ("5m", 1408, {"lease_class": "1h", "expires_at": LEASED + 12 * five}),
        ("5m", 1408, {"expires_at": LEASED + 2 * five}),
    ):
        assert await _named(leased, name, {"tokens": tokens, "blocks": bytes(tokens // 8), **changes}), changes
    leased.clock = literal(LEASED + 2 * day, Count())
    assert await _named(leased, "1h", {"writer": new_id()})


# ---------------------------------------------------------------- keys of seals


async def test_who_has_the_database_alone_cannot_seal_a_row_anew(database: Database) -> None:
    """However well it is done: by no key, by a key of its own, or with a checkpoint of its own."""
    customer = await Customer.make(database, 10**12)
    assert await audit_money(database) == []
    database.keyring = Keyring(1, {1: b"kept apart"})
    assert {finding.what for finding in await audit_money(database)} == {NO_CHECKPOINT}
    assert await write_checkpoint(database) == 1
    await Balances(database).grant(customer.id, 10**12, "USD")
    assert await audit_money(database) == []
    rotated = Keyring(2, {1: b"kept apart", 2: b"another"})
    for owner in (Keyring(), Keyring(1, {1: b"a guess"})):
        async with database.reading() as session:
            rows = (await session.execute(select(grant).order_by(grant.c.at))).mappings().all()
        for there in (rows[0], rows[-1]):  # sealed before there was a key, and by it
            altered = dict(there) | {"reason": "another"}
            form = row_seals.CURRENT["grant"]
            sha256 = row_seals.sealed(form, altered, {}, (owner, owner.current))
            mine = (seal.c.kind == "grant", seal.c.id == str(there["id"]))
            async with database.reading() as session:
                before = (await session.execute(select(seal).where(*mine))).mappings().one()
            async with unguarded(database) as session:
                await session.execute(update(grant).where(grant.c.id == there["id"]).values(reason="another"))
                await session.execute(update(seal).where(*mine).values(sha256=sha256, key=owner.current))
            assert await audit_money(database) != []
            forged = {"id": 2, "key": 1, "at": 1, "others": 1, "digest": b"", "witness": ""}
            forged["mac"] = owner.mac(checkpoint_message(forged), 1) if owner.current else b"x" * 32
            async with unguarded(database) as session:
                await session.execute(insert(seal_checkpoint).values(forged))
            assert "a checkpoint of seals does not hold" in {finding.what for finding in await audit_money(database)}
            async with unguarded(database) as session:
                await session.execute(seal_checkpoint.delete().where(seal_checkpoint.c.id == 2))
                await session.execute(update(grant).where(grant.c.id == there["id"]).values(reason=there["reason"]))
                await session.execute(update(seal).where(*mine).values(dict(before)))
            assert await audit_money(database) == []
    database.keyring = rotated
    assert {finding.what for finding in await audit_money(database)} == {NO_CHECKPOINT}
    assert await write_checkpoint(database) == 2
    assert await audit_money(database) == []
    database.keyring = Keyring()
    assert {"a seal cannot be checked", "a checkpoint of seals does not hold"} == {
        finding.what for finding in await audit_money(database)
    }
