"""What somebody in finance has to look at: one open task about a thing of a kind, closed by whoever has seen to it."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.integrity.recorded_tables import FINANCE_TASKS
from billing.invoices.errors import WrongState
from billing.payments.errors import UnknownPayment
from billing.payments.recording import change_recorded, insert_recorded
from billing.tables.payments import finance_task
from storage.database.base import new_id
from storage.database.database import Database
from storage.free_text import REASON, check_text

TaskKind = Literal[
    "document_differs", "document_refused", "changed_by_hand", "unmatched_money", "dispute", "refund_failed",
    "top_up_paused", "invoice_overdue", "payment_failed", "unreconciled", "unknown_object", "reminder_failed",
]  # fmt: skip
_TASK = finance_task.c


class FinanceTask(msgspec.Struct, frozen=True):
    """A task. Instants are microseconds since the Unix epoch."""

    id: UUID
    kind: TaskKind
    subject: str
    tenant_id: UUID | None
    text: str
    state: str
    created_at: int
    closed_at: int | None


_COLUMNS = [_TASK[name] for name in FinanceTask.__struct_fields__]


async def add_task(  # noqa: PLR0917
    database: Database, session: AsyncSession, kind: TaskKind, subject: str, said: str, tenant_id: UUID | None = None
) -> None:
    """Add a task in this transaction, unless one about the same is open."""
    same = (_TASK.kind == kind, _TASK.subject == subject, _TASK.state == "open")
    # all tenants: the subject is one's own
    await database.lock_rows_of(session, finance_task, UUID(int=0))
    if await session.scalar(select(_TASK.id).where(*same)) is not None:
        return
    row: dict[str, Any] = {
        "id": new_id(),
        "kind": kind,
        "subject": subject,
        "tenant_id": tenant_id,
        "text": said[:REASON],
    }
    row |= {"state": "open", "created_at": database.clock, "closed_at": None}
    await insert_recorded(session, FINANCE_TASKS, "finance_task.created", row)


class FinanceTasks:
    """Shows and closes tasks. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, *, limit: int, state: str | None = "open", after: UUID | None = None) -> list[FinanceTask]:
        """Tasks of all tenants, the newest first."""
        query = select(*_COLUMNS)
        if state is not None:
            query = query.where(_TASK.state == state)
        if after is not None:
            query = query.where(_TASK.id < after)
        async with self._database.reading() as session:  # all tenants: finance looks after all
            return [FinanceTask(*row) for row in await session.execute(query.order_by(_TASK.id.desc()).limit(limit))]

    async def close(self, task_id: UUID, reason: str) -> FinanceTask:
        """Say that a task is seen to. Raises UnknownPayment, WrongState, InvalidText."""
        check_text("reason", reason, REASON)
        async with self._database.transaction() as session:
            query = self._database.locked(select(*_COLUMNS).where(_TASK.id == task_id))
            found = (await session.execute(query)).one_or_none()
            if found is None:
                raise UnknownPayment("there is no such task")
            if found.state != "open":
                raise WrongState("the task", found.state, "closed")
            values = {"state": "done", "closed_at": self._database.clock}
            await change_recorded(session, FINANCE_TASKS, "finance_task.closed", task_id, values, reason)
            return FinanceTask(*(await session.execute(query)).one())
