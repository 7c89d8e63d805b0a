"""Keeps which of a tenant's requests were refused, and why: the newest of each tenant, for a while, without content."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from msgspec import Struct
from sqlalchemy import and_, delete, select

from storage.database.database import Database
from storage.database.sql_arrays import one_of
from waterfall.tables import refused_request

MOST_OF_TENANT = 1000
"""Rows of one tenant; its oldest go when there are more, and nobody else's."""
BATCH = 2000
"""Rows that are deleted at a time."""
_SECOND = 1_000_000
_REFUSED = refused_request.c


class RefusedRequest(Struct, frozen=True, kw_only=True):
    """A request that was answered with an error before it ran. `key`: the key's public id; `route`: its method and the
    route's path, without what the client put there; `at`: microseconds since the Unix epoch."""

    tenant_id: UUID
    request_id: UUID
    project_id: UUID | None
    at: int
    key: str
    route: str
    status: int
    code: str
    message: str


class RefusedRequestStore:
    """`keep_s`: how long refused requests are kept, and shown. All methods raise DatabaseUnavailable."""

    def __init__(self, database: Database, keep_s: float) -> None:
        self._database = database
        self._keep = int(keep_s * _SECOND)

    async def write(self, rows: Sequence[RefusedRequest]) -> None:
        """Keep these, each once, and only the newest of each of their tenants."""
        values = [{field: getattr(row, field) for field in RefusedRequest.__struct_fields__} for row in rows]
        keeping = self._database.insert(refused_request).on_conflict_do_nothing()
        async with self._database.transaction() as session:
            await session.execute(keeping, values)
            for tenant_id in sorted({row.tenant_id for row in rows}):
                mine = _REFUSED.tenant_id == tenant_id
                newest_first = select(_REFUSED.request_id).where(mine).order_by(_REFUSED.request_id.desc())
                beyond = newest_first.offset(MOST_OF_TENANT).limit(1).scalar_subquery()
                await session.execute(delete(refused_request).where(mine, _REFUSED.request_id <= beyond))

    async def page(
        self,
        tenant_id: UUID,
        limit: int,
        *,
        projects: Collection[UUID] | None = None,
        keys: Collection[str] | None = None,
        after: UUID | None = None,
    ) -> list[RefusedRequest]:
        """A tenant's refused requests, the newest first. `projects`: only of these; `keys`: only by keys of these
        public ids; `after`: those that follow this request."""
        wanted = [_REFUSED.tenant_id == tenant_id]
        if projects is not None:
            wanted.append(one_of(self._database, _REFUSED.project_id, projects))
        if keys is not None:
            wanted.append(one_of(self._database, _REFUSED.key, keys))
        if after is not None:
            wanted.append(_REFUSED.request_id < after)
        async with self._database.reading() as session:
            since = await self._database.now_in(session) - self._keep
            query = select(refused_request).where(and_(*wanted), _REFUSED.at >= since)
            rows = await session.execute(query.order_by(_REFUSED.request_id.desc()).limit(limit))
            return [RefusedRequest(**row) for row in rows.mappings()]

    async def forget_old(self) -> int:
        """Delete a batch of what is older than it is kept; how many rows. Again if it was a full batch."""
        async with self._database.transaction() as session:  # all tenants: time passes for everyone
            before = await self._database.now_in(session) - self._keep
            oldest = select(_REFUSED.tenant_id, _REFUSED.request_id).where(_REFUSED.at < before).order_by(_REFUSED.at)
            rows = (await session.execute(self._database.locked(oldest.limit(BATCH), skip=True))).all()
            by_tenant: dict[UUID, list[UUID]] = {}
            for row in rows:
                by_tenant.setdefault(row.tenant_id, []).append(row.request_id)
            for tenant_id, gone in by_tenant.items():
                mine = (_REFUSED.tenant_id == tenant_id, one_of(self._database, _REFUSED.request_id, gone))
                await session.execute(delete(refused_request).where(*mine))
        return len(rows)
