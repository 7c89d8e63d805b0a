"""Invoices as they are kept: a row that says how things stand, and the document that says what was billed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Select, delete, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.invoices.composing import exact_of
from billing.invoices.document import Document, DocumentKind, InvoiceLine, canonical
from billing.invoices.errors import UnknownInvoice
from billing.invoices.states import InvoiceState
from billing.tables.invoices import invoice, invoice_line, invoice_payment
from billing.usage import check_period
from storage.database.base import to_instant
from storage.database.database import Database


class InvoiceRecord(msgspec.Struct, frozen=True):
    """How an invoice or credit note stands. Amounts are in minor units, those with `pico` in pico-units."""

    id: UUID
    kind: DocumentKind
    seller: str
    tenant_id: UUID
    period: str
    currency: str
    state: InvoiceState
    number: str | None
    issued: str | None
    due: str | None
    net: int
    tax: int
    gross: int
    prepaid: int
    payable: int
    paid: int
    credited: int
    usage_pico: int
    promo_pico: int
    charges_pico: int
    prepaid_pico: int
    returned_pico: int
    settled_pico: int
    carry_in: int
    carry_out: int
    prepaid_carry_in: int
    prepaid_carry_out: int
    corrects: UUID | None
    sha256: str | None

    @property
    def left(self) -> int:
        """What is still to be paid, in minor units."""
        if self.kind != "invoice" or self.state == "void":
            return 0
        return max(0, self.payable - self.paid - self.credited)

    @property
    def counted(self) -> dict[str, int]:
        """The amounts that it counts for in totals, in minor units: a void document counts for nothing."""
        names = ("net", "tax", "gross", "prepaid", "paid", "credited", "left")
        return {name: 0 if self.state == "void" else getattr(self, name) for name in names}

    @property
    def owed_pico(self) -> int:
        """What of its usage nothing was given, given back or paid for in advance, in pico-units."""
        return self.usage_pico - self.returned_pico - self.promo_pico - self.prepaid_pico

    @property
    def name(self) -> str:
        """What people call it: its number, or that it has none."""
        return self.number or f"the draft of {self.period}"


class Payment(msgspec.Struct, frozen=True):
    """Money that came in for an invoice, in minor units, at an instant."""

    id: UUID
    amount: int
    reference: str
    at: int


class Settlements(msgspec.Struct, frozen=True):
    """What was paid and credited of an invoice until now, the first first."""

    payments: Sequence[Payment] = ()
    credit_notes: Sequence[InvoiceRecord] = ()


NOTHING_SETTLED = Settlements()
_COLUMNS = [invoice.c[name] for name in InvoiceRecord.__struct_fields__]


class Invoices:
    """Looking at invoices."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def found(
        self, tenant_id: UUID | None = None, period: str | None = None, state: InvoiceState | None = None
    ) -> list[InvoiceRecord]:
        """Invoices and credit notes of a tenant, a period, a state, or all, in the order in which they were made."""
        query = select(*_COLUMNS).order_by(invoice.c.drafted_at, invoice.c.number, invoice.c.id)
        if tenant_id is not None:  # else all tenants: an administrator's list
            query = query.where(invoice.c.tenant_id == tenant_id)
        if period is not None:
            query = query.where(invoice.c.period == check_period(period))
        if state is not None:
            query = query.where(invoice.c.state == state)
        async with self._database.reading() as session:
            return [InvoiceRecord(*row) for row in await session.execute(query)]

    async def numbered(self, number: str, seller: str | None = None) -> InvoiceRecord:
        """The invoice or credit note of this number. Raises UnknownInvoice."""
        async with self._database.reading() as session:
            return await numbered(session, number, seller)

    async def draft(self, tenant_id: UUID, period: str) -> InvoiceRecord | None:
        """The tenant's invoice of a period that is not void, draft or not; None if there is none."""
        async with self._database.reading() as session:
            return await of_period(session, tenant_id, check_period(period))

    async def document(self, invoice_id: UUID) -> Document:
        """What it says. Raises UnknownInvoice."""
        async with self._database.reading() as session:
            return await read_document(session, invoice_id)

    async def payments(self, invoice_id: UUID) -> list[Payment]:
        """What came in for it, the first first."""
        of = invoice_payment.c
        query = select(of.id, of.amount, of.reference, of.at).where(of.invoice_id == invoice_id)
        async with self._database.reading() as session:
            return [Payment(*row) for row in await session.execute(query.order_by(of.at, of.id))]

    async def settlements(self, invoice_id: UUID) -> Settlements:
        """What came in for it and was credited of it."""
        return Settlements(await self.payments(invoice_id), await self.credit_notes(invoice_id))

    async def credit_notes(self, invoice_id: UUID) -> list[InvoiceRecord]:
        """What was credited of it, the first first."""
        query = select(*_COLUMNS).where(invoice.c.corrects == invoice_id).order_by(invoice.c.year, invoice.c.n)
        async with self._database.reading() as session:
            return [InvoiceRecord(*row) for row in await session.execute(query)]


