"""From the spool into the database: each event once, its hold closed, its cost debited, in one transaction a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select

from billing import balances
from billing.balances import Balance, Change
from billing.holds import end
from billing.prices import PriceBook, PriceMissing, PriceVersion, UnknownPriceVersion
from billing.tables import hold, refused_settlement, usage_event
from billing.usage import Release, Settlement, UsageEvent
from storage.base import new_id
from storage.bulk import insert_new, one_of
from storage.database import Database


class Settled(msgspec.Struct, frozen=True):
    """What became of a batch: events written, events that were there already, holds given back, records refused."""

    written: int = 0
    repeated: int = 0
    released: int = 0
    refused: int = 0

    def __add__(self, other: Settled) -> Settled:
        return Settled(*(a + b for a, b in zip(_numbers(self), _numbers(other), strict=True)))


def _numbers(settled: Settled) -> tuple[int, ...]:
    return msgspec.structs.astuple(settled)


async def settle(database: Database, book: PriceBook, records: Sequence[Settlement]) -> Settled:
    """Settle the records in one transaction. Any of them may come again, late or in any order, and counts once.

    A record that cannot be true (its cost does not recompute, its price version or its tenant's balance does not
    exist, its currency is another, its journal sequence belongs to another request) is kept in `refused_settlement`.
    Raises DatabaseUnavailable, and then nothing is written.
    """
    events: dict[UUID, UsageEvent] = {}
    for record in records:
        if isinstance(record, UsageEvent):
            events.setdefault(record.id, record)
    releases = {record.request_id for record in records if isinstance(record, Release)}
    versions = await _versions(book, {event.price_version for event in events.values()})
    async with database.transaction() as session:
        owners = await _lock(database, session, events, releases)
        refused = {event.id: cause for event in events.values() if (cause := _untrue(event, versions, owners))}
        true = [event for event in events.values() if event.id not in refused]
        written = await insert_new(database, session, usage_event, [event_row(event) for event in true])
        refused |= await _not_there(database, session, {event.id for event in true} - written)
        settled = await end(database, session, written, "settled")
        released = await end(database, session, releases - written, "released")
        changes = settled.changes
        for tenant, change in released.changes.items():
            changes.setdefault(tenant, Change()).held += change.held
        for event in true:
            if event.id in written:
                changes.setdefault(event.tenant_id, Change()).debit += event.cost_pico
        await balances.move(session, changes)
        await refuse(database, session, [(events[identity], cause) for identity, cause in refused.items()])
    repeated = sum(isinstance(record, UsageEvent) for record in records) - len(written) - len(refused)
    return Settled(len(written), repeated, len(released.requests), len(refused))


def event_row(event: UsageEvent) -> dict[str, Any]:
    """The event as a row of `usage_event`."""
    row = {name: getattr(event, name) for name in _EVENT_FIELDS}
    row |= {f"count_{name}": tokens for name, tokens in msgspec.structs.asdict(event.counts).items()}
    return row | event.usage.meters()


_EVENT_FIELDS = [name for name in UsageEvent.__struct_fields__ if name not in ("counts", "usage")]


async def refuse(database: Database, session: Any, records: Sequence[tuple[Settlement, str]]) -> None:
    """Keep records that cannot be settled, whole, with the cause of each."""
    if records:
        now = (await session.execute(select(database.clock))).scalar_one()
        rows = [
            {
                "id": new_id(),
                "request_id": record.id if isinstance(record, UsageEvent) else record.request_id,
                "cause": cause,
                "body": msgspec.msgpack.encode(record),
                "refused_at": now,
            }
            for record, cause in records
        ]
        await session.execute(refused_settlement.insert(), rows)


async def _versions(book: PriceBook, ids: set[int]) -> dict[int, PriceVersion]:
    found = {}
    for identity in ids:
        try:
            found[identity] = await book.version(identity)
        except UnknownPriceVersion:
            continue
    return found


async def _lock(
    database: Database, session: Any, events: dict[UUID, UsageEvent], releases: set[UUID]
) -> dict[UUID, Balance]:
    """Lock the balances of all tenants that the batch touches: an event's own, and its hold's."""
    tenants = {event.tenant_id for event in events.values()}
    others = releases | events.keys()
    query = select(hold.c.tenant_id).distinct().where(one_of(database, hold.c.request_id, others))
    tenants |= set(await session.scalars(query))
    return await balances.lock(database, session, tenants)


def _untrue(event: UsageEvent, versions: dict[int, PriceVersion], owners: dict[UUID, Balance]) -> str | None:
    version, owner = versions.get(event.price_version), owners.get(event.tenant_id)
    if version is None:
        return f"price version {event.price_version} does not exist"
    if owner is None:
        return "the tenant has no balance"
    if owner.currency != version.currency:
        return f"the price is in {version.currency}, the balance in {owner.currency}"
    try:
        cost = version.cost(event.usage)
    except PriceMissing as error:
        return str(error)
    return None if cost == event.cost_pico else f"the cost is {event.cost_pico}, and recomputes to {cost}"


async def _not_there(database: Database, session: Any, identities: set[UUID]) -> dict[UUID, str]:
    """Of events that were not inserted, those that are not there either: their journal sequence was."""
    if not identities:
        return {}
    query = select(usage_event.c.id).where(one_of(database, usage_event.c.id, identities))
    there = set(await session.scalars(query))
    return dict.fromkeys(identities - there, "its replica and journal sequence belong to another request")
