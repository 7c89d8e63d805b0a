"""Checking money against itself, in one snapshot: a list of checks, each of which says what is wrong.

A check is a function of the audit's `AuditContext`. What keeps money of its own adds its check here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

import msgspec
from sqlalchemy import and_, func, or_, select

from billing.prices import PriceCatalog
from billing.tables.money import usage_event
from billing.usage import COUNTS, check_period
from billing.verification.balances import check_balances, check_holds
from billing.verification.budgets import check_budgets
from billing.verification.chain import check_chain
from billing.verification.events import check_costs, check_refused, check_sequences
from billing.verification.findings import AuditContext, Finding, Progress
from billing.verification.invoices import check_invoiced, check_invoices
from billing.verification.ledger import check_ledger, check_rollups
from billing.verification.seals import check_seals
from billing.verification.storage_hours import check_storage
from storage.database.database import Database

Check = Callable[[AuditContext], Awaitable[None]]

OF_A_PERIOD: tuple[Check, ...] = (
    check_costs,
    check_chain,
    check_rollups,
    check_ledger,
    check_sequences,
    check_invoiced,
    check_storage,
)
"""What can be checked of one billing period alone."""

OF_ALL: tuple[Check, ...] = (
    check_refused,
    check_seals,
    *OF_A_PERIOD,
    check_balances,
    check_holds,
    check_budgets,
    check_invoices,
)

__all__ = ["OF_ALL", "OF_A_PERIOD", "Finding", "ReplicaCounts", "check", "counts_by_replica"]


async def check(database: Database, period: str | None = None, progress: Progress | None = None) -> list[Finding]:
    """Everything that is wrong, or that is wrong in one billing period. Running requests are not. Raises
    DatabaseUnavailable, InvalidPeriod."""
    async with database.reading() as session:
        scope = AuditContext(database, session, PriceCatalog(database), period and check_period(period))
        if progress is not None:
            scope.progress = progress
        for one in OF_ALL if period is None else OF_A_PERIOD:
            try:
                await one(scope)
            except (ValueError, LookupError, ArithmeticError, msgspec.MsgspecError) as error:
                scope.found("the books cannot be read", UUID(int=0), f"{one.__name__}: {error}")
    return scope.findings


class ReplicaCounts(msgspec.Struct, frozen=True):
    """What the events of one replica's requests add up to."""

    replica: str
    requests: int
    counts: dict[str, int]


async def counts_by_replica(database: Database, since: Mapping[str, int] = {}) -> list[ReplicaCounts]:
    """For each replica, the sum of its events' counts, over all tenants: what its journal must say too. `since`: the
    replicas' epochs in which their journals began."""
    of = usage_event.c
    theirs = or_(of.replica.not_in(since), *(and_(of.replica == r, of.sequence > e << 32) for r, e in since.items()))
    sums = [func.sum(of[f"count_{name}"]).label(name) for name in COUNTS]
    query = select(of.replica, func.count().label("requests"), *sums).where(of.sequence > 0, theirs)
    query = query.group_by(of.replica)
    async with database.reading() as session:
        rows = (await session.execute(query.order_by(of.replica))).all()
    return [
        ReplicaCounts(row.replica, row.requests, {name: int(getattr(row, name)) for name in COUNTS}) for row in rows
    ]
