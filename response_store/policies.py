"""What projects keep of their responses, and whether people may read it: by default nobody may."""

from __future__ import annotations

import time
from uuid import UUID

from msgspec import UNSET, Struct, UnsetType
from sqlalchemy import select

from audit_log.record import record_change
from response_store.tables import response_policy
from storage.database.database import Database

LONGEST_S = 400 * 86_400
_FRESH_S = 5.0
_REMEMBERED = 10_000


class ResponsePolicy(Struct, frozen=True):
    """`retention_s`: how long a project's responses are kept, 0: never, None: as the setting says."""

    retention_s: int | None = None
    readable: bool = False


class ResponsePolicies:
    """The policies of all projects. What a gateway knows of them is a few seconds old at most."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[UUID, tuple[float, ResponsePolicy]] = {}

    async def get(self, tenant_id: UUID, project_id: UUID, *, fresh: bool = False) -> ResponsePolicy:
        """A project's policy. Raises DatabaseUnavailable."""
        cached = self._known.get(project_id)
        if cached is not None and not fresh and time.monotonic() - cached[0] < _FRESH_S:
            return cached[1]
        column = response_policy.c
        query = select(column.retention_s, column.readable).where(
            column.project_id == project_id, column.tenant_id == tenant_id
        )
        async with self._database.reading() as session:
            row = (await session.execute(query)).one_or_none()
        policy = ResponsePolicy() if row is None else ResponsePolicy(row.retention_s, bool(row.readable))
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[project_id] = (time.monotonic(), policy)
        return policy

    async def set(
        self,
        tenant_id: UUID,
        project_id: UUID,
        *,
        retention_s: int | UnsetType | None = UNSET,
        readable: bool | UnsetType = UNSET,
        reason: str = "",
    ) -> ResponsePolicy:
        """Change a project's policy; what is UNSET stays. Raises DatabaseUnavailable."""
        column = response_policy.c
        async with self._database.transaction() as session:
            query = select(column.retention_s, column.readable).where(
                column.project_id == project_id, column.tenant_id == tenant_id
            )
            row = (await session.execute(self._database.locked(query))).one_or_none()
            before = ResponsePolicy() if row is None else ResponsePolicy(row.retention_s, bool(row.readable))
            after = ResponsePolicy(
                before.retention_s if isinstance(retention_s, UnsetType) else retention_s,
                before.readable if isinstance(readable, UnsetType) else readable,
            )
            values = {
                "retention_s": after.retention_s,
                "readable": int(after.readable),
                "changed_at": await self._database.now_in(session),
            }
            new = self._database.insert(response_policy).values(project_id=project_id, tenant_id=tenant_id, **values)
            given = {"retention_s": retention_s, "readable": readable}  # another's change at once of the other stays
            changed = {name: value for name, value in values.items() if given.get(name) is not UNSET}
            await session.execute(new.on_conflict_do_update(index_elements=["project_id"], set_=changed))
            await record_change(session, "response_policy.set", target="project", target_id=project_id,
                                tenant_id=tenant_id, project_id=project_id, reason=reason,
                                before=before, after=after)  # fmt: skip
        self._known.pop(project_id, None)
        return after
