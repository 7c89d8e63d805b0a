"""The money audit (`turnpike audit money`): a list of checks, run in one snapshot of the database.

A check is a function that reports findings to an `AuditContext`. A new store of money adds its check here.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

import msgspec
from sqlalchemy import and_, func, or_, select

from billing.calendar import check_period
from billing.prices import PriceCatalog
from billing.tables.money import usage_event
from billing.usage import COUNTS
from billing.verification.advances import check_advances
from billing.verification.balances import check_balances, check_holds
from billing.verification.budgets import check_budgets
from billing.verification.chain import check_chain
from billing.verification.contracts import check_commitments, check_deferred, check_discounts
from billing.verification.einvoices import check_einvoices
from billing.verification.events import check_costs, check_refused, check_sequences
from billing.verification.findings import AuditContext, Finding, Progress
from billing.verification.hourly_meters import check_hourly_meters
from billing.verification.invoices import check_invoiced, check_invoices
from billing.verification.ledger import check_ledger, check_rollups
from billing.verification.receipts import check_receipts
from billing.verification.recorded_rows import check_audit_log
from billing.verification.seals import check_seals
from storage.database.database import Database

Check = Callable[[AuditContext], Awaitable[None]]

OF_A_PERIOD: tuple[Check, ...] = (
    check_costs,
    check_chain,
    check_rollups,
    check_ledger,
    check_sequences,
    check_invoiced,
    check_hourly_meters,
    check_receipts,
)
"""Checks that can run on one billing period alone."""

OF_ALL: tuple[Check, ...] = (
    check_refused,
    check_seals,
    *OF_A_PERIOD,
    check_balances,
    check_holds,
    check_budgets,
    check_invoices,
    check_einvoices,
    check_advances,
    check_commitments,
    check_discounts,
    check_deferred,
    check_audit_log,
)

__all__ = ["OF_ALL", "OF_A_PERIOD", "Finding", "ReplicaCounts", "audit_money", "counts_by_replica"]


async def audit_money(database: Database, period: str | None = None, progress: Progress | None = None) -> list[Finding]:
    """Run all checks, or those of one billing period; return the findings. Running requests cause none.

    Raises DatabaseUnavailable, InvalidPeriod.
    """
    async with database.reading() as session:
        context = AuditContext(database, session, PriceCatalog(database), period and check_period(period))
        if progress is not None:
            context.progress = progress
        for check in OF_ALL if period is None else OF_A_PERIOD:
            try:
                await check(context)
            except (ValueError, LookupError, ArithmeticError, struct.error, msgspec.MsgspecError) as error:
                context.report("the books cannot be read", UUID(int=0), f"{check.__name__}: {error}")
    return context.findings


class ReplicaCounts(msgspec.Struct, frozen=True):
    """Sums over the events of one replica's requests."""

    replica: str
    requests: int
    counts: dict[str, int]


async def counts_by_replica(database: Database, since: Mapping[str, int] = {}) -> list[ReplicaCounts]:
    """For each replica, the sum of its events' counts over all tenants, which must equal its journal's.

    `since` maps a replica to the epoch in which its journal began: earlier events are left out.
    """
    event = usage_event.c
    later = (and_(event.replica == replica, event.sequence > epoch << 32) for replica, epoch in since.items())
    in_journal = or_(event.replica.not_in(since), *later)
    sums = [func.sum(event[f"count_{name}"]).label(name) for name in COUNTS]
    query = select(event.replica, func.count().label("requests"), *sums).where(event.sequence > 0, in_journal)
    query = query.group_by(event.replica)
    async with database.reading() as session:
        rows = (await session.execute(query.order_by(event.replica))).all()
    return [
        ReplicaCounts(row.replica, row.requests, {name: int(getattr(row, name)) for name in COUNTS}) for row in rows
    ]
