"""Reminders as rows: each level of an invoice once.

    queued ──▶ sending ──▶ sent
       ▲          ├──────▶ queued     the server did not take it now
       │          ├──────▶ refused    it never will, or there is no address: finance has a task
       │          └──────▶ unknown    nobody knows whether it was taken: finance has a task
       └─ by somebody, with a reason ─┘
    queued ──▶ canceled               it was paid meanwhile, or the tenant wants none

A row is claimed (`sending`) in a transaction of its own before anything is sent. One whose worker ended then is
`unknown`: it may have been sent, so it is not sent again by itself. A worker that was only slow sends nothing on a
claim that was given up, and changes nothing of it any more, but that the reminder was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.integrity.recorded_tables import PAYMENT_REMINDERS, REMINDER_POLICIES
from billing.invoices.errors import WrongState
from billing.payments.dunning.due import DueReminder, find_due, recipient_of
from billing.payments.dunning.mail import problem_of_recipient
from billing.payments.errors import UnknownPayment
from billing.payments.recording import change_recorded, insert_recorded
from billing.payments.tasks import add_task
from billing.tables.payments import payment_reminder, reminder_policy
from storage.database.base import new_id
from storage.database.database import Database
from storage.free_text import REASON, check_text

ReminderState = Literal["queued", "sending", "sent", "refused", "unknown", "canceled"]
CLAIMED_S = 900
"""A claim older than this is of a worker that ended."""
SENT_WITHIN_S = 450
"""Until this age of its claim a reminder is handed to the mail server, which takes a few minutes at most."""
_RETRY_S = 900
_ROW, _POLICY = payment_reminder.c, reminder_policy.c


class Reminder(msgspec.Struct, frozen=True):
    """A reminder. Instants in microseconds since the Unix epoch; `due_at`: not sent before."""

    id: UUID
    tenant_id: UUID
    invoice_id: UUID
    level: int
    state: ReminderState
    recipient: str
    subject: str
    problem: str
    attempts: int
    due_at: int
    sent_at: int | None
    created_at: int
    updated_at: int


_COLUMNS = [_ROW[name] for name in Reminder.__struct_fields__]


class Reminders:
    """Keeps reminders. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(
        self, *, limit: int, tenant_id: UUID | None = None, state: str | None = None, after: UUID | None = None
    ) -> list[Reminder]:
        """Reminders of a tenant or (None) of all, the newest first."""
        query = select(*_COLUMNS)
        for column, value in ((_ROW.tenant_id, tenant_id), (_ROW.state, state)):
            if value is not None:
                query = query.where(column == value)
        if after is not None:
            query = query.where(_ROW.id < after)
        async with self._database.reading() as session:
            return [Reminder(*row) for row in await session.execute(query.order_by(_ROW.id.desc()).limit(limit))]

    async def are_wanted(self, tenant_id: UUID) -> bool:
        """Whether a tenant is reminded: unless it opted out."""
        query = select(_POLICY.enabled).where(_POLICY.tenant_id == tenant_id)
        async with self._database.reading() as session:
            return await session.scalar(query) != 0

    async def want(self, tenant_id: UUID, reason: str, *, enabled: bool) -> None:
        """Set whether a tenant is reminded. Raises InvalidText."""
        check_text("reason", reason, REASON)
        values = {"enabled": int(enabled), "updated_at": self._database.clock}
        async with self._database.transaction() as session:
            await self._database.lock_rows_of(session, reminder_policy, tenant_id)
            query = select(_POLICY.enabled).where(_POLICY.tenant_id == tenant_id)
            if await session.scalar(query) is None:
                row = {"tenant_id": tenant_id, **values}
                await insert_recorded(session, REMINDER_POLICIES, "reminder_policy.set", row, reason)
            else:
                await change_recorded(session, REMINDER_POLICIES, "reminder_policy.set", tenant_id, values, reason)

    async def queue_due(self, days: Sequence[int]) -> int:
        """Queue what is due and was not yet; returns how many."""
        queued = 0
        for due in await find_due(self._database, days):
            queued += await self._queue(due)
        return queued

    async def _queue(self, due: DueReminder) -> bool:
        now = self._database.clock
        row: dict[str, Any] = {"id": new_id(), "tenant_id": due.tenant_id, "invoice_id": due.invoice_id}
        row |= {"level": due.level, "recipient": due.recipient, "subject": "", "attempts": 0, "due_at": 0}
        row |= {"state": "queued", "problem": "", "sent_at": None, "created_at": now, "updated_at": now}
        async with self._database.transaction() as session:
            await self._database.lock_rows_of(session, payment_reminder, due.invoice_id)
            same = (_ROW.tenant_id == due.tenant_id, _ROW.invoice_id == due.invoice_id, _ROW.level >= due.level)
            if await session.scalar(select(_ROW.id).where(*same).limit(1)) is not None:
                return False  # another worker was faster
            if problem := problem_of_recipient(due.recipient):
                row |= {"state": "refused", "problem": problem}
                await _tell(self._database, session, due.tenant_id, f"{due.number}: {row['problem']}", str(row["id"]))
            await insert_recorded(session, PAYMENT_REMINDERS, f"payment_reminder.{row['state']}", row)
        return True

    async def claim(self) -> Reminder | None:
        """Claim the next reminder that is to be sent now: from here on nobody else sends it."""
        async with self._database.transaction() as session:
            now = await self._database.now_in(session)
            # all tenants: the worker sends for all of them
            query = select(*_COLUMNS).where(_ROW.state == "queued", _ROW.due_at <= now).order_by(_ROW.id).limit(1)
            row = (await session.execute(self._database.locked(query, skip=True))).one_or_none()
            if row is None:
                return None
            values = {"state": "sending", "attempts": row.attempts + 1, "updated_at": now}
            await change_recorded(session, PAYMENT_REMINDERS, "payment_reminder.sending", row.id, values)
            return msgspec.structs.replace(Reminder(*row), state="sending", updated_at=now)

    async def may_send(self, reminder: Reminder) -> bool:
        """Whether a claim holds for as long as sending takes. One that is too old is given back, if it still holds."""
        async with self._database.transaction() as session:
            if not _is_claimed(await self._lock(session, reminder), reminder):
                return False
            if await self._database.now_in(session) - reminder.updated_at <= SENT_WITHIN_S * 1_000_000:
                return True
            await self._end(session, reminder, "queued", "it was prepared too late")
        return False

    async def _lock(self, session: AsyncSession, reminder: Reminder) -> Any:
        query = select(_ROW.state, _ROW.updated_at)
        query = query.where(_ROW.id == reminder.id, _ROW.tenant_id == reminder.tenant_id)
        return (await session.execute(self._database.locked(query))).one()

    async def give_up_claims(self) -> int:
        """Say of reminders whose worker ended while it sent them that nobody knows what became of them."""
        async with self._database.transaction() as session:
            before = await self._database.now_in(session) - CLAIMED_S * 1_000_000
            # all tenants: the worker looks after all of them
            query = select(*_COLUMNS).where(_ROW.state == "sending", _ROW.updated_at < before).limit(100)
            rows = (await session.execute(self._database.locked(query, skip=True))).all()
            for row in rows:
                await self._end(session, Reminder(*row), "unknown", "the worker ended while it was sent")
        return len(rows)

    async def end(self, reminder: Reminder, state: ReminderState, problem: str = "", subject: str = "") -> None:
        """Say what became of a claimed reminder. When its claim was given up meanwhile, another may have sent it, or
        may be about to: then it counts only that it was sent."""
        async with self._database.transaction() as session:
            row = await self._lock(session, reminder)
            if _is_claimed(row, reminder) or (state == "sent" and row.state in ("unknown", "queued")):
                await self._end(session, reminder, state, problem, subject)

    async def _end(
        self, session: AsyncSession, reminder: Reminder, state: ReminderState, problem: str = "", subject: str = ""
    ) -> None:
        now = self._database.clock
        values: dict[str, Any] = {"state": state, "problem": problem[:REASON], "updated_at": now}
        if subject:
            values["subject"] = subject
        if state == "sent":
            values["sent_at"] = now
        if state == "queued":
            values["due_at"] = now + _RETRY_S * 1_000_000
        if state in ("refused", "unknown"):
            text = f"reminder {reminder.level} to {reminder.recipient}: {problem}"
            await _tell(self._database, session, reminder.tenant_id, text, str(reminder.id))
        await change_recorded(session, PAYMENT_REMINDERS, f"payment_reminder.{state}", reminder.id, values)

    async def send_again(self, reminder_id: UUID, reason: str) -> Reminder:
        """Queue a reminder again that was refused, or of which nobody knows what became, to the address that the buyer
        has now. Raises UnknownPayment, WrongState, InvalidText."""
        check_text("reason", reason, REASON)
        async with self._database.transaction() as session:
            query = select(*_COLUMNS).where(_ROW.id == reminder_id)
            row = (await session.execute(self._database.locked(query))).one_or_none()
            if row is None:
                raise UnknownPayment("there is no such reminder")
            if row.state not in ("refused", "unknown"):
                raise WrongState("the reminder", row.state, "sent again")
            values = {"state": "queued", "problem": "", "due_at": 0, "attempts": 0, "updated_at": self._database.clock}
            values["recipient"] = await recipient_of(session, row.tenant_id)
            await change_recorded(session, PAYMENT_REMINDERS, "payment_reminder.queued", row.id, values, reason)
            return Reminder(*(await session.execute(query)).one())


def _is_claimed(row: Any, reminder: Reminder) -> bool:
    """Whether this very claim of a reminder still holds."""
    return bool(row.state == "sending" and row.updated_at == reminder.updated_at)


async def _tell(database: Database, session: AsyncSession, tenant_id: UUID, text: str, subject: str) -> None:
    await add_task(database, session, "reminder_failed", subject, text, tenant_id)
