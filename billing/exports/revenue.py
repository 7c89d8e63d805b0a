"""What a controller reads of a month: revenue by model and tenant, what is owed in service, and what is not paid.

Usage is earned when it happens, by model. Everything else follows from the ledger, by the months of the journal:
documents' own lines (`charges`), what credit notes took back, credit that expired unused, and what was given or lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from datetime import date
from uuid import UUID

from sqlalchemy import ColumnElement, func, select

from billing.calendar import period_bounds
from billing.events.rollups import LIMB
from billing.exports.datasets import Column, Dataset, ExportQuery, ExportSnapshot, Row
from billing.exports.invoices import midnight
from billing.exports.journal import before_month, of_month, of_tenant
from billing.money import minor_to_pico
from billing.tables.invoices import ISSUED, invoice, invoice_payment
from billing.tables.money import ledger_entry, ledger_txn, price_version, rollup_hour
from storage.database.base import from_instant

_EARNED = ("bad_debt", "breakage", "charges", "credited", "goodwill")
"""Accounts of income and loss beside `revenue`, which usage has."""
_OWED = ("deferred", "prepaid")
"""Accounts of what is owed in service."""
_BUCKETS = ((0, "not due"), (30, "1-30"), (60, "31-60"), (90, "61-90"))
"""Days overdue, and what the bucket up to them is called."""
_OLDEST = "over 90"
_TENANT = (Column("tenant_id", "id"), Column("tenant", "text"))


async def _revenue(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    rollup = rollup_hour.c
    groups = (rollup.tenant_id, rollup.model, price_version.c.currency)
    used = (
        select(*groups, func.sum(rollup.cost_high), func.sum(rollup.cost_low))
        .join(price_version, price_version.c.id == rollup.price_version)
        .where(rollup.period == wanted.period, *of_tenant(wanted, rollup.tenant_id))
        .group_by(*groups)
        .order_by(rollup.tenant_id, snapshot.in_order(rollup.model), price_version.c.currency)
    )
    async for portion in snapshot.portions(used):
        yield [
            (wanted.period, tenant, wanted.names.tenants.get(tenant), "usage", model, currency,
             int(high) * LIMB + int(low))
            for tenant, model, currency, high, low in portion
        ]  # fmt: skip
    sums = await _sums(snapshot, wanted, _EARNED, of_month(wanted.period))
    yield [
        (wanted.period, tenant, wanted.names.tenants.get(tenant), account, None, currency, credit - debit)
        for (tenant, account, currency), (debit, credit) in sorted(sums.items())
        if credit != debit
    ]


async def _owed_in_service(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    opening = await _sums(snapshot, wanted, _OWED, before_month(wanted.period))
    moved = await _sums(snapshot, wanted, _OWED, of_month(wanted.period))
    rows = []
    for key in sorted(opening.keys() | moved.keys()):
        tenant, account, currency = key
        (debit_before, credit_before), (taken, added) = opening[key], moved[key]
        begin = credit_before - debit_before
        amounts = (begin, added, taken, begin + added - taken)
        if any(amounts):
            rows.append((wanted.period, tenant, wanted.names.tenants.get(tenant), account, currency, *amounts))
    yield rows


async def _ageing(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    _, after = period_bounds(wanted.period)
    end = from_instant(after).date()
    row, payment, note = invoice.c, invoice_payment.c, invoice.alias("credit_note").c
    paid = (
        select(func.coalesce(func.sum(payment.amount), 0))
        .where(payment.invoice_id == row.id, payment.at < after)
        .scalar_subquery()
    )
    credited = (
        select(func.coalesce(func.sum(note.gross), 0))
        .where(note.corrects == row.id, note.state != "draft", note.issued < end.isoformat())
        .scalar_subquery()
    )
    query = (
        select(row.tenant_id, row.number, row.issued, row.due, row.currency, row.payable, paid, credited)
        .where(ISSUED, row.issued < end.isoformat(), *of_tenant(wanted, row.tenant_id))
        .order_by(row.tenant_id, row.issued, row.id)
    )
    async for portion in snapshot.portions(query):
        rows: list[Row] = []
        for tenant, number, issued, due, currency, payable, by_payments, by_notes in portion:
            if (left := payable - int(by_payments) - int(by_notes)) <= 0:
                continue
            days = max(0, (end - date.fromisoformat(due)).days - 1)
            bucket = next((name for most, name in _BUCKETS if days <= most), _OLDEST)
            dates = (midnight(issued), midnight(due))
            amount = minor_to_pico(left, currency)
            rows.append((tenant, wanted.names.tenants.get(tenant), number, *dates, days, bucket, currency, amount))
        yield rows


async def _sums(
    snapshot: ExportSnapshot, wanted: ExportQuery, accounts: Sequence[str], when: ColumnElement[bool]
) -> dict[tuple[UUID, str, str], tuple[int, int]]:
    """Debits and credits of accounts by tenant, account and currency."""
    txn, entry = ledger_txn.c, ledger_entry.c
    sums: dict[tuple[UUID, str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for side in (entry.debit, entry.credit):
        groups = (entry.tenant_id, side, entry.currency)
        query = select(*groups, func.sum(entry.amount_pico)).join_from(ledger_entry, ledger_txn, entry.txn_id == txn.id)
        query = query.where(side.in_(accounts), when, *of_tenant(wanted, entry.tenant_id)).group_by(*groups)
        for tenant, account, currency, pico in await snapshot.session.execute(query):
            debit, credit = sums[tenant, account, currency]
            both = (debit + int(pico), credit) if side is entry.debit else (debit, credit + int(pico))
            sums[tenant, account, currency] = both
    return sums


REVENUE = Dataset(
    name="revenue",
    title="Revenue",
    about="what the month earned, by tenant and model",
    columns=(
        Column("month", "text"),
        *_TENANT,
        Column("source", "text", "usage, or the account: charges, credited, breakage, goodwill, bad_debt"),
        Column("model", "text", "of usage"),
        Column("currency", "text"),
        Column("recognized", "money", "less than 0 for what was given, taken back or lost"),
    ),
    rows=_revenue,
    sums=("recognized",),
)
DEFERRED = Dataset(
    name="deferred",
    title="Deferred revenue",
    about="what was paid for or invoiced and is owed in service, by tenant",
    columns=(
        Column("month", "text"),
        *_TENANT,
        Column("account", "text", "prepaid credit, or deferred commitments"),
        Column("currency", "text"),
        Column("opening", "money"),
        Column("added", "money"),
        Column("taken", "money", "used, refunded, expired or credited"),
        Column("closing", "money"),
    ),
    rows=_owed_in_service,
    sums=("opening", "added", "taken", "closing"),
)
AGEING = Dataset(
    name="ageing",
    title="Ageing",
    about="what was not paid at the end of the month, by how long it is overdue",
    columns=(
        *_TENANT,
        Column("number", "text"),
        Column("issued", "date"),
        Column("due", "date"),
        Column("days_overdue", "integer"),
        Column("bucket", "text", "not due, 1-30, 31-60, 61-90 or over 90"),
        Column("currency", "text"),
        Column("left", "money"),
    ),
    rows=_ageing,
    sums=("left",),
)
