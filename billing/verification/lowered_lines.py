"""Which credit line a tenant's debt was begun under: a line that was lowered since leaves a debt that nobody did wrong.

What is owed now was admitted after the tenant had last owed nothing, under a line that was in force since then.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import func, select

from audit_log.tables import audit_entry
from billing.tables.money import hold_batch, ledger_entry, ledger_txn
from billing.verification.findings import AuditContext

_LONGEST_RUN_US = 2 * 86_400 * 1_000_000
"""A request runs for a day at most, and is settled soon after: it was admitted no longer than this before."""


class _Limit(msgspec.Struct):
    limit: str
    """As `format_pico` writes it: with all twelve places."""


async def highest_line_of_debt(audit: AuditContext, row: Any) -> int:
    """The highest credit line, in pico-units, under which what the tenant of this balance owes may have been begun."""
    since = await debt_began(audit, row)
    if since is None:
        return int(row.credit_line)
    of = audit_entry.c
    changes = select(of.before, of.after).where(
        of.tenant_id == row.tenant_id, of.at >= since, of.action == "credit_line.set"
    )
    texts = [text for change in await audit.session.execute(changes) for text in change if text is not None]
    limits = [msgspec.json.decode(text, type=_Limit).limit for text in texts]
    return max([int(row.credit_line), *(int(limit.replace(".", "")) for limit in limits)])


async def debt_began(audit: AuditContext, row: Any) -> int | None:
    """Since when the tenant has owed something, or holds have been open; None if neither is so."""
    batch = hold_batch.c
    oldest = select(func.min(batch.admitted_at)).where(batch.tenant_id == row.tenant_id)
    began: list[int] = [at for at in await audit.session.scalars(oldest) if at is not None]
    if row.receivable:
        entry, txn = ledger_entry.c, ledger_txn.c
        owed, left_zero = 0, 0
        query = (
            select(txn.posted_at, entry.debit, entry.amount_pico)
            .join_from(ledger_txn, ledger_entry, entry.txn_id == txn.id)
            .where(txn.tenant_id == row.tenant_id, (entry.debit == "receivable") | (entry.credit == "receivable"))
            .order_by(txn.posted_at, txn.id, entry.seq)
        )
        async for at, debit, amount in await audit.session.stream(query):
            if not owed:
                left_zero = at
            owed += amount if debit == "receivable" else -amount
        began.append(left_zero - _LONGEST_RUN_US)
    return min(began, default=None)
