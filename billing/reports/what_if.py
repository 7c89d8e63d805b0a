"""A closed month rated again: at a draft's prices, by other cache rules, or with other leases; exactly, by tenant.

Each event is rated anew as a request would be: its own prompt decides its context tier. What a rule changes is which
meter a token of the prompt counts on, never how many tokens there are. What other rules would have done to the cache
itself (a longer lease that would have been read, a prefix that would have been gone) no event tells:
`benchmarks/cache_replay.py` simulates that from traces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, case, func, literal, select

from billing.calendar import check_period
from billing.prices import PriceCatalog, PriceVersion
from billing.prices.price_books import BASE, PriceBooks
from billing.prices.sheets import PriceSheet
from billing.prices.version import Rows
from billing.tables.books import billing_period
from billing.tables.money import usage_event, usage_fact
from billing.usage import METERS
from storage.database.base import Pico
from storage.database.database import Database
from storage.reported_error import ReportedError

_PROMPT_METERS = tuple(meter for meter in METERS if meter != "output")
_READS = tuple(meter for meter in METERS if meter.startswith("read_"))
_NO_TIER = -1


class InvalidScenario(ReportedError, ValueError):
    """A scenario that cannot be rated."""


class Scenario(msgspec.Struct, frozen=True):
    """What would have been otherwise. `moves`: meters whose tokens count on another one, such as those of leases of an
    hour on those of a day. `least_read`: requests that read fewer tokens in a class pay for them as uncached."""

    sheet: PriceSheet | None = None
    rows: Rows = {}
    """The prices that the sheet makes with those below it."""
    moves: Mapping[str, str] = {}
    least_read: int = 0


class TenantImpact(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant's events of a model cost, and what they would have, in pico-units, before contracts. `problem` says
    why the second cannot be told."""

    tenant_id: UUID
    model: str
    currency: str
    events: int
    cost_pico: int
    would_cost_pico: int | None
    problem: str = ""


def parse_move(text: str) -> tuple[str, str]:
    """Two meters of the prompt from FROM=TO. Raises InvalidScenario."""
    source, _, target = text.partition("=")
    for meter in (source, target):
        if meter not in _PROMPT_METERS:
            raise InvalidScenario(f"{meter[:40]!r} is not one of {', '.join(_PROMPT_METERS)}")
    return source, target


async def what_if(database: Database, catalog: PriceCatalog, period: str, scenario: Scenario) -> list[TenantImpact]:
    """The impact of a scenario on each tenant and model of a closed month, the largest difference first.

    A tenant with prices of its own keeps them, unless the sheet is of its own book. Raises InvalidPeriod,
    InvalidScenario, UnknownPriceVersion, DatabaseUnavailable.
    """
    check_period(period)
    own = {book.tenant_id for book in await PriceBooks(database).list() if book.tenant_id is not None}
    query = _groups(period, _tiers(scenario), scenario.least_read)
    async with database.reading() as session:
        state = select(billing_period.c.state).where(billing_period.c.period == period)
        if await session.scalar(state) != "closed":
            raise InvalidScenario(f"{period} is not closed: its usage is not complete")
        rows = (await session.execute(query)).all()
    sums: dict[tuple[UUID, str, str], list[Any]] = defaultdict(lambda: [0, 0, 0, ""])
    for row in rows:
        version = await catalog.version(row.price_version)
        problem, cost = _would_cost(row, version, scenario, own)
        total = sums[row.tenant_id, row.model, version.currency]
        total[0] += int(row.events)
        total[1] += int(row.cost)
        total[2] += cost
        total[3] = total[3] or problem
    impacts = [
        TenantImpact(
            tenant_id=tenant,
            model=model,
            currency=currency,
            events=events,
            cost_pico=cost,
            would_cost_pico=None if problem else would_cost,
            problem=problem,
        )
        for (tenant, model, currency), (events, cost, would_cost, problem) in sums.items()
    ]
    return sorted(impacts, key=lambda one: (-abs((one.would_cost_pico or 0) - one.cost_pico), one.tenant_id, one.model))


def _tiers(scenario: Scenario) -> list[int]:
    """The lower bounds of the context tiers of the new prices, the highest first."""
    return sorted({context_from for _, _, context_from in scenario.rows}, reverse=True)


def _groups(period: str, tiers: list[int], least_read: int) -> Any:
    """Sums of events by all that their prices depend on, the tier of the new prices too."""
    event = usage_event.c
    original = usage_fact.alias("original")
    # an adjustment is priced in the tier of the request that it corrects
    prompt = sum((func.coalesce(original.c[meter], event[meter]) for meter in _PROMPT_METERS), start=literal(0))
    tier: ColumnElement[int] = literal(_NO_TIER)
    if tiers:
        tier = case(*((prompt >= context_from, context_from) for context_from in tiers), else_=_NO_TIER)
    keys = (event.tenant_id, event.model, event.lane, event.price_version, event.context_from, tier.label("tier"))
    few = {meter: (event[meter] > 0) & (event[meter] < least_read) for meter in _READS}
    units: dict[str, ColumnElement[Any]] = {meter: event[meter] for meter in METERS}
    for meter in _READS if least_read else ():
        units["uncached"] = units["uncached"] + case((few[meter], event[meter]), else_=0)
        units[meter] = case((few[meter], 0), else_=event[meter])
    # all tenants: who proposes and approves prices is the platform
    return (
        select(
            *keys,
            func.count().label("events"),
            func.sum(event.cost_pico.cast(Pico)).label("cost"),
            *(func.sum(units[meter]).label(meter) for meter in METERS),
        )
        .join_from(usage_event, original, original.c.id == event.corrects, isouter=True)
        .where(event.period == period)
        .group_by(*keys)
    )


def _would_cost(row: Any, old: PriceVersion, scenario: Scenario, own: set[UUID]) -> tuple[str, int]:
    """Why a group's cost cannot be told, if it cannot; and its cost in the scenario."""
    sheet, version, tier = scenario.sheet, old, row.context_from
    concerned = sheet is not None and sheet.model == row.model
    if sheet is not None and concerned:
        book = sheet.book
        applies = book.tenant_id == row.tenant_id or (book.name == BASE and row.tenant_id not in own)
        if applies:
            if book.currency != old.currency:
                return f"some of it was priced in {old.currency}", 0
            version, tier = PriceVersion(0, sheet.model, book.currency, scenario.rows), row.tier
    prices = dict(version.tiers(row.lane)).get(tier, {})
    cost = 0
    for meter in METERS:
        if units := int(getattr(row, meter)):
            counted = scenario.moves.get(meter, meter)
            if counted not in prices:
                return f"there is no price of {counted} in the lane {row.lane}", 0
            cost += units * prices[counted]
    return "", cost
