"""The audit log among the checks of the books: who changed what has to be as safe as what was changed."""

from __future__ import annotations

from audit_log.verification import verify_log
from billing.verification.findings import AuditContext


async def check_audit_log(audit: AuditContext) -> None:
    """Every entry of the audit log says what it said, and none is missing or new."""
    for finding in await verify_log(audit.session, lambda read: audit.progress("audit entries", read, read + 1)):
        entry = "" if finding.number is None else f"entry {finding.number}: "
        audit.report(finding.what, finding.tenant_id, f"{entry}{finding.detail}")
