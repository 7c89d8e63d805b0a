"""What usage events say of the leases that their requests wrote."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.tables.money import usage_event
from billing.usage import LEASE_CLASSES
from storage.database.database import Database
from storage.database.sql_arrays import one_of

_OWNER = ("tenant_id", "project_id", "model", "admitted_at")


class PaidPrompt(msgspec.Struct, frozen=True):
    """What a request paid for its prompt. Its first tokens were `read`, by whatever lease. `written` are those after
    them by class, the longest-lived class first."""

    tenant_id: UUID
    project_id: UUID
    model: str
    admitted_at: int
    read: int
    written: dict[str, int]

    def paid_class(self, tokens: int) -> str | None:
        """The class by which the last of the prompt's first `tokens` tokens was written; None if it was not."""
        end = self.read
        for name, written in self.written.items() if tokens > end else ():
            end += written
            if tokens <= end:
                return name
        return None


async def read_paid_prompts(
    database: Database, session: AsyncSession, requests: Collection[UUID]
) -> dict[UUID, PaidPrompt]:
    """What those of these requests paid that have a usage event."""
    fact = usage_event.c
    reads, writes = ([fact[f"{kind}_{name}"] for name in LEASE_CLASSES] for kind in ("read", "write"))
    # all tenants: an audit checks the whole installation
    query = select(fact.id, *(fact[name] for name in _OWNER), *reads, *writes)
    prompts = {}
    for row in await session.execute(query.where(one_of(database, fact.id, requests))):
        said = row._mapping
        written = {name: int(said[f"write_{name}"]) for name in reversed(LEASE_CLASSES)}
        read = sum(int(said[f"read_{name}"]) for name in LEASE_CLASSES)
        prompts[row.id] = PaidPrompt(row.tenant_id, row.project_id, row.model, row.admitted_at, read, written)
    return prompts
