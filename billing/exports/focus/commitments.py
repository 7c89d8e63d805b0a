"""Commitments in FOCUS 1.4: what usage they pay (ContractApplied), what ends unused, the dataset Contract Commitment.

A commitment is bought by the invoice line that asks for it (BilledCost, no EffectiveCost) and is effective where it is
used: the usage that it pays has an EffectiveCost, and the invoice line that pays it takes the same off the BilledCost.
What is left at its end is an EffectiveCost without usage. So over a commitment's life both columns have one sum.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, select

from billing.calendar import count_months, period_bounds
from billing.exports.datasets import Column, Dataset, ExportQuery, ExportSnapshot, Row
from billing.exports.focus.bills import Bill
from billing.exports.journal import of_month, of_tenant
from billing.money import format_pico
from billing.rating.commitment_accounts import read_commitment_lines
from billing.rating.commitments import CommitmentLine, lines_of
from billing.rating.schedules import Schedule, ScheduledTerms
from billing.rating.terms import Commitment, ContractTerms
from billing.tables.money import balance, ledger_entry, ledger_txn
from billing.tables.prices import contract_terms

LAPSED = "What a commitment did not pay until its end"


def contract_id(tenant_id: UUID) -> str:
    """The ContractId of a tenant's contract: all its terms."""
    return f"contract-{tenant_id.hex}"


def commitment_id(tenant_id: UUID, first: str) -> str:
    """The ContractCommitmentId: a tenant's commitment is known by its first period."""
    return f"{contract_id(tenant_id)}/{first}"


class Applied:
    """What an invoice's commitment pays of its usage, used up row by row, in pico-units."""

    def __init__(self, tenant_id: UUID, first: str, left: int) -> None:
        self._ids = {"ContractId": contract_id(tenant_id), "ContractCommitmentId": commitment_id(tenant_id, first)}
        self._left = left

    @classmethod
    async def of_invoice(cls, snapshot: ExportSnapshot, bill: Bill | None) -> Applied | None:
        """What the commitment pays on an invoice; None where it pays nothing."""
        if bill is None:
            return None
        document = bill.document
        paid = sum(-int(line.exact_pico) for line in bill.lines if line.kind == "commitment" and line.exact_pico < 0)
        rows = [row for row, _ in await _terms(snapshot, document.tenant_id)]
        commitment = Schedule.of(rows).commitment_of(document.period)
        return cls(document.tenant_id, commitment.first, paid) if paid and commitment is not None else None

    def take(self, pico: int) -> str | None:
        """The ContractApplied of the next row of usage, which costs `pico`."""
        applied = min(self._left, max(pico, 0))
        if not applied:
            return None
        self._left -= applied
        element = {**self._ids, "ContractCommitmentAppliedCost": msgspec.Raw(format_pico(applied).encode())}
        return msgspec.json.encode({"Elements": [element]}).decode()


async def lapses(snapshot: ExportSnapshot, wanted: ExportQuery) -> Sequence[Any]:
    """What commitments of which nothing more can be drawn left unused, earned in the month: tenant, currency, instant
    and pico-units."""
    txn, entry = ledger_txn.c, ledger_entry.c
    columns = (txn.id, txn.tenant_id, entry.currency, txn.posted_at)
    query = (
        select(*columns, func.sum(entry.amount_pico).label("pico"))
        .join_from(ledger_entry, ledger_txn, entry.txn_id == txn.id)
        .where(txn.kind == "lapse", of_month(wanted.period), *of_tenant(wanted, txn.tenant_id))
        .group_by(*columns)
        .order_by(txn.tenant_id, txn.posted_at, txn.id)
    )
    return (await snapshot.session.execute(query)).all()


async def _terms(snapshot: ExportSnapshot, tenant_id: UUID) -> list[tuple[ScheduledTerms, int]]:
    """The tenant's terms in the order in which they were set, and when."""
    row = contract_terms.c
    query = select(row.id, row.from_period, row.body, row.created_at).where(row.tenant_id == tenant_id)
    return [
        (ScheduledTerms(number, period, msgspec.json.decode(body, type=ContractTerms)), created_at)
        for number, period, body, created_at in await snapshot.session.execute(query.order_by(row.id))
    ]