async def numbered(session: AsyncSession, number: str, seller: str | None = None) -> InvoiceRecord:
    """The document of this number, in this transaction. Raises UnknownInvoice."""
    query = select(*_COLUMNS).where(invoice.c.number == number)
    if seller is not None:
        query = query.where(invoice.c.seller == seller)
    rows = (await session.execute(query)).all()
    if len(rows) > 1:
        sellers = ", ".join(sorted(row.seller for row in rows))
        raise UnknownInvoice(f"several sellers have a document {number}: say which with --seller ({sellers})")
    if not rows:
        raise UnknownInvoice(f"there is no invoice {number}: `turnpike invoices list`")
    return InvoiceRecord(*rows[0])


async def of_period(session: AsyncSession, tenant_id: UUID, period: str) -> InvoiceRecord | None:
    """The tenant's invoice of a period that is not void, in this transaction."""
    of = invoice.c
    query = select(*_COLUMNS).where(
        of.tenant_id == tenant_id, of.period == period, of.kind == "invoice", of.state != "void"
    )
    row = (await session.execute(query)).one_or_none()
    return None if row is None else InvoiceRecord(*row)


async def locked(database: Database, session: AsyncSession, invoice_id: UUID) -> InvoiceRecord:
    """The invoice as it is now, locked until the transaction ends. Raises UnknownInvoice."""
    query: Select[Any] = select(*_COLUMNS).where(invoice.c.id == invoice_id)
    row = (await session.execute(database.locked(query))).one_or_none()
    if row is None:
        raise UnknownInvoice("the invoice was replaced by another draft meanwhile")
    return InvoiceRecord(*row)


async def read_document(session: AsyncSession, invoice_id: UUID) -> Document:
    """What an invoice says, in this transaction. Raises UnknownInvoice."""
    content = await session.scalar(select(invoice.c.content).where(invoice.c.id == invoice_id))
    if content is None:
        raise UnknownInvoice("the invoice was replaced by another draft meanwhile")
    return msgspec.json.decode(content, type=Document)


async def write_draft(
    database: Database,
    session: AsyncSession,
    invoice_id: UUID,
    document: Document,
    corrects: UUID | None = None,
) -> None:
    """Insert a draft with its lines; the draft that was there under this id is replaced."""
    await session.execute(delete(invoice_line).where(invoice_line.c.invoice_id == invoice_id))
    await session.execute(delete(invoice).where(invoice.c.id == invoice_id))
    row = columns_of(document) | {
        "id": invoice_id,
        "state": "draft",
        "corrects": corrects,
        "content": canonical(document),
        "drafted_at": database.clock,
    }
    await session.execute(insert(invoice).values(row))
    if document.lines:
        await session.execute(insert(invoice_line), rows_of(invoice_id, document))


def columns_of(document: Document) -> dict[str, Any]:
    """The columns of an invoice's row that follow from its document alone."""
    exact = exact_of(document.lines)
    return {
        "kind": document.kind,
        "seller": document.seller.id,
        "tenant_id": UUID(document.tenant_id),
        **{name: getattr(document, name) for name in ("period", "currency", "series")},
        **{name: getattr(document, name) or None for name in ("number", "issued", "due")},
        **{name: getattr(document, name) for name in ("net", "tax", "gross", "prepaid", "payable")},
        "usage_pico": exact.usage,
        "promo_pico": exact.promo,
        "charges_pico": exact.charges,
        "prepaid_pico": int(document.prepaid_exact),
        "returned_pico": 0 if document.returned is msgspec.UNSET else int(document.returned.exact),
        **{
            name: int(getattr(document, name))
            for name in ("carry_in", "carry_out", "prepaid_carry_in", "prepaid_carry_out")
        },
    }


def rows_of(invoice_id: UUID, document: Document) -> list[dict[str, Any]]:
    """The rows of a document's lines."""
    return [
        {"invoice_id": invoice_id, "n": n, "tenant_id": UUID(document.tenant_id), "period": document.period}
        | _columns_of_line(line)
        for n, line in enumerate(document.lines, 1)
    ]


def _columns_of_line(line: InvoiceLine) -> dict[str, Any]:
    priced = bool(line.unit)
    return {
        "kind": line.kind,
        "text": line.text,
        "project_id": UUID(line.project_id) if line.project_id else None,
        **{name: getattr(line, name) or None for name in ("model", "meter", "lane", "corrects")},
        "context_from": line.context_from,
        "price_version": line.price_version or None,
        "price_micro": line.price if priced else None,
        "units": int(line.units),
        "exact_pico": int(line.exact),
        "net": line.net,
        "category": line.category,
        "rate": line.rate,
        "service_start": _instant(line.service_from),
        "service_end": _instant(line.service_until, days=1),
        "of": line.of,
    }


def _instant(day: str, days: int = 0) -> int:
    return to_instant(datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(days=days))
