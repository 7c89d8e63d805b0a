"""Lists of a tenant's usage events, newest first, one event with what corrects it, and what those of a batch cost.

A page looks at most at `MOST_LOOKED_AT` events, in the order of the index by tenant and admission. So a filter that few
events fit never makes the database read a month of them: the page then has fewer events than were asked for, and a
cursor at which the next page looks on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, get_args
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Row, Select, func, or_, select

from billing.tables.money import price_version, usage_event, usage_fact, usage_traits
from billing.usage import COUNTS, DIMENSIONS, METERS, Status
from storage.database.database import Database

MOST_LOOKED_AT = 20_000
"""Events that one page looks at, at most."""
_FACTS = ("id", "project_id", "key_id", "price_version", "context_from", "admitted_at", "finished_at", "period",
          "attempt", "corrects", "cost_pico")  # fmt: skip


_LEAST = UUID(int=0)
_RANDOM_BITS = 80
"""Of a UUIDv7, behind its milliseconds."""


class ListedEvent(msgspec.Struct, frozen=True):
    """One request's event, or the adjustment of the request that it `corrects`. Instants are in microseconds since the
    Unix epoch; `meters` and `counts` have those that are not 0."""

    id: UUID
    project_id: UUID
    key_id: UUID
    price_version: int
    context_from: int
    admitted_at: int
    finished_at: int
    period: str
    attempt: int
    corrects: UUID | None
    cost_pico: int
    dimensions: dict[str, str]
    meters: dict[str, int]
    counts: dict[str, int]


class EventPage(msgspec.Struct, frozen=True):
    """Events, newest first. `after` is the cursor of the next page, which may stand for no event; None
    at the end."""

    events: list[ListedEvent]
    after: tuple[int, UUID] | None


class EventFilters(msgspec.Struct, frozen=True, kw_only=True):
    """Which events are listed; None: all. Instants are of admission, `until` is excluded. `least_ms`: from admission
    until the end was recorded."""

    since: int | None = None
    until: int | None = None
    projects: Collection[UUID] | None = None
    keys: Collection[UUID] | None = None
    models: Sequence[str] | None = None
    lanes: Sequence[str] | None = None
    statuses: Sequence[Status] | None = None
    least_ms: int | None = None


async def list_events(
    database: Database,
    tenant_id: UUID,
    filters: EventFilters,
    *,
    limit: int,
    after: tuple[int, UUID] | None = None,
    before: tuple[int, UUID] | None = None,
    most: int = MOST_LOOKED_AT,
) -> EventPage:
    """At most `limit` events of the tenant, those before the cursor `after`, looking at `most` and those of the same
    instant as the last of these. With `before` those that come directly before it in the list, looking at `most`.
    Raises DatabaseUnavailable."""
    fact, traits = usage_fact.c, usage_traits.c
    span: list[ColumnElement[bool]] = [fact.tenant_id == tenant_id]
    if filters.since is not None:
        span.append(fact.admitted_at >= filters.since)
    if filters.until is not None:
        span.append(fact.admitted_at < filters.until)
    if after is not None:
        same = (fact.admitted_at == after[0]) & (fact.id < after[1])
        span += [fact.admitted_at <= after[0], (fact.admitted_at < after[0]) | same]
    wanted: list[ColumnElement[bool]] = [
        column.in_(values)
        for column, values in (
            (fact.project_id, filters.projects),
            (fact.key_id, filters.keys),
            (traits.model, filters.models),
            (traits.lane, filters.lanes),
            (traits.status, filters.statuses),
        )
        if values is not None
    ]
    if filters.least_ms is not None:
        wanted.append(fact.finished_at - fact.admitted_at >= filters.least_ms * 1000)
    columns = [fact[name] for name in (*_FACTS, *(f"count_{name}" for name in COUNTS), *METERS)]
    query = (
        select(*columns, *(traits[name] for name in DIMENSIONS))
        .join_from(usage_fact, usage_traits, traits.id == fact.traits)
        .where(*span, *wanted)
    )
    if before is not None:
        places = select(fact.admitted_at).where(*span).offset(most - 1).limit(1) if wanted else None
        return await _newer(database, query.limit(limit), places, before)
    query = query.order_by(fact.admitted_at.desc(), fact.id.desc()).limit(limit + 1)
    async with database.reading() as session:
        edge: int | None = None
        if wanted:  # how far this page looks: found in the index alone
            places = select(fact.admitted_at).where(*span).order_by(fact.admitted_at.desc())
            edge = await session.scalar(places.offset(most - 1).limit(1))
        if edge is not None:
            query = query.where(fact.admitted_at >= edge)
        rows = (await session.execute(query)).all()
        events = [_event(row) for row in rows[:limit]]
        if len(rows) > limit:
            return EventPage(events, (events[-1].admitted_at, events[-1].id))
        if edge is None:
            return EventPage(events, None)
        beyond = select(fact.admitted_at).where(*span, fact.admitted_at < edge).limit(1)
        more = await session.scalar(beyond) is not None
    return EventPage(events, (edge, _LEAST) if more else None)


async def _newer(
    database: Database,
    query: Select[Any],
    edge_of: Select[Any] | None,
    before: tuple[int, UUID],
) -> EventPage:
    """The events of one tenant's query directly after this place in time, the newest of them first. `edge_of` finds how
    far it looks."""
    fact = usage_fact.c
    same = (fact.admitted_at == before[0]) & (fact.id > before[1])
    later = (fact.admitted_at >= before[0], (fact.admitted_at > before[0]) | same)
    query = query.where(*later).order_by(fact.admitted_at, fact.id)
    async with database.reading() as session:
        if edge_of is not None:
            edge = await session.scalar(edge_of.where(*later).order_by(fact.admitted_at))
            if edge is not None:
                query = query.where(fact.admitted_at <= edge)
        rows = (await session.execute(query)).all()
    return EventPage([_event(row) for row in reversed(rows)], None)


async def count_by_status(
    database: Database, tenant_id: UUID, filters: EventFilters, *, most: int = MOST_LOOKED_AT
) -> tuple[dict[Status, int], bool]:
    """How the requests of a span and of some projects ended, and whether these are all: the latest `most` of the tenant
    are counted. Adjustments and lost attempts are no requests. Raises DatabaseUnavailable."""
    fact, traits = usage_fact.c, usage_traits.c
    span: list[ColumnElement[bool]] = [fact.tenant_id == tenant_id]
    if filters.since is not None:
        span.append(fact.admitted_at >= filters.since)
    if filters.until is not None:
        span.append(fact.admitted_at < filters.until)
    columns = (fact.admitted_at, fact.traits, fact.project_id, fact.corrects)
    looked = select(*columns).where(*span).order_by(fact.admitted_at.desc()).limit(most).subquery()
    column = looked.c
    wanted = [column.corrects.is_(None)]
    if filters.projects is not None:
        wanted.append(column.project_id.in_(filters.projects))
    by_traits = select(column.traits, func.count().label("n")).where(*wanted).group_by(column.traits).subquery().c
    query = select(traits.status, func.sum(by_traits.n)).join(usage_traits, traits.id == by_traits.traits)
    total = select(func.count()).select_from(looked)
    async with database.reading() as session:
        counted = {row[0]: int(row[1]) for row in await session.execute(query.group_by(traits.status))}
        seen = int(await session.scalar(total) or 0)
    return {status: counted.get(status, 0) for status in get_args(Status)}, seen < most


async def find_event(database: Database, tenant_id: UUID, request_id: UUID) -> tuple[ListedEvent | None, list[Any]]:
    """The event of a tenant's request and, oldest first, its adjustments. Raises DatabaseUnavailable."""
    own = usage_event.c.tenant_id == tenant_id
    query = select(usage_event).where(own, usage_event.c.id == request_id)
    later = select(usage_event).where(own, usage_event.c.corrects == request_id)
    async with database.reading() as session:
        row = (await session.execute(query)).one_or_none()
        if row is None:
            return None, []
        corrections = await session.execute(later.order_by(usage_event.c.finished_at, usage_event.c.id))
        return _event(row), [_event(correction) for correction in corrections]


