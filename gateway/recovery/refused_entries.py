"""Journals' entries that make no sense: kept for a person, so that the journal may forget them and their holds end."""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from billing.holds.records import Hold
from billing.settlement.settlement import JournalEntry, refuse_entry
from protocol.requests import Done
from storage.database.database import Database, DatabaseUnavailable

log = structlog.get_logger("gateway.recovery.refused_entries")

_PAUSE_S = 1.0


class RefusedEntries:
    """`count`: how many this worker has refused since it was started."""

    def __init__(self, database: Database) -> None:
        self.count = 0
        self._database = database

    async def keep(self, done: Done, replica: str, cause: Exception, hold: Hold | None = None) -> None:
        """Keep the entry in the database, however long that is away, and give back this hold of its request. Only after
        that may the entry be acknowledged."""
        entry = JournalEntry(replica, done.sequence, done.id, msgspec.msgpack.encode(done))
        why = f"{type(cause).__name__}: {cause}"
        holds = {} if hold is None else {hold.request_id: hold.batch}
        while True:
            try:
                await refuse_entry(self._database, entry, why, holds)
                break
            except DatabaseUnavailable:
                await asyncio.sleep(_PAUSE_S)
        self.count += 1
        log.error(
            "a journal's entry makes no sense and is kept aside; nothing is billed for it",
            request_id=done.id,
            replica=replica,
            sequence=done.sequence,
            cause=why,
        )
