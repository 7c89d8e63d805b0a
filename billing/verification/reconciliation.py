"""Reconciliation of a billing period: engine journals, events, ledger, rollups and invoices compared, in a report.

The report says how many requests were lost, doubled, late or of unconfirmed delivery, and by how many pico-units each
sum differs from the events. It is stored, and may be published.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Select, func, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.calendar import period_bounds
from billing.events.rollups import LIMB
from billing.integrity.row_seals import seal_rows
from billing.ledger.entries import OF_EVENTS
from billing.periods.periods import PeriodState
from billing.replica_journals.comparison import JournalComparison, JournalReport, compare, sort_out
from billing.replica_journals.sequences import Sequences, sequences_of
from billing.tables.books import billing_period, recon_run
from billing.tables.invoices import ISSUED, invoice
from billing.tables.money import balance, ledger_entry, ledger_txn, rollup_hour, usage_event
from storage.database.base import new_id
from storage.database.database import Database

_KEPT = ("period", "at", "events", "lost", "doubled", "unconfirmed", "late", "drift_pico")


class Drift(msgspec.Struct, frozen=True):
    """A tenant's cost of usage by each source, in pico-units; `invoiced` is None without a finalized invoice."""

    tenant_id: UUID
    currency: str
    events: int
    rollups: int
    ledger: int
    invoiced: int | None

    @property
    def pico(self) -> int:
        """The sum of the absolute differences from the events."""
        costs = [self.rollups, self.ledger, *([] if self.invoiced is None else [self.invoiced])]
        return sum(abs(cost - self.events) for cost in costs)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The reconciliation of a period.

    - `lost`: journal sequence numbers without an event, and requests that journals have beyond the events.
    - `unacknowledged`: lost ones that wait in a journal, or whose journal does not answer.
    - `declared_lost`: lost ones of journals that a person declared lost.
    - `doubled`: sequence numbers with more than one event.
    - `late`: events that came after their own period had closed, booked in this one.
    - `unconfirmed`: events of which it is not known whether the client received the end.
    - `adjustments`: corrections of earlier events; no other number counts them.
    - `lost_attempts`: failed attempts of requests that were tried again; the requests themselves count once.
    - `drifts`: tenants with a difference between the sources.
    """

    period: str
    state: PeriodState
    at: int
    tenants: int
    invoiced: int
    events: int
    confirmed: int
    unconfirmed: int
    late: int
    lost: int
    doubled: int
    cost_pico: dict[str, int]
    drift_pico: int
    drifts: list[Drift]
    sequences: list[Sequences]
    journals: list[JournalComparison]
    adjustments: int = 0
    unacknowledged: int = 0
    declared_lost: int = 0
    lost_attempts: int = 0

    @property
    def gone(self) -> list[JournalComparison]:
        """Journals that were replaced by another one, and that nobody has declared lost."""
        return [journal for journal in self.journals if journal.state == "gone"]

    @property
    def not_compared(self) -> list[JournalComparison]:
        """Journals with numbers of this period that do not answer: what they have beyond the events is not known."""
        away = (journal for journal in self.journals if journal.state == "away")
        return [
            journal
            for journal in away
            if any(run.replica == journal.replica and run.epoch >= journal.since for run in self.sequences)
        ]

    @property
    def clean(self) -> bool:
        """Whether nothing was lost or doubled, nothing waits, and all sources that were compared agree."""
        return not (self.lost or self.doubled or self.drift_pico or self.unacknowledged or self.gone)


async def reconcile(database: Database, period: str, journals: Iterable[JournalReport] = ()) -> Report:
    """Reconcile a period in one snapshot, store the report, and return it.

    `journals` are the reports of the replicas that answer. Raises InvalidPeriod, DatabaseUnavailable.
    """
    period_bounds(period)
    async with database.reading() as session:
        report = await _report(session, database, period, journals)
    kept = {name: getattr(report, name) for name in _KEPT}
    row = kept | {"id": new_id(), "report": msgspec.json.encode(report).decode()}
    async with database.transaction() as session:
        await session.execute(insert(recon_run).values(row))
        await seal_rows(session, recon_run, recon_run.c.id == row["id"])
    return report


async def latest(database: Database, period: str) -> Report | None:
    """The stored report of the last reconciliation of a period; None if there is none."""
    run = recon_run.c
    query = select(run.report).where(run.period == period).order_by(run.at.desc(), run.id.desc()).limit(1)
    async with database.reading() as session:
        found = (await session.execute(query)).scalar_one_or_none()
    return None if found is None else msgspec.json.decode(found, type=Report)


async def _report(session: AsyncSession, database: Database, period: str, journals: Iterable[JournalReport]) -> Report:
    event = usage_event.c  # all tenants: a period is everybody's
    starts_at = period_bounds(period)[0]
    state = (
        await session.execute(select(billing_period.c.state).where(billing_period.c.period == period))
    ).scalar_one_or_none()
    in_period, request = event.period == period, event.corrects.is_(None)
    deliveries = select(event.delivery, func.count()).where(in_period, request).group_by(event.delivery)
    by_delivery = {row[0]: row[1] for row in await session.execute(deliveries)}
    late = select(func.count()).where(in_period, request, event.admitted_at < starts_at)
    adjustments = select(func.count()).where(in_period, event.source == "adjustment")
    lost_attempts = select(func.count()).where(in_period, ~request, event.source != "adjustment")
    tenants = await _drifts(session, period)
    sequences = await sequences_of(session, period)
    compared = await compare(session, journals)
    costs: dict[str, int] = defaultdict(int)
    for tenant in tenants:
        costs[tenant.currency] += tenant.events
    missing = sort_out(sequences, compared)
    return Report(
        period=period,
        state=state or "open",
        at=(await session.execute(select(database.clock))).scalar_one(),
        tenants=len(tenants),
        invoiced=sum(tenant.invoiced is not None for tenant in tenants),
        events=sum(by_delivery.values()),
        confirmed=by_delivery.get("confirmed", 0),
        unconfirmed=by_delivery.get("unconfirmed", 0),
        late=(await session.execute(late)).scalar_one(),
        lost=max(missing.lost, sum(journal.lost for journal in compared)),
        doubled=sum(sequence.repeated for sequence in sequences) + sum(journal.doubled for journal in compared),
        unacknowledged=max(missing.unacknowledged, sum(journal.waiting for journal in compared)),
        declared_lost=missing.declared_lost,
        cost_pico=dict(costs),
        drift_pico=sum(tenant.pico for tenant in tenants),
        drifts=[tenant for tenant in tenants if tenant.pico],
        sequences=sequences,
        journals=compared,
        adjustments=(await session.execute(adjustments)).scalar_one(),
        lost_attempts=(await session.execute(lost_attempts)).scalar_one(),
    )


async def _drifts(session: AsyncSession, period: str) -> list[Drift]:
    event, rolled = usage_event.c, rollup_hour.c
    events = await _limbs(
        session,
        select(event.tenant_id, *(func.sum(event.cost_pico.op(o)(LIMB)) for o in ("/", "%")))
        .where(event.period == period)
        .group_by(event.tenant_id),
    )
    rollups = await _limbs(
        session,
        select(rolled.tenant_id, func.sum(rolled.cost_high), func.sum(rolled.cost_low))
        .where(rolled.period == period)
        .group_by(rolled.tenant_id),
    )
    ledger = await _revenue(session, period)
    issued = select(invoice.c.tenant_id, invoice.c.usage_pico).where(ISSUED, invoice.c.period == period)
    invoiced = {tenant: int(pico) for tenant, pico in await session.execute(issued)}
    owners = await session.execute(select(balance.c.tenant_id, balance.c.currency))
    currencies = {row.tenant_id: row.currency for row in owners}
    return [
        Drift(
            tenant,
            currencies.get(tenant, ""),
            events.get(tenant, 0),
            rollups.get(tenant, 0),
            ledger.get(tenant, 0),
            invoiced.get(tenant),
        )
        for tenant in sorted(events.keys() | rollups.keys() | ledger.keys() | invoiced.keys())
    ]


async def _limbs(session: AsyncSession, query: Select[Any]) -> dict[UUID, int]:
    return {tenant: int(high) * LIMB + int(low) for tenant, high, low in await session.execute(query)}


async def _revenue(session: AsyncSession, period: str) -> dict[UUID, int]:
    """The ledger's revenue from usage by tenant: credits less debits."""
    entry = ledger_entry.c
    earned: dict[UUID, int] = defaultdict(int)
    rows = await session.execute(
        select(entry.tenant_id, entry.credit, func.sum(entry.amount_pico))
        .join(ledger_txn, ledger_txn.c.id == entry.txn_id)
        .where(ledger_txn.c.kind.in_(OF_EVENTS), ledger_txn.c.period == period)
        .where(or_(entry.credit == "revenue", entry.debit == "revenue"))
        .group_by(entry.tenant_id, entry.credit)
    )
    for tenant, credit, amount in rows:
        earned[tenant] += int(amount) if credit == "revenue" else -int(amount)
    return earned
