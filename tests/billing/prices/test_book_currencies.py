"""Nobody locks a tenant out by a currency: it is checked where it is set, and a wrong book is replaced."""

from __future__ import annotations

from uuid import UUID

import pytest
from sqlalchemy import insert

from billing.accounts.balances import Balances, CurrencyMismatch, new_balance
from billing.accounts.budgets import BudgetSettings
from billing.money import parse_price
from billing.prices import PriceCatalog
from billing.prices.approval import PriceSheets
from billing.prices.errors import PriceRefused
from billing.prices.price_books import PriceBooks
from billing.prices.sheets import PriceProposal
from billing.prices.version import in_every_lane
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.tables.money import balance
from billing.verification.audit import audit_money
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.money import PRICES, Tenant

PICO = 10**12


async def _euro_book(database: Database, model: str = "stdlib-qa") -> None:
    await PriceBooks(database).create("euro", "EUR")
    rows = in_every_lane({meter: parse_price(text) for meter, text in PRICES.items()})
    await PriceSheets(database).put(PriceProposal(model=model, rows=rows, book="euro"), by="ann")


@pytest.mark.both_databases
async def test_a_book_has_the_currency_of_the_tenants_money(database: Database) -> None:
    tenant, books = await Tenant.rich(database, PICO), PriceBooks(database)
    await _euro_book(database)
    with pytest.raises(PriceRefused, match=r"in USD.*turnpike prices book"):
        await books.create_for(tenant.id, "wrong", "euro")
    assert (await PriceCatalog(database).current("stdlib-qa", tenant_id=tenant.id)).currency == "USD"
    await books.create_for(tenant.id, "right")
    await HoldService(database).reserve(tenant.request(100))


async def test_money_has_the_currency_of_the_tenants_prices(database: Database) -> None:
    await Tenant.rich(database, 0)
    await _euro_book(database)
    balances, budgets, plain, european = Balances(database), BudgetSettings(database), new_id(), new_id()
    await PriceBooks(database).create_for(european, "own", "euro")
    for tenant_id, wrong in ((plain, "EUR"), (european, "USD")):
        for dry_run in (True, False):
            with pytest.raises(CurrencyMismatch, match="turnpike prices book"):
                await balances.grant(tenant_id, PICO, wrong, dry_run=dry_run)
            with pytest.raises(CurrencyMismatch, match="prices are in"):
                await budgets.set(tenant_id, "tenant", "", "total", limit_pico=PICO, currency=wrong, dry_run=dry_run)
        with pytest.raises(CurrencyMismatch):
            await balances.set_credit_line(tenant_id, PICO, wrong)
        assert await balances.get(tenant_id) is None
    empty = await balances.of_tenants([plain, european])
    assert [(empty[one].currency, empty[one].available) for one in (plain, european)] == [("USD", 0), ("EUR", 0)]
    assert await balances.currency_of(european) == "EUR"
    await balances.set_credit_line(european, PICO, "EUR")
    await balances.grant(plain, PICO, "USD")


async def test_a_wrong_book_that_was_never_billed_is_replaced(database: Database) -> None:
    """As on installations from before the check: the balance is in dollars and the book in euros."""
    usd, books = await Tenant.rich(database, 0), PriceBooks(database)
    await _euro_book(database)
    locked = await books.create_for(usd.id, "wrong", "euro")
    async with database.transaction() as session:
        await session.execute(insert(balance).values(new_balance(usd.id, "USD")))
    catalog = PriceCatalog(database)
    assert (await catalog.current("stdlib-qa", tenant_id=usd.id)).currency == "EUR"
    right = await books.create_for(usd.id, "right")
    assert [(book.name, book.tenant_id) for book in await books.list()][-2:] == [("wrong", usd.id), ("right", usd.id)]
    catalog.forget()
    assert (await catalog.current("stdlib-qa", tenant_id=usd.id)) == usd.version
    proposal = PriceProposal(model="stdlib-qa", rows={("output", "*", 0): 1}, book=locked.name, kind="overrides")
    with pytest.raises(PriceRefused, match="replaced"):
        await PriceSheets(database).put(proposal, by="ann", force="no")
    await Balances(database).grant(usd.id, PICO, "USD")
    await _bill(database, usd)
    with pytest.raises(PriceRefused, match=rf"{right.name}.*billed"):
        await books.create_for(usd.id, "again")
    assert await audit_money(database) == []


async def _bill(database: Database, tenant: Tenant) -> UUID:
    hold = await HoldService(database).reserve(tenant.request(100))
    settled = await settle(database, PriceCatalog(database), [tenant.event(hold)])
    assert settled.refused == 0
    return hold.request_id
