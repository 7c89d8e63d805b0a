"""What operators do to replicas: it stands in no table, and is recorded all the same."""

from __future__ import annotations

from audit_log.record import record_change
from storage.database.database import Database
from storage.free_text import REASON, check_text


async def record_drain(database: Database, replica: str, *, before: bool, drain: bool, reason: str = "") -> None:
    """Record that the current actor drains a replica, or lets it take requests again. `before`: whether it was being
    drained. Raises InvalidText, DatabaseUnavailable."""
    check_text("reason", reason, REASON, empty=True)
    async with database.transaction() as session:
        await record_change(
            session,
            "replica.drained" if drain else "replica.resumed",
            target="replica",
            target_id=replica,
            reason=reason,
            before={"draining": before},
            after={"draining": drain},
        )
