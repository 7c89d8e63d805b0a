"""What requests of one instant cost: those of a batch, whose ids all have the time of the batch's."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import func, select

from billing.tables.money import usage_event
from storage.database.database import Database

_RANDOM_BITS = 80
"""Of a UUIDv7, behind its milliseconds."""


async def costs_of_batch(database: Database, tenant_id: UUID, project_id: UUID, batch_id: UUID) -> dict[int, int]:
    """What the books have of a project's requests on the batch lane whose ids have a batch's time: pico-units by the
    version of the prices, corrections included. Raises DatabaseUnavailable."""
    event = usage_event.c
    first = batch_id.int >> _RANDOM_BITS << _RANDOM_BITS
    last = first | (1 << _RANDOM_BITS) - 1
    own = (event.tenant_id == tenant_id, event.project_id == project_id, event.lane == "batch")
    span = (event.id >= UUID(int=first), event.id <= UUID(int=last))
    query = select(event.price_version, func.sum(event.cost_pico)).where(*own, *span).group_by(event.price_version)
    async with database.reading() as session:
        return {version: int(pico) for version, pico in await session.execute(query)}
