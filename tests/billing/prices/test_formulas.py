"""A later rule of rating leaves what was rated by an earlier one as it was."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from sqlalchemy import update

from billing.prices import PriceCatalog
from billing.prices.formulas import FORMULAS, sum_of_meters
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.tables.prices import price_version
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.database import Database
from tests.billing.money import PRICES, Tenant
from tests.billing.verification.test_alterations import unguarded

USAGE = Usage(uncached=100, output=10)


def _first_hundred_tokens_free(prices: Mapping[str, int], usage: Usage) -> int:
    return sum_of_meters(prices, usage) - min(100, usage.uncached) * prices["uncached"]


async def test_old_events_stay_true_under_a_new_formula(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant, holds, catalog = await Tenant.rich(database, 10**12), HoldService(database), PriceCatalog(database)
    old = tenant.event(await holds.reserve(tenant.request(10**8)), USAGE)
    assert (await settle(database, catalog, [old])).refused == 0
    monkeypatch.setitem(FORMULAS, 2, _first_hundred_tokens_free)
    assert await audit_money(database) == []
    tenant.version = await catalog.set("stdlib-qa", "USD", PRICES | {"output": "1.70"})
    assert tenant.version.formula == 2
    new = tenant.event(await holds.reserve(tenant.request(10**8)), USAGE)
    assert (old.cost_pico, new.cost_pico) == (100 * 400_000 + 10 * 1_600_000, 10 * 1_700_000)
    assert (await settle(database, catalog, [new])).refused == 0
    assert await audit_money(database) == []
    async with unguarded(database) as session:
        await session.execute(update(price_version).where(price_version.c.id == tenant.version.id).values(formula=1))
    whats = {finding.what for finding in await audit_money(database)}
    assert whats == {"a row of the books was altered", "an event's cost does not recompute"}


async def test_a_formula_that_this_program_does_not_know_is_a_finding(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMULAS, 2, sum_of_meters)
    tenant, catalog = await Tenant.rich(database, 10**12), PriceCatalog(database)
    event = tenant.event(await HoldService(database).reserve(tenant.request(10**8)), USAGE)
    await settle(database, catalog, [event])
    monkeypatch.delitem(FORMULAS, 2)
    assert {finding.what for finding in await audit_money(database)} == {"an event's cost does not recompute"}
