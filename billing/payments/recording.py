"""Writes rows of payments with an entry in the audit log that says what each is afterwards.

So an audit names a row that was altered beside the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from audit_log.recorded_rows import RecordedTable, digest_row

_SAID = (
    *("state", "amount", "currency", "provider_id", "payment_id", "code", "problem", "reason", "purpose", "url"),
    *("collection", "method_text", "moved", "kind", "text", "failures", "level", "recipient", "enabled"),
)
"""Columns that entries show."""


async def insert_recorded(
    session: AsyncSession, recorded: RecordedTable, action: str, row: Mapping[str, Any], reason: str = ""
) -> None:
    """Write a new row, and record it."""
    await session.execute(insert(recorded.table).values(row))
    await _record(session, recorded, action, row[recorded.key.name], None, reason)


async def change_recorded(  # noqa: PLR0917
    session: AsyncSession, recorded: RecordedTable, action: str, key: UUID, changes: Mapping[str, Any], reason: str = ""
) -> None:
    """Change a row, and record it."""
    # tenant: whoever has the row's id has asked for it in its tenant
    before = await _row(session, recorded, key)
    await session.execute(update(recorded.table).where(recorded.key == key).values(changes))
    await _record(session, recorded, action, key, before, reason)


async def _row(session: AsyncSession, recorded: RecordedTable, key: UUID) -> Mapping[Any, Any]:
    return (await session.execute(select(recorded.table).where(recorded.key == key))).mappings().one()


async def _record(  # noqa: PLR0917
    session: AsyncSession,
    recorded: RecordedTable,
    action: str,
    key: UUID,
    before: Mapping[Any, Any] | None,
    reason: str,
) -> None:
    after = await _row(session, recorded, key)
    await record_change(
        session,
        action,
        target=recorded.target,
        target_id=key,
        tenant_id=after.get("tenant_id"),
        reason=reason,
        before=None if before is None else _said(before),
        after=_said(after),
        row_sha256=await digest_row(session, recorded, key),
    )


def _said(row: Mapping[Any, Any]) -> dict[str, str]:
    return {name: str(row[name]) for name in _SAID if name in row and row[name] not in (None, "")}
