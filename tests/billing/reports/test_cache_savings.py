"""What caching saved, by class, and what tenants have together: exact, whatever was recorded."""

from __future__ import annotations

from billing.prices import PriceCatalog
from billing.reports.cache_savings import PRICED_BY, lease_worth, savings_by_class, total_saved
from billing.reports.overviews import money_of_tenants, refused_records
from billing.reports.usage_series import DAY, Selection, usage_totals
from storage.database.database import Database
from tests.billing.money import Tenant, priced_in
from tests.billing.recorded import NOVEMBER, record


async def test_classes_add_up_to_what_the_prompts_would_have_cost_uncached(database: Database) -> None:
    tenant = await Tenant.rich(database, 0)
    past, prices = await record(database, tenant), PriceCatalog(database)
    span = Selection(start_at=NOVEMBER, end_at=NOVEMBER + 10 * DAY, tenants=[tenant.id])
    classes = await savings_by_class(prices, await usage_totals(database, span, PRICED_BY))
    assert set(classes) == {"automatic", "5m", "1h"}
    whole = 0
    for event in past.events:
        version = await prices.version(event.price_version)
        whole += event.usage.prompt * version.price("uncached", event.lane, event.context_from)
        whole += event.usage.output * version.price("output", event.lane, event.context_from)
    assert total_saved(classes.values()) == {"USD": whole - past.cost_pico}
    for name, one in classes.items():
        assert one.read == sum(event.usage.read.get(name, 0) for event in past.events)
        assert one.written == sum(event.usage.write.get(name, 0) for event in past.events)
    assert "USD" not in classes["automatic"].premium_pico
    assert classes["1h"].net_pico()["USD"] < 0  # it was written and never read


async def test_what_a_lease_is_worth_at_present_prices(database: Database) -> None:
    await Tenant.rich(database, 0)
    prices = PriceCatalog(database)
    worth = await lease_worth(prices, "stdlib-qa", "1h", 100)
    assert worth is not None
    assert (worth.currency, worth.saved_pico, worth.premium_pico) == ("USD", 360_000, 400_000)
    assert await lease_worth(prices, "stdlib-qa", "12h", 100) is None
    assert await lease_worth(prices, "nothing", "1h", 100) is None


async def test_the_money_of_tenants_is_added_up_by_currency(database: Database) -> None:
    most = 9 * 10**18  # two of them are more than 64 bits
    tenants = [await Tenant.rich(database, most), await Tenant.rich(database, most - 7), await Tenant.rich(database, 0)]
    (dollars,) = await money_of_tenants(database, None)
    assert (dollars.currency, dollars.tenants, dollars.available_pico) == ("USD", 2, 2 * most - 7)
    assert (dollars.held_pico, dollars.receivable_pico, dollars.exhausted) == (0, 0, 0)
    (first,) = await money_of_tenants(database, [tenants[0].id])
    assert first.available_pico == most
    assert await money_of_tenants(database, [tenants[2].id]) == []
    assert await money_of_tenants(database, []) == []
    assert await refused_records(database) == 0
    assert (await priced_in(database, "EUR", "big")).currency == "EUR"
