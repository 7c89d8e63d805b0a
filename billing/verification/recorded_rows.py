"""Checks of rows whose every change is in the audit log: each is as its last entry says, none is missing or new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select

from audit_log.recorded_rows import LastDigests, RecordedTable
from audit_log.verification import verify_log
from billing.integrity.recorded_tables import CHANGES, RECORDED_TABLES
from billing.verification.findings import AuditContext

_CHUNK = 1000
_NOBODY = UUID(int=0)


class _Decisions:
    """Compares what was decided with what was proposed, as the log says both."""

    def __init__(self, audit: AuditContext) -> None:
        self._audit = audit
        self._proposed: dict[str, str | None] = {}

    def observe(self, entry: Mapping[Any, Any]) -> None:
        if entry["target"] != CHANGES.target:
            return
        after = msgspec.json.decode(entry["after"] or "{}")
        arguments = after.get("arguments_sha256")
        if entry["action"] in ("change.proposed", "change.recorded"):
            self._proposed[entry["target_id"]] = arguments
        elif (proposed := self._proposed.pop(entry["target_id"], None)) is not None and proposed != arguments:
            what = "a change was decided that is not what was proposed"
            detail = f"{entry['target_id']}: {after.get('summary')} was {after.get('state')}"
            self._audit.report(what, entry["tenant_id"], detail)


async def check_audit_log(audit: AuditContext) -> None:
    """Every entry of the audit log says what it said, none is missing or new, and rows are what it says of them."""
    digests, decisions = LastDigests(RECORDED_TABLES), _Decisions(audit)

    def observe(entry: Mapping[Any, Any]) -> None:
        digests.replay(entry)
        decisions.observe(entry)

    def progress(read: int) -> None:
        audit.progress("audit entries", read, read + 1)

    for finding in await verify_log(audit.session, progress, observe=observe):
        where = "" if finding.number is None else f"entry {finding.number}: "
        audit.report(finding.what, finding.tenant_id, f"{where}{finding.detail}")
    for recorded in RECORDED_TABLES:
        await _compare(audit, recorded, digests)
    for target_id, tenant, number in digests.remaining():
        audit.report("a recorded row is missing", tenant, f"{target_id}, which entry {number} tells of")


async def _compare(audit: AuditContext, recorded: RecordedTable, digests: LastDigests) -> None:
    """Compare a table's rows with their last digests."""
    # all tenants: an audit checks the whole installation
    needed = recorded.recorded.label("needs_an_entry")
    stream = await audit.session.stream(select(recorded.table, needed).execution_options(yield_per=_CHUNK))
    async for row in stream.mappings():
        target_id = recorded.target_id(row)
        digest = digests.take(recorded.target, target_id)
        subject = row.get("tenant_id") or _NOBODY
        if digest is not None and not recorded.agrees(row, digest):
            audit.report("a row is not what was recorded", subject, f"{recorded.table.name} {target_id}")
        elif digest is None and row[needed]:
            audit.report("a row was never recorded", subject, f"{recorded.table.name} {target_id}")
