"""What a month's usage would have cost at other prices, exactly, from the hourly roll-ups.

The roll-ups have units by context tier of the prices that applied. Where other prices have a tier that begins inside
one of those, the roll-ups do not say which requests are in it, and there is no exact answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, func, select

from billing.calendar import check_period
from billing.events.rollups import LIMB, SUMS
from billing.prices import PriceCatalog
from billing.prices.price_books import BASE, PriceBook, PriceBooks
from billing.prices.sheets import PriceSheet
from billing.prices.version import PriceVersion, Rows
from billing.tables.money import rollup_hour
from billing.usage import METERS
from storage.database.database import Database

BY_TENANT = 100
"""Tenants that an impact names at most."""


class TenantPriceImpact(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant's usage cost, and what it would have cost."""

    tenant_id: UUID
    cost_pico: int
    would_cost_pico: int


class PriceImpact(msgspec.Struct, frozen=True, kw_only=True):
    """What usage cost, and what it would have cost, in pico-units, without cache storage, before contracts.

    `would_cost_pico` is None where it cannot be told exactly; `inexact` says why. `left_out`: tenants with usage of the
    model that have a book of their own over this one, whose prices depend on both. `by_tenant`: the tenants with the
    largest differences, BY_TENANT at most; none where they cannot be told.
    """

    requests: int
    tenants: int
    left_out: int
    cost_pico: int
    would_cost_pico: int | None
    inexact: str
    by_tenant: list[TenantPriceImpact] = []


async def price_impact(
    database: Database, catalog: PriceCatalog, sheet: PriceSheet, rows: Rows, period: str
) -> PriceImpact:
    """The impact of a sheet on a month. `rows`: the prices that it makes with those below it.

    Raises InvalidPeriod, UnknownPriceVersion, DatabaseUnavailable.
    """
    check_period(period)
    book, model = sheet.book, sheet.model
    column = rollup_hour.c
    keys = (column.tenant_id, column.lane, column.price_version, column.context_from)
    # all tenants: who proposes and approves prices is the platform
    query = (
        select(*keys, *(func.sum(column[name]).label(name) for name in SUMS))
        .where(column.period == period, column.model == model, *_concerned(book))
        .group_by(*keys)
    )
    async with database.reading() as session:
        groups = (await session.execute(query)).all()
    own = {one.tenant_id for one in await PriceBooks(database).list() if one.tenant_id is not None}
    priced = [
        group for group in groups if book.tenant_id is not None or (book.name == BASE and group.tenant_id not in own)
    ]
    inexact = ""
    would_cost = 0
    by_tenant: dict[UUID, list[int]] = defaultdict(lambda: [0, 0])
    new = PriceVersion(0, model, book.currency, rows)
    for group in priced:
        problem, cost = _cost(group, new, await catalog.version(group.price_version))
        inexact = inexact or problem
        would_cost += cost
        by_tenant[group.tenant_id][0] += int(group.cost_high) * LIMB + int(group.cost_low)
        by_tenant[group.tenant_id][1] += cost
    return PriceImpact(
        requests=sum(int(group.requests) for group in priced),
        tenants=len({group.tenant_id for group in priced}),
        left_out=len(_tenants(groups) - _tenants(priced)),
        cost_pico=sum(int(group.cost_high) * LIMB + int(group.cost_low) for group in priced),
        would_cost_pico=None if inexact else would_cost,
        inexact=inexact,
        by_tenant=[] if inexact else _largest(by_tenant),
    )


def _largest(by_tenant: Mapping[UUID, Sequence[int]]) -> list[TenantPriceImpact]:
    impacts = [
        TenantPriceImpact(tenant_id=tenant, cost_pico=cost, would_cost_pico=would_cost)
        for tenant, (cost, would_cost) in by_tenant.items()
    ]
    return sorted(impacts, key=lambda one: (-abs(one.would_cost_pico - one.cost_pico), one.tenant_id))[:BY_TENANT]


def _concerned(book: PriceBook) -> tuple[ColumnElement[bool], ...]:
    return () if book.tenant_id is None else (rollup_hour.c.tenant_id == book.tenant_id,)


def _tenants(groups: Sequence[Any]) -> set[UUID]:
    return {group.tenant_id for group in groups}


def _cost(group: Any, new: PriceVersion, old: PriceVersion) -> tuple[str, int]:
    """Why a group's cost cannot be told, if it cannot; and its cost at the new prices."""
    if new.currency != old.currency:
        return f"some of it was priced in {old.currency}", 0
    end = min((tier for tier, _ in old.tiers(group.lane) if tier > group.context_from), default=None)
    tiers = new.tiers(group.lane)
    inside = [tier for tier, _ in tiers if group.context_from < tier and (end is None or tier < end)]
    if inside:
        return f"the roll-ups do not say which prompts have {min(inside)} tokens or more", 0
    prices = next((prices for tier, prices in tiers if tier <= group.context_from), {})
    cost = 0
    for meter in METERS:
        if units := int(getattr(group, meter)):
            if meter not in prices:
                return f"there is no price of {meter} in the lane {group.lane}", 0
            cost += units * prices[meter]
    return "", cost
