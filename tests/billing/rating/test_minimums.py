"""A minimum of a month that the contract covers in part is due in proportion to its days, used or not."""

from __future__ import annotations

from datetime import date, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import literal

from billing.calendar import period_bounds
from billing.prices import PriceCatalog
from billing.rating.applying import apply_terms, total
from billing.rating.contract_store import Contracts
from billing.rating.rated_lines import rated_lines
from billing.rating.terms import InvalidTerms, parse_terms
from storage.database.base import Count
from storage.database.database import Database
from tests.billing.money import Tenant
from tests.fast import examples

DAY_US = 86_400_000_000


def _minimum(**fields: Any) -> Any:
    return parse_terms({"minimum": {"amount": "100"} | fields})


@given(st.dates(date(2026, 9, 1), date(2027, 2, 28)), st.integers(0, 120), st.sampled_from(["2026-11", "2027-02"]))
@settings(max_examples=examples(150))
def test_the_part_of_a_month_is_what_fractions_say(first: date, length: int, period: str) -> None:
    last = first + timedelta(days=length)
    month = [date.fromisoformat(f"{period}-01") + timedelta(days=n) for n in range(31)]
    month = [day for day in month if day.isoformat().startswith(period)]
    covered = sum(first <= day <= last for day in month)
    terms = _minimum(first=first.isoformat(), last=last.isoformat())
    exact = Fraction(100 * 10**12 * covered, len(month))
    due = total(apply_terms([], terms, period))
    assert due == int(exact + Fraction(1, 2))
    whole = _minimum(first=first.isoformat(), last=last.isoformat(), prorated=False)
    assert total(apply_terms([], whole, period)) == (100 * 10**12 if covered else 0)


async def test_a_minimum_that_is_set_within_a_month_begins_on_its_day(database: Database) -> None:
    start, _ = period_bounds("2026-11")
    database.clock = literal(start + 15 * DAY_US, Count())  # 15 of 30 days are left
    tenant = await Tenant.rich(database, 0)
    catalog = PriceCatalog(database)
    contracts = Contracts(database, catalog)
    await contracts.put(tenant.id, _minimum(), "2026-11", by="ann")
    dues = {month: total(await rated_lines(database, catalog, tenant.id, month)) for month in ("2026-11", "2026-12")}
    assert dues == {"2026-11": 50 * 10**12, "2026-12": 100 * 10**12}
    (line,) = await rated_lines(database, catalog, tenant.id, "2026-11")
    assert "15 of 30 days" in line.description
    await contracts.put(tenant.id, parse_terms({"minimum": {"amount": "200"}}), "2026-11", by="ann")
    assert total(await rated_lines(database, catalog, tenant.id, "2026-11")) == 100 * 10**12


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"first": "2026-11"}, "minimum.first"),
        ({"last": "soon"}, "minimum.last"),
        ({"first": "2026-11-02", "last": "2026-11-01"}, "minimum.last"),
    ],
)
def test_days_that_cannot_be_are_refused_by_field(fields: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidTerms, match=field):
        _minimum(**fields)
