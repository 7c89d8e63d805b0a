"""What a tenant is told of its top-ups by webhook."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from billing.integrity.canonical_json import canonical
from billing.money import format_minor
from storage.database.database import Database
from storage.database.outbox import write_to_outbox

GRANTED = "top_up.granted"
NEEDS_CUSTOMER = "top_up.needs_customer"
DECLINED = "top_up.declined"
PAUSED = "auto_top_up.paused"
DISPUTED = "payment.disputed"
TOPICS = (GRANTED, NEEDS_CUSTOMER, DECLINED, PAUSED, DISPUTED)


async def tell_of_top_up(database: Database, session: AsyncSession, topic: str, row: Any, **more: str) -> None:
    """Put a notice about a top-up into the outbox."""
    said = {"id": str(row.id), "kind": row.kind, "amount": format_minor(row.amount, row.currency)}
    said |= {"currency": row.currency, **more}
    await write_to_outbox(database, session, topic, row.tenant_id, canonical(said))
