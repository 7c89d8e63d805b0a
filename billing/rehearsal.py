"""A transaction that can be a rehearsal: everything is done and checked, and then taken back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncSession

from storage.database import Database


@asynccontextmanager
async def transaction(database: Database, *, write: bool) -> AsyncIterator[AsyncSession]:
    """Commits at the end, or rolls back if nothing shall be written. Raises DatabaseUnavailable."""
    async with database.transaction() as session:
        yield session
        if not write:
            await session.rollback()
