"""A balance below zero is named, but for exactly what a payer's bank may do to it."""

from __future__ import annotations

import pytest

from billing.accounts.balances import Balances
from billing.accounts.money_back import ChargedBack, charge_back
from billing.prices import PriceCatalog
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.invoices.customers import set_clock
from tests.billing.money import Tenant

BELOW = "a balance is below zero"
TEN = 10 * 10**12
USED = Usage(output=6_250_000)


async def _late_usage(tenant: Tenant) -> None:
    """Usage of ten dollars whose hold has expired: nobody holds the money any more."""
    database = tenant.database
    hold = await HoldService(database).reserve(tenant.request(0))
    await HoldService(database).sweep(hold.expires_at)
    assert (await settle(database, PriceCatalog(database), [tenant.event(hold, USED)])).refused == 0


async def _findings(database: Database) -> set[str]:
    return {finding.what for finding in await audit_money(database)}


async def _take_back(tenant: Tenant) -> None:
    grants = [one.id for one in await Balances(tenant.database).grants(tenant.id)]
    async with tenant.database.transaction() as session:
        taken = await charge_back(tenant.database, session, tenant.id, grants[0], TEN, identity=new_id(), memo="d")
    assert taken == ChargedBack(used=TEN)


@pytest.mark.both_databases
async def test_a_refund_of_ours_explains_no_debt(database: Database) -> None:
    set_clock(database, "2026-10-03")
    tenant = await Tenant.rich(database, TEN)
    await Balances(database).refund(tenant.id, TEN, "USD")
    assert await _findings(database) == set()
    await _late_usage(tenant)
    assert await _findings(database) == {BELOW}


@pytest.mark.both_databases
async def test_spent_money_that_a_bank_took_back_is_owed_and_no_more(database: Database) -> None:
    set_clock(database, "2026-10-03")
    tenant = await Tenant.rich(database, TEN)
    await _late_usage(tenant)
    await _take_back(tenant)
    assert (await Balances(database).get_or_empty(tenant.id)).overdraft == TEN
    assert await _findings(database) == set()
    await _late_usage(tenant)
    assert await _findings(database) == {BELOW}


async def test_a_debt_that_was_paid_explains_no_later_one(database: Database) -> None:
    set_clock(database, "2026-10-03")
    tenant = await Tenant.rich(database, TEN)
    await _late_usage(tenant)
    await _take_back(tenant)
    set_clock(database, "2026-10-04")
    await Balances(database).grant(tenant.id, TEN, "USD")
    assert await _findings(database) == set()
    set_clock(database, "2026-10-20")
    await _late_usage(tenant)
    assert await _findings(database) == {BELOW}
