"""A process such as the command line: suspends a tenant in the database, with a bus that reaches nobody."""

from __future__ import annotations

import asyncio
import sys
from uuid import UUID

from audit_log.actors import Actor, become
from storage.bus import LocalBus
from storage.database.database import Database
from tenancy.administration.suspension import Suspensions


async def main(url: str, tenant_id: str) -> None:
    become(Actor("command", "root@host", "root@host"))
    database = await Database.open(url)
    await Suspensions(database, LocalBus()).suspend(UUID(tenant_id), running="end", reason="fraud")
    await database.close()
    print("suspended", flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
