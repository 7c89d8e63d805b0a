"""The checks of one invoice: nothing is wrong with a true one, and each way of being false is found by its check."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from billing.integrity.canonical_json import canonical, sha256
from billing.invoices.credit_notes import credit
from billing.invoices.document import Document
from billing.invoices.store import InvoiceRecord
from billing.usage import Usage
from billing.verification.one_invoice import check_invoice, predecessor
from storage.database.database import Database
from tests.billing.invoices.customers import Customer

replace = msgspec.structs.replace


async def _found(customer: Customer, record: InvoiceRecord, content: str) -> dict[str, str]:
    before = await predecessor(customer.database, record)
    checks = await check_invoice(customer.database, record, content, before)
    return {check.name: check.difference for check in checks if check.difference is not None}


async def _customer(database: Database, model: str = "stdlib-qa") -> Customer:
    customer = await Customer.make(database, model=model)
    await customer.use("2026-10-05T13:10", Usage(uncached=1_234_567, output=7_001), Usage(uncached=3))
    await customer.use("2026-10-31T23:59", Usage(uncached=900_000))
    return customer


async def test_a_true_invoice_passes_every_check_and_so_does_its_credit_note(database: Database) -> None:
    customer = await _customer(database)
    record = await customer.invoice("2026-10")
    content = await customer.invoices.content(record)
    assert await _found(customer, record, content) == {}
    checks = await check_invoice(database, record, content, None)
    assert [check.name for check in checks] == ["Seal", "Form", "Chain", "Lines", "Tax", "Totals", "Page", "Usage"]
    note, _ = await credit(database, record, "an outage", request="ticket 7", amounts={1: 10})
    assert note is not None
    assert await _found(customer, note, await customer.invoices.content(note)) == {}


async def test_a_document_follows_the_one_before_it_whosever_that_is(database: Database) -> None:
    one = await _customer(database)
    other = await _customer(database)
    first = await one.invoice("2026-10")
    second = await other.invoice("2026-10")
    assert await predecessor(database, first) is None
    before = await predecessor(database, second)
    assert before is not None
    assert (before.tenant_id, before.number, before.sha256) == (one.id, first.number, first.sha256)
    content = await other.invoices.content(second)
    assert await _found(other, second, content) == {}
    wrong = await check_invoice(database, second, content, replace(before, sha256="ab" * 32))
    assert [check.name for check in wrong if check.difference is not None] == ["Chain"]


def _line(document: Document, **changes: object) -> Document:
    first, *rest = document.lines
    return replace(document, lines=[replace(first, **changes), *rest])


def _tax(document: Document, more: int) -> Document:
    first, *rest = document.taxes
    return replace(document, taxes=[replace(first, tax=first.tax + more), *rest])


@pytest.mark.parametrize(
    ("alter", "caught"),
    [
        pytest.param(lambda one: _line(one, units=str(int(one.lines[0].units) + 1)), {"Lines", "Usage"}, id="a token"),
        pytest.param(lambda one: _line(one, net=one.lines[0].net + 1), {"Lines", "Tax", "Totals"}, id="a line"),
        pytest.param(lambda one: _tax(one, 1), {"Tax", "Totals"}, id="the tax"),
        pytest.param(lambda one: replace(one, gross=one.gross + 1), {"Totals", "Page"}, id="the total"),
        pytest.param(lambda one: replace(one, carry_out="1"), {"Totals", "Page"}, id="what rounding leaves"),
        pytest.param(lambda one: replace(one, previous="ab" * 32), {"Chain"}, id="the chain"),
        pytest.param(lambda one: replace(one, reason="x"), set(), id="a word"),
    ],
)
async def test_what_was_altered_is_found(
    database: Database, alter: Callable[[Document], Document], caught: set[str]
) -> None:
    customer = await _customer(database)
    record = await customer.invoice("2026-10")
    altered = alter(await customer.invoices.document(record))
    found = await _found(customer, record, canonical(altered))
    assert set(found) == {"Seal", *caught}
    # who also forges the seal is found by the rest
    forged = replace(record, sha256=sha256(canonical(altered)))
    assert set(await _found(customer, forged, canonical(altered))) == caught


async def test_another_form_and_no_document_at_all_are_found(database: Database) -> None:
    customer = await _customer(database)
    record = await customer.invoice("2026-10")
    content = await customer.invoices.content(record)
    assert set(await _found(customer, record, content.replace(",", ", ", 1))) == {"Seal", "Form"}
    assert set(await _found(customer, record, '{"kind": 7}')) == {"Form"}
