"""Cache storage by token-hour: what lies stored is metered in token-seconds, for each closed hour.

Its price stands in the price book as the meter `storage`, per 1,000,000 token-hours, and is a multiple of 3,600
micro-units, so that a token-second has a whole price and units × price stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, select, tuple_

from billing.prices import EVERY_LANE, PriceBook, PriceMissing
from billing.prices.version import STORAGE
from billing.rating.lines import RatedLine
from billing.rollups import HOUR, LIMB
from billing.seals import FORMS, seal_rows
from billing.tables.rating import storage_event
from billing.usage import InvalidUsage, check_period, period_bounds, period_of
from storage.database import Database

SECONDS_PER_HOUR = 3600


class Stored(msgspec.Struct, frozen=True):
    """What a project had stored of one model in the hour that began at `hour`, in token-seconds."""

    tenant_id: UUID
    project_id: UUID
    model: str
    hour: int
    token_seconds: int


async def record_storage(database: Database, book: PriceBook, hours: Sequence[Stored]) -> int:
    """Write closed hours at the prices of their beginning; return how many were new. Those that are there stay.

    A model without a price for storage costs nothing and is not written. Raises InvalidUsage for an hour that is not
    over or no hour, DatabaseUnavailable; then nothing is written.
    """
    now = await database.now()
    rows = []
    for stored in hours:
        if stored.hour % HOUR or stored.hour + HOUR > now:
            raise InvalidUsage(f"storage of the hour {stored.hour}, which is not an hour that is over")
        if stored.token_seconds < 0:
            raise InvalidUsage(f"storage is {stored.token_seconds} token-seconds")
        try:
            version = await book.current(stored.model, stored.hour, stored.tenant_id)
            price = version.price(STORAGE, EVERY_LANE, 0) // SECONDS_PER_HOUR
        except PriceMissing:
            continue
        cost = stored.token_seconds * price
        row = msgspec.structs.asdict(stored) | {"period": period_of(stored.hour), "price_version": version.id}
        rows.append(row | {"cost_pico": cost})
    if not rows:
        return 0
    key = tuple_(*(storage_event.c[name] for name in FORMS["storage_event"].key))
    new = database.insert(storage_event).on_conflict_do_nothing().returning(*storage_event.primary_key)
    async with database.transaction() as session:
        made = (await session.execute(new, rows)).all()
        if made:
            # of the tenants whose hours these are
            await seal_rows(session, storage_event, key.in_([tuple(row) for row in made]))
        return len(made)


async def storage_lines(database: Database, book: PriceBook, tenant_id: UUID, period: str) -> list[RatedLine]:
    """The storage lines of one tenant's period: one for each project, model and price version.

    Raises InvalidPeriod, DatabaseUnavailable.
    """
    of = storage_event.c
    groups = (of.project_id, of.model, of.price_version)
    query = (
        select(
            *groups,
            func.sum(of.token_seconds.op("/")(LIMB)).label("high"),
            func.sum(of.token_seconds.op("%")(LIMB)).label("low"),
        )
        .where(of.tenant_id == tenant_id, of.period == check_period(period))
        .group_by(*groups)
    )
    async with database.reading() as session:
        rows: Sequence[Any] = (await session.execute(query)).all()
    start, end = period_bounds(period)
    lines = []
    for row in sorted(rows, key=lambda row: (row.project_id.int, row.model, row.price_version)):
        version = await book.version(row.price_version)
        price = version.price(STORAGE, EVERY_LANE, 0) // SECONDS_PER_HOUR
        units = int(row.high) * LIMB + int(row.low)
        lines.append(
            RatedLine(
                kind="storage",
                description=f"{row.model}: cached prompts stored, token-seconds",
                project_id=row.project_id,
                model=row.model,
                meter=STORAGE,
                price_version=row.price_version,
                price_micro=price,
                units=units,
                exact_pico=units * price,
                service_start=start,
                service_end=end,
            )
        )
    return lines
