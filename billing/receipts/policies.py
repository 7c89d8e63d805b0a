"""Which projects get a receipt with every answer. Without a policy an answer has one if its request asks for it."""

from __future__ import annotations

import time
from uuid import UUID

from sqlalchemy import select

from audit_log.record import record_change
from audit_log.recorded_rows import digest_row
from billing.integrity.recorded_tables import RECEIPT_POLICIES
from billing.tables.receipts import receipt_policy
from storage.database.database import Database

_FRESH_S = 5
_REMEMBERED = 10_000


class ReceiptPolicies:
    """The policies of all projects. What a gateway knows of them is a few seconds old at most."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._remembered: dict[UUID, tuple[int, bool]] = {}

    async def always(self, tenant_id: UUID, project_id: UUID, *, fresh: bool = False) -> bool:
        """Whether every answer of the project has a receipt. Raises DatabaseUnavailable."""
        remembered = self._remembered.get(project_id)
        if remembered is not None and not fresh and time.monotonic_ns() - remembered[0] < _FRESH_S * 1_000_000_000:
            return remembered[1]
        mine = (receipt_policy.c.project_id == project_id, receipt_policy.c.tenant_id == tenant_id)
        async with self._database.reading() as session:
            always = bool(await session.scalar(select(receipt_policy.c.always).where(*mine)))
        if len(self._remembered) >= _REMEMBERED:
            self._remembered.clear()
        self._remembered[project_id] = (time.monotonic_ns(), always)
        return always

    def last_known(self, project_id: UUID) -> bool:
        """What was known of the project last; False if nothing was: for when the database is away."""
        remembered = self._remembered.get(project_id)
        return remembered is not None and remembered[1]

    async def set(self, tenant_id: UUID, project_id: UUID, *, always: bool, reason: str = "") -> None:
        """Set a project's policy. Raises DatabaseUnavailable."""
        mine = (receipt_policy.c.project_id == project_id, receipt_policy.c.tenant_id == tenant_id)
        async with self._database.transaction() as session:
            before = await session.scalar(self._database.locked(select(receipt_policy.c.always).where(*mine)))
            values = {"always": int(always), "changed_at": await self._database.now_in(session)}
            new = self._database.insert(receipt_policy).values(project_id=project_id, tenant_id=tenant_id, **values)
            await session.execute(new.on_conflict_do_update(index_elements=["project_id"], set_=values))
            await record_change(session, "receipt_policy.set", target="receipt_policy", target_id=project_id,
                                tenant_id=tenant_id, project_id=project_id, reason=reason,
                                before=None if before is None else {"always": bool(before)},
                                after={"always": always},
                                row_sha256=await digest_row(session, RECEIPT_POLICIES, project_id))  # fmt: skip
        self._remembered.pop(project_id, None)
