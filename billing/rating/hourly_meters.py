"""Meters that are counted by the hour: cached prompts that are stored, and adapters that replicas keep ready.

Each past hour is recorded once, at the prices of its beginning, and becomes lines of the period. A price is for
1,000,000 of a meter's units times hours; such a price divided by `per_hour` is whole, so that units × price is exact.
What is recorded after its period had closed is booked in the open period, as late usage is, in lines that name the
period that they correct.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Label, Select, Table, case, func, select, tuple_

from billing.calendar import check_period, period_bounds, period_of
from billing.events.rollups import HOUR, LIMB
from billing.integrity.row_seals import CURRENT, seal_rows
from billing.periods.periods import moved_periods
from billing.prices import EVERY_LANE, PriceCatalog, PriceMissing, PriceVersion
from billing.prices.version import RESIDENT, STORAGE
from billing.rating.lines import LineKind, RatedLine
from billing.tables.money import price_version
from billing.tables.prices import residency_event, storage_event
from billing.transaction.opening import money_transaction_in
from billing.usage import InvalidUsage
from storage.database.database import Database


class HourlyMeter(msgspec.Struct, frozen=True):
    """A meter with a row of `events` for each hour, whose column `counted` has its units. `per_hour`: by how much a
    price of the sheet is divided for one unit's. `words`: what its lines say behind the model."""

    name: str
    kind: LineKind
    events: Table
    counted: str
    per_hour: int
    words: str

    @property
    def units(self) -> ColumnElement[int]:
        """The column with the units."""
        column: ColumnElement[int] = self.events.c[self.counted]
        return column

    def price_of(self, version: PriceVersion) -> int:
        """The price of a unit, in pico-units. Raises PriceMissing."""
        return version.price(self.name, EVERY_LANE, 0) // self.per_hour


CACHE_STORAGE = HourlyMeter(
    STORAGE, "storage", storage_event, "token_seconds", 3600, "cached prompts stored, token-seconds"
)
READY_ADAPTERS = HourlyMeter(
    RESIDENT, "residency", residency_event, "millihours", 1, "adapter kept ready, thousandths of an hour"
)
HOURLY_METERS = (CACHE_STORAGE, READY_ADAPTERS)
"""In the order of documents."""


class Stored(msgspec.Struct, frozen=True):
    """Units that a project used of one model in the hour that began at `hour`. `base`: the model whose prices apply
    where this one has none."""

    tenant_id: UUID
    project_id: UUID
    model: str
    hour: int
    units: int
    base: str = ""


async def record_hours(
    database: Database, catalog: PriceCatalog, hours: Sequence[Stored], meter: HourlyMeter = CACHE_STORAGE
) -> int:
    """Write past hours at the prices of their beginning; return how many were new. Recorded hours stay as they are.

    An hour of a closed period is booked in the period that is open now. A model without a price of this meter costs
    nothing and is not written. Raises InvalidUsage for an instant that is not the beginning of a past hour,
    DatabaseUnavailable; then nothing is written.
    """
    now = await database.now()
    rows: list[dict[str, Any]] = []
    for used in hours:
        if used.hour % HOUR or used.hour + HOUR > now:
            raise InvalidUsage(f"{meter.name} of {used.hour}, which is not the beginning of a past hour")
        if used.units < 0:
            raise InvalidUsage(f"{meter.name} is {used.units} units")
        try:
            version = await _version_of(catalog, used)
            price = meter.price_of(version)
        except PriceMissing:
            continue
        who = {"tenant_id": used.tenant_id, "project_id": used.project_id, "model": used.model, "hour": used.hour}
        what = {meter.counted: used.units, "price_version": version.id, "cost_pico": used.units * price}
        rows.append(who | what)
    if not rows:
        return 0
    events = meter.events
    key = tuple_(*(events.c[name] for name in CURRENT[events.name].key))
    new = database.insert(events).on_conflict_do_nothing().returning(*events.primary_key)
    async with database.transaction() as session:
        await session.execute(select(1))  # begins the transaction
        moved = await moved_periods(
            await money_transaction_in(database, session), {period_of(row["hour"]) for row in rows}
        )
        for row in rows:
            row["period"] = moved.get(own_period := period_of(row["hour"]), own_period)
        made = (await session.execute(new, rows)).all()
        if made:
            # all tenants: the hours of several tenants are recorded together
            await seal_rows(session, events, key.in_([tuple(row) for row in made]))
        return len(made)