_COLUMNS = (
    Column("BillingCurrency", "text"),
    Column("ContractCommitmentApplicability", "text"),
    Column("ContractCommitmentBenefitCategory", "text"),
    Column("ContractCommitmentCategory", "text"),
    Column("ContractCommitmentCost", "money"),
    Column("ContractCommitmentCreated", "second"),
    Column("ContractCommitmentDescription", "text"),
    Column("ContractCommitmentDiscountPercentage", "price"),
    Column("ContractCommitmentDurationType", "text"),
    Column("ContractCommitmentFulfillmentInterval", "text"),
    Column("ContractCommitmentId", "text"),
    Column("ContractCommitmentLastUpdated", "second"),
    Column("ContractCommitmentLifecycleStatus", "text"),
    Column("ContractCommitmentModel", "text"),
    Column("ContractCommitmentOfferCategory", "text"),
    Column("ContractCommitmentPaymentInterval", "text"),
    Column("ContractCommitmentPaymentModel", "text"),
    Column("ContractCommitmentPeriodEnd", "second"),
    Column("ContractCommitmentPeriodStart", "second"),
    Column("ContractCommitmentQuantity", "integer"),
    Column("ContractCommitmentType", "text"),
    Column("ContractCommitmentUnit", "text"),
    Column("ContractId", "text"),
    Column("ContractPeriodEnd", "second"),
    Column("ContractPeriodStart", "second"),
    Column("InvoiceIssuerName", "text"),
    Column("ServiceProviderName", "text"),
    Column("x_DrawnCost", "money", "what the commitment paid on invoices of months until this one"),
)


async def _commitments(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    _, after = period_bounds(wanted.period)
    row = contract_terms.c
    owners = select(row.tenant_id).where(row.created_at < after, *of_tenant(wanted, row.tenant_id)).distinct()
    money = select(balance.c.tenant_id, balance.c.currency).where(*of_tenant(wanted, balance.c.tenant_id))
    currencies = {one.tenant_id: one.currency for one in await snapshot.session.execute(money)}
    for tenant_id in (await snapshot.session.scalars(owners.order_by(row.tenant_id))).all():
        set_ = [(terms, at) for terms, at in await _terms(snapshot, tenant_id) if at < after]
        schedule = Schedule.of([terms for terms, _ in set_])
        lines = await read_commitment_lines(snapshot.session, tenant_id)
        dates: dict[str, list[int]] = {}
        for terms, at in set_:
            if terms.terms.commitment is not None:
                dates.setdefault(terms.terms.commitment.first, []).append(at)
        yield [
            _row(wanted, tenant_id, currencies.get(tenant_id), commitment, set_at,
                 _drawn(lines, schedule, first, wanted))
            for first, set_at in sorted(dates.items())
            if (commitment := schedule.latest(first)) is not None
        ]  # fmt: skip


def _drawn(lines: Sequence[CommitmentLine], schedule: Schedule, first: str, wanted: ExportQuery) -> int:
    mine = (line for line in lines_of(lines, schedule, first) if line.period <= wanted.period)
    return sum(max(0, -line.exact_pico) for line in mine)


def _row(  # noqa: PLR0917
    wanted: ExportQuery, tenant_id: UUID, currency: str | None, commitment: Commitment, dates: Sequence[int], drawn: int
) -> Row:
    begins, (_, ends) = period_bounds(commitment.first)[0], period_bounds(commitment.last)
    months = count_months(commitment.first, commitment.last)
    status = "Active"
    if wanted.period < commitment.first:
        status = "Pending"
    elif drawn >= commitment.amount_pico:
        status = "Exhausted"
    elif wanted.period > commitment.last:
        status = "Expired"
    cells = {
        "BillingCurrency": currency,
        "ContractCommitmentApplicability": '{"IsGlobalScope":true}',
        "ContractCommitmentBenefitCategory": "Entitlement",
        "ContractCommitmentCategory": "Spend",
        "ContractCommitmentCost": commitment.amount_pico,
        "ContractCommitmentCreated": min(dates),
        "ContractCommitmentDescription": f"Commitment for {commitment.first} to {commitment.last}",
        "ContractCommitmentDurationType": f"{months} Month{'' if months == 1 else 's'}",
        "ContractCommitmentFulfillmentInterval": "Full Period",
        "ContractCommitmentId": commitment_id(tenant_id, commitment.first),
        "ContractCommitmentLastUpdated": max(dates),
        "ContractCommitmentLifecycleStatus": status,
        "ContractCommitmentModel": "Discontinuous",
        "ContractCommitmentOfferCategory": "Negotiated",
        "ContractCommitmentPaymentInterval": "One-Time",
        "ContractCommitmentPaymentModel": "All Upfront",
        "ContractCommitmentPeriodEnd": ends,
        "ContractCommitmentPeriodStart": begins,
        "ContractCommitmentType": "Spend commitment",
        "ContractId": contract_id(tenant_id),
        "ContractPeriodEnd": ends,
        "ContractPeriodStart": begins,
        "InvoiceIssuerName": wanted.provider,
        "ServiceProviderName": wanted.provider,
        "x_DrawnCost": drawn,
    }
    return [cells.get(column.name) for column in _COLUMNS]


CONTRACT_COMMITMENT = Dataset(
    name="focus-commitments",
    title="FOCUS Contract Commitment",
    about="FOCUS 1.4, dataset Contract Commitment",
    columns=_COLUMNS,
    rows=_commitments,
    sums=("ContractCommitmentCost", "x_DrawnCost"),
    currency="BillingCurrency",
)
