"""The files of tenants' days: who is in which, under which number, and what `verify` says of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from billing.accounts.adjustments import adjust
from billing.prices import PriceCatalog
from billing.receipts import verifier
from billing.receipts.day_files import EventMissing, close_days, close_due_days, closed_days
from billing.receipts.files import file_lines
from billing.receipts.signing_keys import ReceiptKeys
from billing.tables.money import usage_fact
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.invoices.customers import Customer, set_clock
from tests.billing.verification.test_alterations import unguarded

KEYS = ReceiptKeys(bytes(range(32)))
USAGE = Usage(uncached=1000, read={"automatic": 50}, output=70)


async def lines_of(customer: Customer, period: str = "2026-10", day: str | None = None) -> list[bytes]:
    """The lines of a customer's files."""
    catalog = PriceCatalog(customer.database)
    return [line async for line in file_lines(customer.database, catalog, KEYS, customer.id, period, day=day)]


async def invoice_of(customer: Customer, period: str = "2026-10") -> bytes:
    """The JSON of the customer's invoice, which is made if need be."""
    record = await customer.invoice(period)
    return (await customer.invoices.content(record)).encode()


def verified(invoice: bytes | None, lines: list[bytes], keys: ReceiptKeys = KEYS) -> list[str]:
    """What the verifier finds wrong."""
    return verifier.verify(invoice, [("file", lines)], msgspec.json.encode(keys.key_set())).findings


@pytest.mark.both_databases
async def test_all_events_of_a_month_are_filed_once(database: Database) -> None:
    customer, other = await Customer.make(database), await Customer.make(database)
    await customer.use("2026-10-01T10:00", USAGE, USAGE)
    late = await customer.requests("2026-10-01T23:59", USAGE)
    await customer.use("2026-10-02T00:10", USAGE)
    await other.use("2026-10-02T00:20", USAGE)
    assert await close_days(database, customer.id, "2026-10") == 0, "its hour is not over"
    set_clock(database, "2026-10-02T01:10")
    assert not await close_due_days(database)
    assert await close_days(database, customer.id, "2026-10") == 0, "the worker has closed it"
    await customer.settle(late)
    (event,) = await customer.use("2026-10-31T23:00", USAGE)
    overdue = [msgspec.structs.replace(event, id=new_id(), hold_batch=None)]
    invoice = await invoice_of(customer)
    set_clock(database, "2026-11-03")
    await customer.settle(overdue)  # after its own period closed
    set_clock(database, "2026-11-05")
    await close_due_days(database)
    async with database.reading() as session:
        october = await closed_days(session, customer.id, "2026-10")
        november = await closed_days(session, customer.id, "2026-11")
    assert len(october) == 31
    assert [(day.day, day.events, day.late) for day in october if day.events] == [
        ("2026-10-01", 2, 0),
        ("2026-10-02", 2, 1),
        ("2026-10-31", 1, 0),
    ]
    assert [(day.day, day.events, day.late) for day in november if day.events] == [("2026-11-01", 1, 1)]
    lines = await lines_of(customer)
    assert verified(invoice, lines) == []
    of_day = [line for line in lines if b'"day":"2026-10-02"' in line]
    prices = [line for line in lines if b'"kind":"prices"' in line]
    assert await lines_of(customer, day="2026-10-02") == [of_day[0], *prices, *of_day[1:]]
    assert verified(None, await lines_of(customer, "2026-11")) == []
    (finding,) = await audit_money(database)
    assert finding.what == "a tenant's holds did not each end once", "the overdue event never had one"


async def test_roots_on_the_invoice(database: Database) -> None:
    customer = await Customer.make(database)
    await customer.use("2026-10-07", USAGE)
    document: dict[str, Any] = msgspec.json.decode(await invoice_of(customer))
    assert [root["day"] for root in document["receipts"]] == [f"2026-10-{day:02d}" for day in range(1, 32)]
    assert [root["events"] for root in document["receipts"] if root["events"]] == [1]
    assert {root["events"] for root in document["receipts"]} == {0, 1}


async def test_a_key_that_was_rotated_is_listed_for_good(database: Database) -> None:
    customer = await Customer.make(database)
    await customer.use("2026-10-07", USAGE)
    invoice, lines = await invoice_of(customer), await lines_of(customer)
    rotated = ReceiptKeys(bytes(32), (KEYS.public_key,))
    assert verified(invoice, lines, rotated) == []
    (finding, *_) = verified(invoice, lines, ReceiptKeys(bytes(32)))
    assert finding == f"the head of 2026-10-01 is signed by {KEYS.id}, which is none of the keys"


async def test_an_adjustment_is_in_the_files(database: Database) -> None:
    customer = await Customer.make(database)
    (event,) = await customer.use("2026-10-07", USAGE)
    await adjust(database, PriceCatalog(database), customer.id, event.id, {"output": -20}, reason="why")
    invoice, lines = await invoice_of(customer), await lines_of(customer)
    assert verified(invoice, lines) == []
    assert sum(b'"source":"adjustment"' in line for line in lines) == 1


async def test_a_tenant_with_damaged_events_keeps_no_other_waiting(database: Database) -> None:
    damaged, other = await Customer.make(database), await Customer.make(database)
    (event,) = await damaged.use("2026-10-01T10:00", USAGE)
    await other.use("2026-10-01T10:00", USAGE)
    async with unguarded(database) as session:
        await session.execute(usage_fact.delete().where(usage_fact.c.id == event.id))
    set_clock(database, "2026-10-02T02:00")
    assert not await close_due_days(database)
    async with database.reading() as session:
        assert await closed_days(session, damaged.id, "2026-10") == []
        assert len(await closed_days(session, other.id, "2026-10")) == 1
    with pytest.raises(EventMissing):
        await close_days(database, damaged.id, "2026-10")
