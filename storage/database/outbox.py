"""The outbox: messages for others, written in the transaction of the change that they report.

The change and its message commit together or not at all (the transactional outbox pattern). A room writes messages;
`webhooks.dispatch` reads them, makes deliveries of them and marks them as sent.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Column, Index, Table, Text, insert, text
from sqlalchemy.ext.asyncio import AsyncSession

from storage.database.base import STRICT, Base, Count, Id, new_id
from storage.database.database import Database

outbox = Table(
    "outbox",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("topic", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("created_at", Count, nullable=False),
    Column("sent_at", Count, nullable=True),
    Index("ix_outbox_unsent", "id", sqlite_where=text("sent_at IS NULL"), postgresql_where=text("sent_at IS NULL")),
    **STRICT,
)
"""`payload` is JSON. `sent_at` is NULL until deliveries were made of the message."""


async def write_to_outbox(database: Database, session: AsyncSession, topic: str, tenant_id: UUID, payload: str) -> None:
    """Add a message to the session's transaction. `payload` is JSON."""
    row = {"id": new_id(), "tenant_id": tenant_id, "topic": topic, "payload": payload, "created_at": database.clock}
    await session.execute(insert(outbox).values(row))
