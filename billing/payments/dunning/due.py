"""Which invoices are to be reminded of today, and at which level: the highest that was reached and not used yet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import msgspec
from sqlalchemy import and_, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.invoices.parties.parties import Buyer
from billing.tables.invoices import billing_profile, invoice
from billing.tables.payments import payment_reminder, reminder_policy
from storage.database.database import Database

_INVOICE, _REMINDER, _POLICY = invoice.c, payment_reminder.c, reminder_policy.c
MOST_AT_ONCE = 100
DEFAULT_DAYS = (3, 14, 30)
"""Days after the due date at which the levels begin."""
MOST_LEVELS = 9


class DueReminder(msgspec.Struct, frozen=True):
    """An invoice that is to be reminded of. `left` in minor units."""

    tenant_id: UUID
    invoice_id: UUID
    number: str
    level: int
    recipient: str
    currency: str
    left: int
    due: str


def parse_days(text: str) -> tuple[int, ...]:
    """Days such as `3,14,30`, rising; none for an empty text. Raises ValueError."""
    days = tuple(int(part) for part in text.split(",")) if text.strip() else ()
    if any(not 0 < day <= 365 for day in days) or list(days) != sorted(set(days)) or len(days) > MOST_LEVELS:
        raise ValueError(f"{text!r} is not up to {MOST_LEVELS} rising numbers of days from 1 to 365, such as 3,14,30")
    return days


async def find_due(database: Database, days: Sequence[int], *, limit: int = MOST_AT_ONCE) -> list[DueReminder]:
    """The reminders that are due, the oldest invoices first; none of tenants that want none."""
    today = datetime.fromtimestamp(await database.now() // 1_000_000, UTC).date()
    used = func.coalesce(
        select(func.max(_REMINDER.level))
        .where(_REMINDER.invoice_id == _INVOICE.id)
        .correlate(invoice)
        .scalar_subquery(),
        0,
    )
    reached = [
        and_(used < level, _INVOICE.due <= (today - timedelta(days=after)).isoformat())
        for level, after in enumerate(days, 1)
    ]
    if not reached:
        return []
    left = _INVOICE.payable - _INVOICE.paid - _INVOICE.credited
    opted_out = exists().where(_POLICY.tenant_id == _INVOICE.tenant_id, _POLICY.enabled == 0)
    shown = (_INVOICE.tenant_id, _INVOICE.id, _INVOICE.number, _INVOICE.currency, left, _INVOICE.due)
    query = select(*shown, billing_profile.c.profile)
    query = query.join(billing_profile, billing_profile.c.tenant_id == _INVOICE.tenant_id)
    is_open = (_INVOICE.kind == "invoice", _INVOICE.state.in_(("finalized", "partially_paid")), left > 0)
    query = query.where(*is_open, or_(*reached), ~opted_out).order_by(_INVOICE.due, _INVOICE.id).limit(limit)
    async with database.reading() as session:  # all tenants: whoever has not paid
        rows = (await session.execute(query)).all()
    return [
        DueReminder(tenant_id, invoice_id, number, _level(due, days, today), _email(profile), currency, amount, due)
        for tenant_id, invoice_id, number, currency, amount, due, profile in rows
    ]


async def recipient_of(session: AsyncSession, tenant_id: UUID) -> str:
    """To whom a tenant's reminders go; empty if it gave no address."""
    query = select(billing_profile.c.profile).where(billing_profile.c.tenant_id == tenant_id)
    profile = await session.scalar(query)
    return "" if profile is None else _email(profile)


def _level(due: str, days: Sequence[int], today: date) -> int:
    overdue = (today - date.fromisoformat(due)).days
    return sum(1 for after in days if overdue >= after)


def _email(profile: str) -> str:
    return msgspec.json.decode(profile, type=Buyer).email