async def owner_of_event(database: Database, request_id: UUID) -> tuple[UUID, UUID] | None:
    """The tenant and the project of a request that is in the books, of whichever tenant it is: the caller decides who
    may see it. Raises DatabaseUnavailable."""
    fact = usage_fact.c  # all tenants: whose it is is what is asked
    async with database.reading() as session:
        query = select(fact.tenant_id, fact.project_id).where(fact.id == request_id)
        row = (await session.execute(query)).one_or_none()
    return None if row is None else (row.tenant_id, row.project_id)


def _event(row: Row[Any]) -> ListedEvent:
    return ListedEvent(
        **{name: getattr(row, name) for name in _FACTS},
        dimensions={name: getattr(row, name) for name in DIMENSIONS},
        meters={name: units for name in METERS if (units := getattr(row, name))},
        counts={name: tokens for name in COUNTS if (tokens := getattr(row, f"count_{name}"))},
    )


async def costs_of_batch(database: Database, tenant_id: UUID, project_id: UUID, batch_id: UUID) -> dict[str, int]:
    """What the books have of a project's requests on the batch lane whose ids have a batch's time, as those of its
    lines do: pico-units by currency, corrections included. Raises DatabaseUnavailable."""
    event, version = usage_event.c, price_version.c
    first = batch_id.int >> _RANDOM_BITS << _RANDOM_BITS
    span = UUID(int=first), UUID(int=first | (1 << _RANDOM_BITS) - 1)
    of_lines = or_(event.id.between(*span), event.corrects.between(*span))
    own = (event.tenant_id == tenant_id, event.project_id == project_id, event.lane == "batch")
    query = (
        select(version.currency, func.sum(event.cost_pico))
        .join_from(usage_event, price_version, version.id == event.price_version)
        .where(*own, of_lines)
        .group_by(version.currency)
    )
    async with database.reading() as session:
        return {currency: int(pico) for currency, pico in await session.execute(query)}
