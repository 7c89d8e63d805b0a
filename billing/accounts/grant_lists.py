"""Lists of a tenant's grants: what was put in, and what became of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Select, select
from sqlalchemy import tuple_ as row_of
from sqlalchemy.ext.asyncio import AsyncSession

from billing.ledger.wallet import OpenGrant
from billing.tables.money import grant, grant_balance
from storage.database.database import Database

_GIVEN = (
    "id", "kind", "amount_pico", "currency", "reason", "at", "priority", "expires_at", "model", "project_id",
)  # fmt: skip
_LEFT = ("remaining", "used", "gone", "held")
_COLUMNS = (*(grant.c[name] for name in _GIVEN), *(grant_balance.c[name] for name in _LEFT))


class GrantRow(msgspec.Struct, frozen=True):
    """Money that was put in, and what became of it: `amount_pico` is `remaining`, `used` and `gone` (refunded or
    expired) together. Of an expired one, no more remains than open holds have reserved of it.
    `at` and `expires_at` are in microseconds since the Unix epoch, amounts in pico-units."""

    id: UUID
    kind: str
    amount_pico: int
    currency: str
    reason: str
    at: int
    priority: int
    expires_at: int | None
    model: str | None
    project_id: UUID | None
    remaining: int
    used: int
    gone: int
    held: int


async def find_grant(database: Database, tenant_id: UUID, grant_id: UUID) -> GrantRow | None:
    """One of the tenant's grants. Raises DatabaseUnavailable."""
    found = await _rows(database, _of(tenant_id).where(grant.c.id == grant_id))
    return found[0] if found else None


async def list_grants(
    database: Database, tenant_id: UUID, *, limit: int, after: UUID | None = None, kind: str | None = None
) -> Sequence[GrantRow]:
    """At most `limit` of the tenant's grants, newest first, those after the grant `after`, of one kind or (None) of
    both. Raises DatabaseUnavailable."""
    where: list[ColumnElement[bool]] = [] if kind is None else [grant.c.kind == kind]
    if after is not None:
        last = select(grant.c.at, grant.c.id).where(grant.c.tenant_id == tenant_id, grant.c.id == after)
        where.append(row_of(grant.c.at, grant.c.id) < last.scalar_subquery())
    query = _of(tenant_id).where(*where).order_by(grant.c.at.desc(), grant.c.id.desc()).limit(limit)
    return await _rows(database, query)


async def open_grants(
    session: AsyncSession, tenant_ids: Collection[UUID], *where: ColumnElement[bool]
) -> list[OpenGrant]:
    """The grants of these tenants with what became of each, in the order in which each tenant's are used."""
    given = (grant.c[name] for name in ("id", "tenant_id", "kind", "priority", "expires_at", "model", "project_id"))
    left = (grant_balance.c[name] for name in ("remaining", "used", "gone", "held"))
    query = select(*given, *left).join(grant_balance, grant_balance.c.grant_id == grant.c.id)
    rows = await session.execute(query.where(grant.c.tenant_id.in_(tenant_ids), *where))
    return sorted((OpenGrant(*row) for row in rows), key=lambda one: one.order)


def _of(tenant_id: UUID) -> Select[Any]:
    query: Select[Any] = select(*_COLUMNS)
    return query.join(grant_balance, grant_balance.c.grant_id == grant.c.id).where(grant.c.tenant_id == tenant_id)


async def _rows(database: Database, query: Select[Any]) -> list[GrantRow]:
    async with database.reading() as session:
        now = await database.now_in(session)
        return [_without_expired(GrantRow(*row), now) for row in await session.execute(query)]


def _without_expired(row: GrantRow, now: int) -> GrantRow:
    """What is left of an expired grant is gone, before the worker has taken it too."""
    if row.expires_at is None or row.expires_at > now:
        return row
    return msgspec.structs.replace(row, remaining=row.held, gone=row.gone + row.remaining - row.held)
