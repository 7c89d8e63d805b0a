"""Bookings of a month in minor units: what a general ledger and DATEV import, document by document.

A document is booked in the month of its issue date, a payment and bought credit in the month in which the money came.
Everything is in whole coins: usage itself, in fractions of a coin, is in the journal alone. A void document is no
booking.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Select, select

from billing.calendar import period_bounds
from billing.exports.datasets import ExportQuery, ExportSnapshot
from billing.exports.focus.prepaid_credit import CreditMoved, credit_moved, returned
from billing.exports.invoices import midnight
from billing.invoices.accounting.posting import step_id
from billing.invoices.document import Document, deductions_of, drawn_of
from billing.invoices.parties.parties import format_rate
from billing.ledger.entries import Account
from billing.money import minor_unit, round_half_up
from billing.tables.invoices import billing_profile, invoice, invoice_payment


class Booking(msgspec.Struct, frozen=True, kw_only=True):
    """One booking: `net` + `tax` minor units from an account to another; less than 0 is the other way.

    `at` and `service` are first instants of days. `tax` belongs to the side of `credit`, for `category` and `rate` in
    hundredths of a percent; both are empty where the booking has nothing to do with VAT.
    """

    at: int
    document: str
    kind: str
    text: str
    debit: Account
    credit: Account
    net: int
    tax: int = 0
    currency: str
    category: str = ""
    rate: int = 0
    tenant_id: UUID
    vat_id: str = ""
    service: int | None = None
    due: int | None = None

    @property
    def gross(self) -> int:
        """Both amounts."""
        return self.net + self.tax


def code_of(codes: dict[str, str], account: Account, category: str = "", rate: int = 0) -> str:
    """The code of an account: for the category and rate (`revenue.S19`), else the category (`revenue.AE`), else all."""
    names = (f"{account}.{category}{format_rate(rate)}", f"{account}.{category}", account)
    return next((codes[name] for name in names if name in codes), account)


async def bookings(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Sequence[Booking]]:
    """The month's bookings: documents, then payments, then credit that moved, each by tenant and time."""
    async for portion in snapshot.portions(_documents(wanted)):
        for row in portion:
            yield [booking for booking in await _of_document(snapshot, row) if booking.gross]
    async for portion in snapshot.portions(_payments(wanted)):
        yield [_of_payment(row) for row in portion]
    sellers = await _sellers(snapshot, wanted)
    async for moves in credit_moved(snapshot, wanted):
        in_documents = await _in_documents(snapshot, moves)
        yield list(_of_credit(moves, wanted, sellers, in_documents))


def _documents(wanted: ExportQuery) -> Select[Any]:
    row = invoice.c
    corrected = invoice.alias("corrected_invoice")
    query = (
        select(invoice, corrected.c.kind.label("corrected_kind"))
        .outerjoin(corrected, corrected.c.id == row.corrects)
        .where(row.issued >= f"{wanted.period}-01", row.issued <= f"{wanted.period}-31")
        .where(row.state.not_in(("draft", "void")))
        .order_by(row.tenant_id, row.id)
    )
    if wanted.seller:
        query = query.where(row.seller == wanted.seller)
    # all tenants: without a tenant this exports the whole installation
    return query if wanted.tenant_id is None else query.where(row.tenant_id == wanted.tenant_id)


async def _of_document(snapshot: ExportSnapshot, row: Any) -> list[Booking]:
    """An invoice asks for its gross amount by rate, of which credit pays a part; a credit note takes back, and what was
    paid already goes to credit. An advance-payment invoice asks for credit with its VAT; the invoice that uses it takes
    both back, and a refund of it pays both out."""
    document = msgspec.json.decode(row.content, type=Document)
    same = {
        "at": midnight(document.issued),
        "document": document.number,
        "kind": document.kind,
        "currency": document.currency,
        "tenant_id": row.tenant_id,
        "vat_id": document.buyer.vat_id,
        "service": midnight(document.service_until),
        "due": midnight(document.due or None),
    }
    of_advance = row.kind == "advance" or row.corrected_kind == "advance"
    sign = -1 if row.kind == "credit_note" else 1
    account: Account = "prepaid" if of_advance else "revenue"
    sales = [
        Booking(
            text=document.buyer.name, debit="receivable", credit=account, net=sign * total.net, tax=sign * total.tax,
            category=total.category, rate=total.rate, **same,
        )
        for total in document.taxes
    ]  # fmt: skip
    if row.kind == "advance":
        return sales
    if of_advance:
        out = Booking(text="credit refunded", debit="clearing", credit="receivable", net=-document.gross, **same)
        return [*sales, out]
    if row.kind == "invoice":
        return [*sales, *_from_credit(document, same)]
    back = await returned(snapshot, row)
    return [*sales, Booking(text="back to credit", debit="receivable", credit="prepaid", net=back, **same)]


