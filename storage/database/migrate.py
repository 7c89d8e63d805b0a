"""Runs Alembic migrations from within the program, and checks a database's schema."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from storage.database.database import Database, DatabaseUnavailable
from storage.reported_error import ReportedError

_LOCK = 7_233_104_871  # PostgreSQL's advisory lock: two processes that start together migrate one after the other


class SchemaMismatch(ReportedError):
    """The database's schema is not the one that this program needs."""

    def __init__(self, found: str | None, wanted: str) -> None:
        what = f"the database's schema is {found or 'empty'}, this program needs {wanted}"
        newer = "a newer program has migrated it: run that one, or restore the backup from before"
        super().__init__(f"{what}: {'run `turnpike migrate`' if found is None or known(found) else newer}")
        self.found = found
        self.wanted = wanted


def configuration() -> Config:
    """Alembic's configuration, found from the installed package `migrations`."""
    spec = find_spec("migrations")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the package `migrations` is not installed")
    config = Config()
    config.set_main_option("script_location", str(Path(next(iter(spec.submodule_search_locations)))).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def known(revision: str) -> bool:
    """Whether this program knows the revision. It does not know those of newer programs."""
    return revision in {script.revision for script in ScriptDirectory.from_config(configuration()).walk_revisions()}


def head() -> str:
    """The newest revision that this program knows."""
    revision = ScriptDirectory.from_config(configuration()).get_current_head()
    if revision is None:
        raise RuntimeError("there are no migrations")
    return revision


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    found = _current(connection)
    if found is not None and not known(found):
        raise SchemaMismatch(found, head())
    config = configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


async def upgrade(url: str) -> None:
    """Bring the database to the newest schema, in one transaction.

    Raises SchemaMismatch if it is newer than this program, InvalidDatabaseUrl, DatabaseUnavailable.
    """
    database = await Database.open(url)
    try:
        async with database.transaction() as session:
            await (await session.connection()).run_sync(_upgrade)
    finally:
        await database.close()


async def current(url: str) -> str | None:
    """The database's revision, None for an empty one. Raises InvalidDatabaseUrl, DatabaseUnavailable."""
    database = await Database.open(url)
    try:
        async with database.reading() as session:
            return await (await session.connection()).run_sync(_current)
    finally:
        await database.close()


async def check(url: str) -> None:
    """Raise SchemaMismatch unless the database is at `head()`."""
    found, wanted = await current(url), head()
    if found != wanted:
        raise SchemaMismatch(found, wanted)


__all__ = ["DatabaseUnavailable", "SchemaMismatch", "check", "configuration", "current", "head", "known", "upgrade"]
