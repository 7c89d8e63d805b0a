"""Brings a database to the schema that this program needs, and checks that it has it.

Alembic is imported only where there is something to migrate: otherwise every process and command would do so.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from storage.database.database import LONG_STATEMENT_S, Database, DatabaseUnavailable
from storage.reported_error import ReportedError

if TYPE_CHECKING:
    from alembic.config import Config

_LOCK = 7_233_104_871  # PostgreSQL's advisory lock: two processes that start together migrate one after the other


class SchemaMismatch(ReportedError):
    """The database's schema is not the one that this program needs."""

    def __init__(self, found: str | None, wanted: str) -> None:
        what = f"the database's schema is {found or 'empty'}, this program needs {wanted}"
        newer = "a newer program has migrated it: run that one, or restore the backup from before"
        super().__init__(f"{what}: {'run `turnpike migrate`' if found is None or known(found) else newer}")
        self.found = found
        self.wanted = wanted


def _folder() -> Path:
    """The installed package `migrations`."""
    spec = find_spec("migrations")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the package `migrations` is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


@functools.cache
def revisions() -> tuple[str, ...]:
    """All revisions that this program knows, the first first, by the names of their files: a revision and what it does,
    as in `r0007_holds.py`."""
    found = sorted(path.stem.partition("_")[0] for path in (_folder() / "versions").glob("r*.py"))
    if not found:
        raise RuntimeError("there are no migrations")
    return tuple(found)


def known(revision: str) -> bool:
    """Whether this program knows the revision. It does not know those of newer programs."""
    return revision in revisions()


def head() -> str:
    """The newest revision that this program knows."""
    return revisions()[-1]


def configuration() -> Config:
    """Alembic's configuration."""
    from alembic.config import Config  # noqa: PLC0415  # see the module's first lines

    config = Config()
    config.set_main_option("script_location", str(_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _upgrade(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415  # see the module's first lines

    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    found = _revision(connection)
    if found is not None and not known(found):
        raise SchemaMismatch(found, head())
    config = configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return revision


async def upgrade(url: str) -> None:
    """Bring the database to the newest schema, in one transaction.

    Raises SchemaMismatch if it is newer than this program, InvalidDatabaseUrl, DatabaseUnavailable.
    """
    database = await Database.open(url, statement_s=LONG_STATEMENT_S)
    try:
        if await _current(database) == head():
            return
        async with database.transaction() as session:
            await (await session.connection()).run_sync(_upgrade)
    finally:
        await database.close()


async def current(url: str) -> str | None:
    """The database's revision, None for an empty one. Raises InvalidDatabaseUrl, DatabaseUnavailable."""
    database = await Database.open(url)
    try:
        return await _current(database)
    finally:
        await database.close()


async def _current(database: Database) -> str | None:
    async with database.reading() as session:
        return await (await session.connection()).run_sync(_revision)


async def check(url: str) -> None:
    """Raise SchemaMismatch unless the database is at `head()`."""
    found, wanted = await current(url), head()
    if found != wanted:
        raise SchemaMismatch(found, wanted)


__all__ = [
    "DatabaseUnavailable",
    "SchemaMismatch",
    "check",
    "configuration",
    "current",
    "head",
    "known",
    "revisions",
    "upgrade",
]
