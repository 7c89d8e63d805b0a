"""A made-up past for reports and exports: events of several projects, keys, models, lanes and hours, and their sums."""

from __future__ import annotations

import random
from uuid import UUID

import msgspec

from billing.calendar import period_of
from billing.events import partitions
from billing.events.columns import EventColumns, dimension_ids
from billing.events.rollups import roll_up
from billing.events.rows import EventRows
from billing.prices import PriceCatalog
from billing.transaction.opening import money_transaction
from billing.usage import Counts, Usage, UsageEvent
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.money import PRICES, Tenant

HOUR = 3_600_000_000
DAY = 24 * HOUR
NOVEMBER = 1_793_491_200_000_000
"""2026-11-01T00:00:00Z, in microseconds since the Unix epoch."""


async def store(database: Database, *events: UsageEvent) -> None:
    """Write events and their rollups, without holds or balances."""
    columns = EventColumns(events)
    await partitions.ensure_partitions(database, columns.ids)
    ids = await dimension_ids(database, columns.kinds)
    async with money_transaction(database) as books:
        await books.roll_up(await books.write_events(EventRows(columns, ids), lambda: roll_up(columns)))


class Past(msgspec.Struct):
    """What was recorded of one tenant."""

    tenant: Tenant
    projects: list[UUID]
    keys: list[UUID]
    events: list[UsageEvent]

    @property
    def cost_pico(self) -> int:
        return sum(event.cost_pico for event in self.events)


async def record(
    database: Database,
    tenant: Tenant,
    *,
    count: int = 200,
    seed: int = 0,
    start: int = NOVEMBER,
    span: int = 10 * DAY,
    projects: list[UUID] | None = None,
    keys: list[UUID] | None = None,
) -> Past:
    """Record `count` events of a tenant, spread over `span` from `start`; some exactly at the edges of hours."""
    chance = random.Random(seed)
    catalog = PriceCatalog(database)
    versions = [tenant.version, await catalog.set("big", "USD", PRICES | {"output": "9.99", "uncached": "0.43"})]
    past = Past(tenant, projects or [tenant.project_id, new_id()], keys or [tenant.key_id, new_id()], [])
    for number in range(count):
        version, lane = chance.choice(versions), chance.choice(["interactive", "standard", "batch"])
        usage = Usage(
            uncached=chance.randrange(5000),
            read={"automatic": chance.randrange(900), "5m": chance.randrange(3000)},
            write={"5m": chance.randrange(700), "1h": chance.randrange(70)},
            output=chance.randrange(2000),
        )
        at = start + chance.randrange(span)
        at -= at % HOUR if number % 7 == 0 else at % 1000
        past.events.append(
            msgspec.structs.replace(
                tenant.event(tenant.request(0), usage),
                project_id=chance.choice(past.projects),
                key_id=chance.choice(past.keys),
                model=version.model,
                lane=lane,
                price_version=version.id,
                admitted_at=at,
                finished_at=at + 500_000,
                period=period_of(at),
                counts=Counts(
                    prompt=usage.prompt,
                    computed=usage.prompt,
                    output=usage.output,
                    drafted=usage.output // 2,
                    accepted=usage.output // 3,
                ),
                cost_pico=version.cost(usage, lane),
                context_from=version.context_from(usage.prompt, lane),
            )
        )
    await store(database, *past.events)
    return past
