"""What a database says of itself: its version, and settings on which durability depends."""

from __future__ import annotations

from msgspec import Struct
from sqlalchemy import text

from storage.database.database import Database

_DURABLE = ("fsync", "full_page_writes", "synchronous_commit")


class ServerFacts(Struct, frozen=True):
    """`version` as numbers; `not_durable`: settings under which what was committed can be lost; `connections`: how many
    it allows, None for an embedded database. `now`: its clock, in microseconds since the Unix epoch."""

    product: str
    version: tuple[int, ...]
    now: int
    not_durable: tuple[str, ...] = ()
    connections: int | None = None


async def server_facts(database: Database) -> ServerFacts:
    """Ask it. Raises DatabaseUnavailable."""
    async with database.reading() as session:
        now = await database.now_in(session)
        if database.dialect == "sqlite":
            version = str(await session.scalar(text("SELECT sqlite_version()")))
            return ServerFacts("SQLite", _numbers(version), now)
        rows = await session.execute(text("SELECT name, setting FROM pg_settings"))
        said = {str(name): str(setting) for name, setting in rows}
        off = tuple(name for name in _DURABLE if said[name] == "off")
        return ServerFacts("PostgreSQL", _numbers(said["server_version"]), now, off, int(said["max_connections"]))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(maxsplit=1)[0].split(".") if part.isdigit())
