"""Prepaid credit in FOCUS: a purchase when it is bought, and nothing billed for the usage that it covers.

A purchase has a BilledCost and no EffectiveCost. The usage that it pays for has an EffectiveCost and no BilledCost,
before the invoice as after it (FOCUS 1.4: BilledCost leaves out what pre-payments cover). A refund is a negative
purchase; credit that expires is an EffectiveCost without usage. So an invoice's BilledCost is what it asks to be paid,
and over time both columns have the same sum.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Select, and_, func, or_, select

from billing.calendar import period_bounds
from billing.exports.datasets import ExportQuery, ExportSnapshot
from billing.money import minor_to_pico
from billing.tables.invoices import invoice, invoice_payment
from billing.tables.money import ledger_entry, ledger_txn


class CreditMoved(msgspec.Struct, frozen=True):
    """Credit that was bought, refunded or expired at an instant: a row of Cost and Usage, in pico-units."""

    id: UUID
    tenant_id: UUID
    currency: str
    at: int
    category: str
    text: str
    billed: int
    effective: int


RETURNED = "Returned to the balance"
DEDUCTED = "VAT that was due with advance payments"
DRAWN = "Paid from credit"
_TEXTS = {"grant": "Credit bought", "refund": "Unused credit refunded", "expiry": "Unused credit expired"}


async def credit_moved(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Sequence[CreditMoved]]:
    """Credit bought, refunded and expired in the month, ordered by tenant and time.

    Payments of invoices are left out: the invoice bills what they pay for.
    """
    txn, entry = ledger_txn.c, ledger_entry.c
    first, after = period_bounds(wanted.period)
    moved = or_(
        and_(txn.kind == "grant", entry.debit == "clearing"),
        and_(txn.kind == "refund", entry.credit == "clearing"),
        and_(txn.kind == "expiry", entry.credit == "breakage"),
    )
    columns = (txn.id, txn.tenant_id, entry.currency, txn.posted_at, txn.kind)
    query = (
        select(*columns, func.sum(entry.amount_pico).label("pico"))
        .join(ledger_entry, entry.txn_id == txn.id)
        .where(moved, txn.posted_at >= first, txn.posted_at < after)
        .where(txn.id.not_in(_paid_an_invoice()), txn.id.not_in(select(invoice.c.id)))
        .group_by(*columns)
        .order_by(txn.tenant_id, txn.posted_at, txn.id)
    )
    if wanted.tenant_id is not None:  # else all tenants: an export of the whole installation
        query = query.where(txn.tenant_id == wanted.tenant_id)
    async for portion in snapshot.portions(query):
        yield [_moved(row) for row in portion]


def _paid_an_invoice() -> Select[Any]:
    """The payments of invoices; what was paid in advance is credit, also with an advance-payment invoice."""
    payment = invoice_payment.c
    # all tenants: the query that leaves these out is of one or of all
    return select(payment.id).join(invoice, invoice.c.id == payment.invoice_id).where(invoice.c.kind == "invoice")


def _moved(row: Any) -> CreditMoved:
    pico = int(row.pico)
    lost = row.kind == "expiry"
    return CreditMoved(
        id=row.id,
        tenant_id=row.tenant_id,
        currency=row.currency,
        at=row.posted_at,
        category="Adjustment" if lost else "Purchase",
        text=_TEXTS[row.kind],
        billed=0 if lost else -pico if row.kind == "refund" else pico,
        effective=pico if lost else 0,
    )


def covered(document: Any, lines: Sequence[Any]) -> dict[int, int]:
    """Line number → minor units of the line that are prepaid. The first lines come first; tax is never prepaid."""
    left = document.prepaid if document.kind == "invoice" else 0
    by_line = {}
    for line in lines:
        if paid := min(left, max(line.net, 0)):
            by_line[line.n] = paid
            left -= paid
    return by_line


def cover_of(line: Any, paid: int, currency: str) -> int:
    """The prepaid part of a line's exact amount, in pico-units, when `paid` minor units of the line are prepaid."""
    exact = max(int(line.exact_pico), 0)
    return exact if paid and paid == line.net else min(minor_to_pico(paid, currency), exact)


class Cover:
    """Prepaid pico-units by invoice line, used up row by row. The line None is usage that no invoice has billed yet."""

    def __init__(self, left: Mapping[int | None, int], back: int = 0) -> None:
        """`back` is 0 or less: what corrections of uninvoiced usage returned to prepaid credit, in pico-units."""
        self._left = dict(left)
        self._back = back

    @classmethod
    def of_invoice(cls, document: Any, lines: Sequence[Any]) -> Cover:
        """The prepaid part of the usage that an invoice bills."""
        paid = covered(document, lines)
        return cls({line.n: cover_of(line, paid[line.n], document.currency) for line in lines if line.n in paid})

    @classmethod
    def of_uninvoiced(cls, cost: int, paid: int, taken_back: int) -> Cover:
        """The prepaid part (`paid`) of usage that no invoice has billed yet and that comes to `cost`, in pico-units.

        `cost` contains `taken_back`, the corrections of earlier usage (0 or less). They count as prepaid, unless
        nothing is.
        """
        covered = min(cost - taken_back, paid - taken_back) if paid else 0
        return cls({None: covered}, paid - covered)

    def billed(self, n: int | None, pico: int) -> int:
        """The BilledCost of the next row of line `n`, which costs `pico`."""
        if pico < 0 and n is None:
            back = max(self._back, pico)
            self._back -= back
            return pico - back
        paid = min(self._left.get(n, 0), max(pico, 0))
        if paid:
            self._left[n] -= paid
        return pico - paid


async def returned(snapshot: ExportSnapshot, note: Any) -> int:
    """The part of a credit note that went to the balance, in minor units: what was left of the invoice is deducted. A
    refund of an advance goes to nobody's balance."""
    if note.corrected_kind == "advance":
        return 0
    corrected = select(invoice.c.payable).where(invoice.c.tenant_id == note.tenant_id, invoice.c.id == note.corrects)
    earlier = select(func.coalesce(func.sum(invoice.c.gross), 0)).where(
        invoice.c.tenant_id == note.tenant_id,
        invoice.c.corrects == note.corrects,
        or_(invoice.c.year < note.year, and_(invoice.c.year == note.year, invoice.c.n < note.n)),
    )
    payment = invoice_payment.c
    paid = select(func.coalesce(func.sum(payment.amount), 0)).where(
        payment.tenant_id == note.tenant_id, payment.invoice_id == note.corrects, payment.at <= note.finalized_at
    )
    payable, credited, received = [
        int(await snapshot.session.scalar(query) or 0) for query in (corrected, earlier, paid)
    ]
    return int(note.gross) - min(int(note.gross), max(0, payable - credited - received))
