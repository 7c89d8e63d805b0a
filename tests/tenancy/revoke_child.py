"""A process such as the command line: revokes a key in the database, with a bus that reaches nobody."""

from __future__ import annotations

import asyncio
import sys

from audit_log.actors import Actor, become
from storage.bus import LocalBus
from storage.database.database import Database
from tenancy.keys import Peppers
from tenancy.repositories import Tenancy


async def main(url: str, public_id: str) -> None:
    become(Actor("command", "root@host", "root@host"))
    database = await Database.open(url)
    await Tenancy(database, Peppers({1: b"x" * 16}, 1), LocalBus()).revoke(public_id)
    await database.close()
    print("revoked", flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
