"""Money that was paid in advance, as FOCUS has it: a purchase when it is bought, and no bill for what it covers.

A purchase is billed and has no effective cost; the usage that it pays for has its effective cost and is not billed,
whether or not an invoice has listed it yet (BilledCost of FOCUS 1.4 leaves out what pre-payments cover). So what is
billed by an invoice is what it asks to be paid, and over time both columns have the same sum: what is refunded is a
purchase taken back, what expires unused is an effective cost without usage.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import and_, func, or_, select

from billing.exports.datasets import ExportQuery, ExportSnapshot
from billing.exports.invoices import in_pico
from billing.tables.invoices import invoice, invoice_payment
from billing.tables.money import ledger_entry, ledger_txn
from billing.usage import period_bounds


class CreditMoved(msgspec.Struct, frozen=True):
    """Credit that was bought, refunded or lost: a row of Cost and Usage, in pico-units, at an instant."""

    id: UUID
    tenant_id: UUID
    currency: str
    at: int
    category: str
    text: str
    billed: int
    effective: int


RETURNED = "Returned to the balance"
_TEXTS = {"grant": "Credit bought", "refund": "Unused credit refunded", "expiry": "Unused credit expired"}


async def credit_moved(reading: ExportSnapshot, asked: ExportQuery) -> AsyncIterator[Sequence[CreditMoved]]:
    """What was bought, refunded and lost in the month, in the order of tenant and time.

    Payments of invoices are none of it: the invoice has billed what they pay for.
    """
    txn, entry = ledger_txn.c, ledger_entry.c
    first, after = period_bounds(asked.period)
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
        .where(txn.id.not_in(select(invoice_payment.c.id)), txn.id.not_in(select(invoice.c.id)))
        .group_by(*columns)
        .order_by(txn.tenant_id, txn.posted_at, txn.id)
    )
    if asked.tenant_id is not None:  # else all tenants: an export of the whole installation
        query = query.where(txn.tenant_id == asked.tenant_id)
    async for portion in reading.portions(query):
        yield [_moved(row) for row in portion]


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
    """What was paid in advance of each line of an invoice, in minor units: the first lines first, tax never."""
    left = document.prepaid if document.kind == "invoice" else 0
    by_line = {}
    for line in lines:
        if paid := min(left, max(line.net, 0)):
            by_line[line.n] = paid
            left -= paid
    return by_line


def cover_of(line: Any, paid: int, currency: str) -> int:
    """What of a line's exact sum was paid in advance, if so many minor units were: all of it, if they all were."""
    exact = max(int(line.exact_pico), 0)
    return exact if paid and paid == line.net else min(in_pico(paid, currency), exact)


class Cover:
    """What was paid in advance of each line's usage, in pico-units by the line's number (None: of what no invoice has
    yet), used up row by row in their order."""

    def __init__(self, left: Mapping[int | None, int], back: int = 0) -> None:
        """`back`: what went back to what was paid in advance, a negative number, of usage that no invoice has yet."""
        self._left = dict(left)
        self._back = back

    @classmethod
    def of_invoice(cls, document: Any, lines: Sequence[Any]) -> Cover:
        """Of the usage that an invoice bills."""
        paid = covered(document, lines)
        return cls({line.n: cover_of(line, paid[line.n], document.currency) for line in lines if line.n in paid})

    @classmethod
    def of_uninvoiced(cls, cost: int, paid: int, taken_back: int) -> Cover:
        """Of usage that no invoice has yet. It costs so much, with what is `taken_back` of earlier usage (0 or less) in
        it, and so much of that was paid in advance: all that is taken back was, unless nothing was."""
        covered = min(cost - taken_back, paid - taken_back) if paid else 0
        return cls({None: covered}, paid - covered)

    def billed(self, n: int | None, pico: int) -> int:
        """What is to be billed of a row of line `n` that costs so much."""
        if pico < 0 and n is None:
            back = max(self._back, pico)
            self._back -= back
            return pico - back
        paid = min(self._left.get(n, 0), max(pico, 0))
        if paid:
            self._left[n] -= paid
        return pico - paid


async def returned(reading: ExportSnapshot, note: Any) -> int:
    """What of a credit note became credit of the balance, in minor units: all that lowered nothing still to be paid."""
    corrected = select(invoice.c.payable).where(invoice.c.tenant_id == note.tenant_id, invoice.c.id == note.corrects)
    earlier = select(func.coalesce(func.sum(invoice.c.gross), 0)).where(
        invoice.c.tenant_id == note.tenant_id,
        invoice.c.corrects == note.corrects,
        or_(invoice.c.year < note.year, and_(invoice.c.year == note.year, invoice.c.n < note.n)),
    )
    of = invoice_payment.c
    paid = select(func.coalesce(func.sum(of.amount), 0)).where(
        of.tenant_id == note.tenant_id, of.invoice_id == note.corrects, of.at <= note.finalized_at
    )
    payable, credited, received = [
        int(await reading.session.scalar(query) or 0) for query in (corrected, earlier, paid)
    ]
    return int(note.gross) - min(int(note.gross), max(0, payable - credited - received))
