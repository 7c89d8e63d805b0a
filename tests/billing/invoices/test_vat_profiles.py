"""Billing profiles that are older than the check of VAT ids: they are charged VAT, and the draft says why."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import update

from billing.invoices.canonical import canonical
from billing.invoices.parties import InvalidParty, vat_warnings
from billing.invoices.party_store import Parties
from billing.tables.invoices import billing_profile
from billing.usage import Usage
from storage.database import Database
from tests.billing.invoices.books import USD, Customer
from tests.billing.invoices.documents import BUYER


@pytest.mark.parametrize("vat_id", ["FRHELLO", "XX9999"])
async def test_a_profile_with_a_pseudo_id_is_charged_vat(database: Database, vat_id: str) -> None:
    seller = msgspec.structs.replace(USD, rates=USD.rates | {"FR": 2000})
    customer = await Customer.make(database, seller=seller)
    buyer = msgspec.structs.replace(BUYER, vat_id=vat_id)
    with pytest.raises(InvalidParty, match=vat_id):
        await Parties(database).set_buyer(customer.id, buyer)
    async with database.transaction() as session:
        here = billing_profile.c.tenant_id == customer.id
        await session.execute(update(billing_profile).where(here).values(profile=canonical(buyer)))
    await customer.use("2026-10-03", Usage(output=10_000_000))
    october = await customer.invoice("2026-10")
    assert (october.net, october.tax) == (1600, 320)
    document = await customer.invoices.document(october.id)
    (warning,) = vat_warnings(document.seller, document.buyer)
    assert vat_id in warning
