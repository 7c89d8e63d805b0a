"""E-invoices of credit with VAT in advance: the advance, the invoice that deducts it, and the refund."""

from __future__ import annotations

import msgspec
import pytest

from billing.invoices.advances import top_ups
from billing.invoices.electronic.syntaxes import to_xml
from billing.usage import Usage
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.invoices.customers import Customer, set_clock
from tests.billing.invoices.documents import BUYER
from tests.billing.invoices.electronic.documents import GERMAN
from tests.billing.invoices.electronic.schematron import failures_of, schema_errors

pytestmark = pytest.mark.slow
DOLLAR = 10**12


async def test_they_keep_the_official_rules(database: Database) -> None:
    seller = msgspec.structs.replace(GERMAN, currency="USD", prepayment="advance")
    buyer = msgspec.structs.replace(BUYER, country="DE", vat_id="")
    customer = await Customer.make(database, seller=seller, buyer=buyer)
    set_clock(database, "2026-09-20")
    await top_ups(database).grant(customer.id, 20 * DOLLAR, "USD", reason="card")
    await customer.use("2026-09-21", Usage(uncached=100_000_000))
    await customer.invoice("2026-09")
    await top_ups(database).grant(customer.id, 60 * DOLLAR, "USD", reason="card")
    await top_ups(database).refund(customer.id, 5 * DOLLAR, "USD", reason="unused", refund_id=new_id())
    records = await customer.invoices.list(customer.id)
    documents = [await customer.invoices.document(record) for record in records]
    assert sorted(document.kind for document in documents) == ["advance", "advance", "credit_note", "invoice"]
    for rule_set, syntax in (("ubl", "ubl"), ("cii", "cii")):
        files = [to_xml(document, syntax) for document in documents]
        assert [schema_errors(file) for file in files] == [[]] * len(files)
        assert failures_of(rule_set, files) == [[]] * len(files)