def _from_credit(document: Document, same: dict[str, Any]) -> Iterator[Booking]:
    """What credit pays of an invoice: first what was paid in advance with its VAT, by document, then the rest."""
    left = document.prepaid + drawn_of(document)
    for used in deductions_of(document):
        left -= used.net
        yield Booking(
            text=f"advance {used.number}", debit="receivable", credit="prepaid", net=-used.net, tax=-used.tax,
            category=used.category, rate=used.rate, **same,
        )  # fmt: skip
    yield Booking(text="paid from credit", debit="prepaid", credit="receivable", net=left, **same)


def _payments(wanted: ExportQuery) -> Select[Any]:
    first, after = period_bounds(wanted.period)
    payment = invoice_payment.c
    query = (
        select(invoice_payment, invoice.c.number)
        .join(invoice, invoice.c.id == payment.invoice_id)
        .where(payment.at >= first, payment.at < after)
        .order_by(payment.tenant_id, payment.at, payment.id)
    )
    if wanted.seller:
        query = query.where(invoice.c.seller == wanted.seller)
    # all tenants: without a tenant this exports the whole installation
    return query if wanted.tenant_id is None else query.where(payment.tenant_id == wanted.tenant_id)


def _of_payment(row: Any) -> Booking:
    return Booking(
        at=row.at, document=row.number, kind="payment", text=row.reference, debit="clearing", credit="receivable",
        net=row.amount, currency=row.currency, tenant_id=row.tenant_id,
    )  # fmt: skip


async def _sellers(snapshot: ExportSnapshot, wanted: ExportQuery) -> dict[UUID, str]:
    """Who sells to each tenant, where the export is of one seller alone."""
    if not wanted.seller:
        return {}
    # all tenants: credit belongs to whose documents it pays
    rows = await snapshot.session.execute(select(billing_profile.c.tenant_id, billing_profile.c.seller))
    return {row.tenant_id: row.seller for row in rows}


async def _in_documents(snapshot: ExportSnapshot, moves: Sequence[CreditMoved]) -> dict[UUID, int]:
    """Minor units of credit that was bought or refunded with VAT in advance: its documents book them."""
    row, payment = invoice.c, invoice_payment.c
    tenants = {move.tenant_id for move in moves}
    issued = select(payment.id, row.id.label("document"), row.tenant_id, row.net).join_from(
        invoice, invoice_payment, payment.invoice_id == row.id
    )
    advances = (await snapshot.session.execute(issued.where(row.kind == "advance", row.tenant_id.in_(tenants)))).all()
    booked = {one.id: int(one.net) for one in advances}
    notes = {
        step_id(one.document, f"refund:{move.id}"): move.id
        for move in moves
        if move.billed < 0
        for one in advances
        if one.tenant_id == move.tenant_id
    }
    found = select(row.id, row.net).where(row.tenant_id.in_(tenants), row.kind == "credit_note", row.id.in_(notes))
    for id_, net in await snapshot.session.execute(found):
        booked[notes[id_]] = booked.get(notes[id_], 0) - int(net)
    return booked


def _of_credit(
    moves: Iterable[CreditMoved], wanted: ExportQuery, sellers: dict[UUID, str], in_documents: dict[UUID, int]
) -> Iterator[Booking]:
    """Credit that was bought or refunded, and that expired."""
    for move in moves:
        if wanted.seller and sellers.get(move.tenant_id) != wanted.seller:
            continue
        expired = move.category == "Adjustment"
        minor = round_half_up(move.effective if expired else move.billed, minor_unit(move.currency))
        minor -= 0 if expired else in_documents.get(move.id, 0)
        accounts: tuple[Account, Account] = ("prepaid", "breakage") if expired else ("clearing", "prepaid")
        if minor:
            yield Booking(
                at=move.at, document=f"C-{move.id.hex[-12:]}", kind="credit", text=move.text, debit=accounts[0],
                credit=accounts[1], net=minor, currency=move.currency, tenant_id=move.tenant_id,
            )  # fmt: skip