async def _version_of(catalog: PriceCatalog, used: Stored) -> PriceVersion:
    try:
        return await catalog.current(used.model, used.hour, used.tenant_id)
    except PriceMissing:
        if not used.base:
            raise
    return await catalog.current(used.base, used.hour, used.tenant_id)


async def hourly_lines(
    database: Database, catalog: PriceCatalog, tenant_id: UUID, period: str, meter: HourlyMeter = CACHE_STORAGE
) -> list[RatedLine]:
    """The lines of a meter in one tenant's period, by project, model and price version. Corrections come last.

    Raises InvalidPeriod, DatabaseUnavailable.
    """
    event = meter.events.c
    start, _ = period_bounds(check_period(period))
    began = case((event.hour >= start, start), else_=event.hour).label("began")
    groups = (event.project_id, event.model, event.price_version)
    query = (
        select(
            *groups,
            began,
            func.sum(meter.units.op("/")(LIMB)).label("high"),
            func.sum(meter.units.op("%")(LIMB)).label("low"),
        )
        .where(event.tenant_id == tenant_id, event.period == period)
        .group_by(*groups, began)
    )
    async with database.reading() as session:
        rows: Sequence[Any] = (await session.execute(query)).all()
    units: dict[tuple[str, UUID, str, int], int] = defaultdict(int)
    for row in rows:
        units[period_of(row.began), row.project_id, row.model, row.price_version] += int(row.high) * LIMB + int(row.low)
    lines = []
    for own_period, project_id, model, number in sorted(
        units, key=lambda key: (key[0] != period, key[0], key[1].int, *key[2:])
    ):
        line = hourly_line(
            meter,
            await catalog.version(number),
            project_id,
            model,
            units[own_period, project_id, model, number],
            period_bounds(own_period),
        )
        lines.append(msgspec.structs.replace(line, corrects_period=None if own_period == period else own_period))
    return lines


def hourly_line(  # noqa: PLR0917  # what a line is made of
    meter: HourlyMeter, version: PriceVersion, project_id: UUID, model: str, units: int, span: tuple[int, int]
) -> RatedLine:
    """The line of so many units at a version's price."""
    price = meter.price_of(version)
    return RatedLine(
        kind=meter.kind,
        description=f"{model}: {meter.words}",
        project_id=project_id,
        model=model,
        meter=meter.name,
        price_version=version.id,
        price_micro=price,
        units=units,
        exact_pico=units * price,
        service_start=span[0],
        service_end=span[1],
    )


def hourly_sums(
    meter: HourlyMeter, by: Sequence[str], *where: ColumnElement[bool], also: Sequence[Label[Any]] = ()
) -> Select[tuple[Any, ...]]:
    """Sums of a meter's events by these columns, by `also`, and by currency, in their order: `hourly_units` and
    `hourly_cost` of a row."""
    # all tenants: the caller selects some
    event = meter.events.c
    groups = [*(event[name] for name in by), *also, price_version.c.currency]
    sums = [
        func.sum(column.op(operator)(LIMB)).label(f"{name}_{limb}")
        for name, column in (("units", meter.units), ("cost_pico", event.cost_pico))
        for operator, limb in (("/", "high"), ("%", "low"))
    ]
    query = select(*groups, *sums).join(price_version, price_version.c.id == event.price_version).where(*where)
    return query.group_by(*groups).order_by(*groups)


def hourly_units(row: Any) -> int:
    """The units of a row of `hourly_sums`."""
    return int(row.units_high) * LIMB + int(row.units_low)


def hourly_cost(row: Any) -> int:
    """The cost of a row of `hourly_sums`, in pico-units."""
    return int(row.cost_pico_high) * LIMB + int(row.cost_pico_low)
