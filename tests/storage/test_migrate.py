"""The migrations lead to what the tables say, on both databases."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect

import billing.tables
import gateway.tenancy.tables
from storage import migrate
from storage.base import Base
from storage.database import Database

ROOMS = (billing.tables, gateway.tenancy.tables)


def _differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    return list(compare_metadata(context, Base.metadata))


def _checks(connection: Connection) -> dict[str, set[str | None]]:
    inspector = inspect(connection)
    return {t: {c["name"] for c in inspector.get_check_constraints(t)} for t in Base.metadata.tables}


async def test_migrations_make_the_tables_of_the_metadata(database: Database) -> None:
    async with database.reading() as session:
        connection = await session.connection()
        assert await connection.run_sync(_differences) == []
        found = await connection.run_sync(_checks)
    for name, table in Base.metadata.tables.items():
        wanted = {str(c.name) for c in table.constraints if type(c).__name__ == "CheckConstraint"}
        assert found[name] == wanted


async def test_an_empty_database_is_told_from_a_migrated_one(tmp_path: Path, empty_postgres_url: str) -> None:
    for url in (f"sqlite:///{tmp_path}/new.sqlite", empty_postgres_url):
        assert await migrate.current(url) is None
        with pytest.raises(migrate.SchemaMismatch, match="empty"):
            await migrate.check(url)
        await migrate.upgrade(url)
        await migrate.upgrade(url)
        assert await migrate.current(url) == migrate.head()
        await migrate.check(url)
