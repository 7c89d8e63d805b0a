"""Billing profiles that are older than the check of VAT ids: they are charged VAT, and the draft says why."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import update

from billing.integrity.canonical_json import canonical
from billing.invoices.parties.parties import Buyer, InvalidParty, vat_warnings
from billing.invoices.parties.store import Parties
from billing.invoices.parties.tax import tax_for
from billing.tables.invoices import billing_profile, legal_entity
from billing.usage import Usage
from storage.database.database import Database
from tests.billing.invoices.customers import USD, Customer
from tests.billing.invoices.documents import BUYER


@pytest.mark.parametrize("vat_id", ["FRHELLO", "XX9999"])
async def test_a_profile_with_a_pseudo_id_is_charged_vat(database: Database, vat_id: str) -> None:
    seller = msgspec.structs.replace(USD, rates=USD.rates | {"FR": 2000})
    customer = await Customer.make(database, seller=seller)
    with pytest.raises(InvalidParty, match=vat_id):
        await Parties(database).set_buyer(customer.id, msgspec.structs.replace(BUYER, vat_id=vat_id))
    await _older(customer, vat_id)
    await customer.use("2026-10-03", Usage(output=10_000_000))
    october = await customer.invoice("2026-10")
    assert (october.net, october.tax) == (1600, 320)
    document = await customer.invoices.document(october)
    (warning,) = vat_warnings(document.seller, document.buyer)
    assert vat_id in warning


async def _older(customer: Customer, vat_id: str) -> Buyer:
    """A profile from before ids were checked."""
    buyer = msgspec.structs.replace(BUYER, vat_id=vat_id)
    async with customer.database.transaction() as session:
        here = billing_profile.c.tenant_id == customer.id
        await session.execute(update(billing_profile).where(here).values(profile=canonical(buyer)))
    return buyer


async def test_a_profile_with_an_old_invalid_id_can_change_otherwise(database: Database) -> None:
    customer = await Customer.make(database, seller=msgspec.structs.replace(USD, rates=USD.rates | {"FR": 2000}))
    parties, buyer = Parties(database), await _older(customer, "FRHELLO")
    moved = msgspec.structs.replace(buyer, name="Another S.A.", payment_days=10, treatment="reverse_charge")
    await parties.set_buyer(customer.id, moved)
    assert await parties.buyer(customer.id) == moved
    assert tax_for(await parties.seller(moved.seller), moved).category == "S"
    with pytest.raises(InvalidParty, match="FRHELLA"):
        await parties.set_buyer(customer.id, msgspec.structs.replace(moved, vat_id="FRHELLA"))
    await parties.set_buyer(customer.id, BUYER)
    for changes in ({"vat_id": "FRHELLO"}, {"country": "ES"}):  # what was valid must stay so
        with pytest.raises(InvalidParty, match="vat_id"):
            await parties.set_buyer(customer.id, msgspec.structs.replace(BUYER, **changes))


async def test_a_seller_with_an_old_invalid_id_can_change_otherwise(database: Database) -> None:
    parties = Parties(database)
    await parties.set_seller(USD)
    older = msgspec.structs.replace(USD, vat_id="DE123")
    async with database.transaction() as session:
        here = legal_entity.c.id == USD.id
        await session.execute(update(legal_entity).where(here).values(profile=canonical(older)))
    moved = msgspec.structs.replace(older, name="Another GmbH")
    await parties.set_seller(moved, reason="renamed")
    assert await parties.seller(USD.id) == moved
    with pytest.raises(InvalidParty, match="DE124"):
        await parties.set_seller(msgspec.structs.replace(moved, vat_id="DE124"), reason="a new id")
