"""Cache storage: metered in token-seconds for each past hour, and its lines.

The price is that of the meter `storage`, per 1,000,000 token-hours. It is a multiple of 3,600 micro-units, so that a
token-second has a whole price and units × price is exact. Storage recorded after its period had closed is booked in the
open period, as late usage is, in lines that name the period that they correct.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Label, Select, case, func, select, tuple_

from billing.calendar import check_period, period_bounds, period_of
from billing.events.rollups import HOUR, LIMB
from billing.integrity.row_seals import CURRENT, seal_rows
from billing.periods.periods import moved_periods
from billing.prices import EVERY_LANE, PriceCatalog, PriceMissing, PriceVersion
from billing.prices.version import STORAGE
from billing.rating.lines import RatedLine
from billing.tables.money import price_version
from billing.tables.prices import storage_event
from billing.transaction.opening import money_transaction_in
from billing.usage import InvalidUsage
from storage.database.database import Database

SECONDS_PER_HOUR = 3600


class Stored(msgspec.Struct, frozen=True):
    """Token-seconds that a project had stored of one model in the hour that began at `hour`."""

    tenant_id: UUID
    project_id: UUID
    model: str
    hour: int
    token_seconds: int


async def record_storage(database: Database, catalog: PriceCatalog, hours: Sequence[Stored]) -> int:
    """Write past hours at the prices of their beginning; return how many were new. Recorded hours stay as they are.

    An hour of a closed period is booked in the period that is open now. A model without a storage price costs nothing
    and is not written. Raises InvalidUsage for an instant that is not the beginning of a past hour,
    DatabaseUnavailable; then nothing is written.
    """
    now = await database.now()
    rows = []
    for stored in hours:
        if stored.hour % HOUR or stored.hour + HOUR > now:
            raise InvalidUsage(f"storage of {stored.hour}, which is not the beginning of a past hour")
        if stored.token_seconds < 0:
            raise InvalidUsage(f"storage is {stored.token_seconds} token-seconds")
        try:
            version = await catalog.current(stored.model, stored.hour, stored.tenant_id)
            price = version.price(STORAGE, EVERY_LANE, 0) // SECONDS_PER_HOUR
        except PriceMissing:
            continue
        cost = stored.token_seconds * price
        rows.append(msgspec.structs.asdict(stored) | {"price_version": version.id, "cost_pico": cost})
    if not rows:
        return 0
    key = tuple_(*(storage_event.c[name] for name in CURRENT["storage_event"].key))
    new = database.insert(storage_event).on_conflict_do_nothing().returning(*storage_event.primary_key)
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
            await seal_rows(session, storage_event, key.in_([tuple(row) for row in made]))
        return len(made)


async def storage_lines(database: Database, catalog: PriceCatalog, tenant_id: UUID, period: str) -> list[RatedLine]:
    """The storage lines of one tenant's period, by project, model and price version. Corrections come last.

    Raises InvalidPeriod, DatabaseUnavailable.
    """
    event = storage_event.c
    start, _ = period_bounds(check_period(period))
    began = case((event.hour >= start, start), else_=event.hour).label("began")
    groups = (event.project_id, event.model, event.price_version)
    query = (
        select(
            *groups,
            began,
            func.sum(event.token_seconds.op("/")(LIMB)).label("high"),
            func.sum(event.token_seconds.op("%")(LIMB)).label("low"),
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
        line = storage_line(
            await catalog.version(number),
            project_id,
            model,
            units[own_period, project_id, model, number],
            period_bounds(own_period),
        )
        lines.append(msgspec.structs.replace(line, corrects_period=None if own_period == period else own_period))
    return lines


def storage_line(
    version: PriceVersion, project_id: UUID, model: str, token_seconds: int, span: tuple[int, int]
) -> RatedLine:
    """The line of so many token-seconds at a version's price."""
    price = version.price(STORAGE, EVERY_LANE, 0) // SECONDS_PER_HOUR
    return RatedLine(
        kind="storage",
        description=f"{model}: cached prompts stored, token-seconds",
        project_id=project_id,
        model=model,
        meter=STORAGE,
        price_version=version.id,
        price_micro=price,
        units=token_seconds,
        exact_pico=token_seconds * price,
        service_start=span[0],
        service_end=span[1],
    )


def storage_sums(
    by: Sequence[str], *where: ColumnElement[bool], also: Sequence[Label[Any]] = ()
) -> Select[tuple[Any, ...]]:
    """Sums of storage events by these columns, by `also`, and by currency, in their order: `storage_units` and
    `storage_cost` of a row."""
    # all tenants: the caller selects some
    event = storage_event.c
    groups = [*(event[name] for name in by), *also, price_version.c.currency]
    sums = [
        func.sum(event[name].op(operator)(LIMB)).label(f"{name}_{limb}")
        for name in ("token_seconds", "cost_pico")
        for operator, limb in (("/", "high"), ("%", "low"))
    ]
    query = select(*groups, *sums).join(price_version, price_version.c.id == event.price_version).where(*where)
    return query.group_by(*groups).order_by(*groups)


def storage_units(row: Any) -> int:
    """The token-seconds of a row of `storage_sums`."""
    return int(row.token_seconds_high) * LIMB + int(row.token_seconds_low)


def storage_cost(row: Any) -> int:
    """The cost of a row of `storage_sums`, in pico-units."""
    return int(row.cost_pico_high) * LIMB + int(row.cost_pico_low)
