"""Stored invoices and credit notes: a row with the state and amounts, and the document that was billed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Select, delete, insert, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from billing.calendar import check_period
from billing.integrity.canonical_json import canonical
from billing.invoices.composing import exact_of
from billing.invoices.document import (
    Document,
    DocumentKind,
    InvoiceLine,
    advance_tax_of,
    deductions_of,
    drawn_of,
)
from billing.invoices.errors import UnknownInvoice, WrongState
from billing.tables.invoices import advance_deduction, invoice, invoice_line, invoice_payment
from storage.database.base import to_instant
from storage.database.database import Database

InvoiceState = Literal["draft", "finalized", "partially_paid", "paid", "credited", "void", "uncollectible"]

TRANSITIONS: dict[InvoiceState, tuple[InvoiceState, ...]] = {
    "draft": ("finalized",),
    "finalized": ("partially_paid", "paid", "credited", "void", "uncollectible"),
    "partially_paid": ("partially_paid", "paid", "credited", "uncollectible"),
    "uncollectible": ("uncollectible", "paid", "credited"),
    "paid": ("credited",),
    "credited": (),
    "void": (),
}
"""State → states that may follow. An uncollectible invoice may still be paid; a void number stays void. An invoice is
`credited` when credit notes have taken back all of it."""


def check_transition(name: str, state: InvoiceState, wanted: InvoiceState) -> InvoiceState:
    """The wanted state, if it may follow. Raises WrongState."""
    if wanted not in TRANSITIONS[state]:
        raise WrongState(name, state, wanted)
    return wanted


def settled_state(name: str, state: InvoiceState, *, left: int, settled: bool) -> InvoiceState:
    """The state with `left` minor units to pay, after something was paid or credited (`settled`). Raises WrongState."""
    if left == 0:
        return check_transition(name, state, "paid")
    if state == "uncollectible":
        return state
    return check_transition(name, state, "partially_paid") if settled else state


class InvoiceRecord(msgspec.Struct, frozen=True):
    """The state and amounts of an invoice or credit note. Amounts are in minor units, those with `pico` in pico-units.

    `paid` and `credited` change after the document is finalized; all other amounts follow from the document.
    """

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
    advance_tax: int
    drawn: int
    deferred_pico: int
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
        if self.kind == "credit_note" or self.state == "void":
            return 0
        return max(0, self.payable - self.paid - self.credited)

    @property
    def counted(self) -> dict[str, int]:
        """The amounts that totals count, in minor units: 0 for a void document."""
        names = ("net", "tax", "gross", "prepaid", "paid", "credited", "left")
        return {name: 0 if self.state == "void" else getattr(self, name) for name in names}

    @property
    def owed_pico(self) -> int:
        """The part of its usage that this invoice asks for, in pico-units: without promo, prepaid and returned."""
        return self.usage_pico - self.returned_pico - self.promo_pico - self.prepaid_pico

    @property
    def name(self) -> str:
        """Its number, or for a draft its period in words."""
        return self.number or f"the draft of {self.period}"


class Payment(msgspec.Struct, frozen=True):
    """A payment of an invoice: minor units, at an instant (microseconds since the Unix epoch)."""

    id: UUID
    amount: int
    reference: str
    at: int


class PaymentsAndCredits(msgspec.Struct, frozen=True):
    """Payments and credit notes of an invoice until now, oldest first."""

    payments: Sequence[Payment] = ()
    credit_notes: Sequence[InvoiceRecord] = ()


NOTHING_SETTLED = PaymentsAndCredits()
_COLUMNS = [invoice.c[name] for name in InvoiceRecord.__struct_fields__]


class Invoices:
    """Reads invoices and credit notes. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self,
        tenant_ids: Collection[UUID] | None,
        *,
        limit: int,
        after: UUID | None = None,
        period: str | None = None,
        state: InvoiceState | None = None,
        kind: DocumentKind | None = None,
        drafts: bool = True,
    ) -> list[InvoiceRecord]:
        """At most `limit` invoices and credit notes of these tenants (None: of all), newest first, those after the
        document `after`. `drafts`: with those that are not issued. Raises InvalidPeriod."""
        row = invoice.c
        wanted: list[ColumnElement[bool]] = [] if tenant_ids is None else [row.tenant_id.in_(tenant_ids)]
        for column, value in ((row.period, period and check_period(period)), (row.state, state), (row.kind, kind)):
            if value is not None:
                wanted.append(column == value)
        if not drafts:
            wanted.append(row.state != "draft")
        if after is not None:  # all tenants: who asks may see the document
            last = select(row.drafted_at, row.id).where(row.id == after)
            wanted.append(tuple_(row.drafted_at, row.id) < last.scalar_subquery())
        query = select(*_COLUMNS).where(*wanted).order_by(row.drafted_at.desc(), row.id.desc()).limit(limit)
        async with self._database.reading() as session:
            return [InvoiceRecord(*found) for found in await session.execute(query)]

    async def list(
        self, tenant_id: UUID | None = None, period: str | None = None, state: InvoiceState | None = None
    ) -> list[InvoiceRecord]:
        """Invoices and credit notes of a tenant, a period and a state (None: any), oldest first."""
        query = select(*_COLUMNS).order_by(invoice.c.drafted_at, invoice.c.number, invoice.c.id)
        if tenant_id is not None:  # else all tenants: an administrator's list
            query = query.where(invoice.c.tenant_id == tenant_id)
        if period is not None:
            query = query.where(invoice.c.period == check_period(period))
        if state is not None:
            query = query.where(invoice.c.state == state)
        async with self._database.reading() as session:
            return [InvoiceRecord(*row) for row in await session.execute(query)]

    async def of_tenant(self, tenant_id: UUID, reference: UUID | str) -> InvoiceRecord:
        """The tenant's document of this id or number. Raises UnknownInvoice."""
        named = invoice.c.id == reference if isinstance(reference, UUID) else invoice.c.number == reference
        query = select(*_COLUMNS).where(invoice.c.tenant_id == tenant_id, named)
        async with self._database.reading() as session:
            rows = (await session.execute(query.limit(2))).all()
        if len(rows) != 1:
            raise UnknownInvoice(
                "several sellers have a document of this number; use its id" if rows else "no such invoice"
            )
        return InvoiceRecord(*rows[0])

    async def content(self, record: InvoiceRecord) -> str:
        """The canonical JSON of a document, of which `sha256` is the hash. Raises UnknownInvoice."""
        query = select(invoice.c.content).where(invoice.c.tenant_id == record.tenant_id, invoice.c.id == record.id)
        async with self._database.reading() as session:
            content: str | None = await session.scalar(query)
        if content is None:
            raise UnknownInvoice("the draft was replaced by another one meanwhile")
        return content

    async def by_number(self, number: str, seller: str | None = None) -> InvoiceRecord:
        """The document with this number, of one seller or (None) of the only one that has it.

        Raises UnknownInvoice if there is none, or if several sellers have one.
        """
        # all tenants: a number belongs to a seller's series, and an administrator asks
        query = select(*_COLUMNS).where(invoice.c.number == number)
        if seller is not None:
            query = query.where(invoice.c.seller == seller)
        async with self._database.reading() as session:
            rows = (await session.execute(query)).all()
        if len(rows) > 1:
            sellers = ", ".join(sorted(row.seller for row in rows))
            raise UnknownInvoice(f"several sellers have a document {number}; choose one with --seller ({sellers})")
        if not rows:
            raise UnknownInvoice(f"there is no invoice {number}; `turnpike invoices list` shows those there are")
        return InvoiceRecord(*rows[0])

    async def of_period(self, tenant_id: UUID, period: str) -> InvoiceRecord | None:
        """The tenant's invoice or draft of a period that is not void; None if there is none."""
        async with self._database.reading() as session:
            return await find_invoice(session, tenant_id, check_period(period))

    async def document(self, record: InvoiceRecord) -> Document:
        """The document of an invoice or credit note. Raises UnknownInvoice."""
        async with self._database.reading() as session:
            return await read_document(session, record.tenant_id, record.id)

    async def settlements(self, record: InvoiceRecord) -> PaymentsAndCredits:
        """The payments and credit notes of an invoice until now."""
        payment, tenant_id = invoice_payment.c, record.tenant_id
        payments = (
            select(payment.id, payment.amount, payment.reference, payment.at)
            .where(payment.tenant_id == tenant_id, payment.invoice_id == record.id)
            .order_by(payment.at, payment.id)
        )
        notes = select(*_COLUMNS).where(invoice.c.tenant_id == tenant_id, invoice.c.corrects == record.id)
        async with self._database.reading() as session:
            return PaymentsAndCredits(
                [Payment(*row) for row in await session.execute(payments)],
                [InvoiceRecord(*row) for row in await session.execute(notes.order_by(invoice.c.year, invoice.c.n))],
            )


async def find_invoice(session: AsyncSession, tenant_id: UUID, period: str) -> InvoiceRecord | None:
    """The tenant's invoice or draft of a period that is not void, in this transaction; None if there is none."""
    row = invoice.c
    query = select(*_COLUMNS).where(
        row.tenant_id == tenant_id, row.period == period, row.kind == "invoice", row.state != "void"
    )
    found = (await session.execute(query)).one_or_none()
    return None if found is None else InvoiceRecord(*found)


async def lock_invoice(database: Database, session: AsyncSession, tenant_id: UUID, invoice_id: UUID) -> InvoiceRecord:
    """An invoice or credit note as it is now, locked until the transaction ends. Raises UnknownInvoice."""
    query: Select[Any] = select(*_COLUMNS).where(invoice.c.tenant_id == tenant_id, invoice.c.id == invoice_id)
    row = (await session.execute(database.locked(query))).one_or_none()
    if row is None:
        raise UnknownInvoice("the draft was replaced by another one meanwhile")
    return InvoiceRecord(*row)


async def read_document(session: AsyncSession, tenant_id: UUID, invoice_id: UUID) -> Document:
    """The document of an invoice or credit note, in this transaction. Raises UnknownInvoice."""
    query = select(invoice.c.content).where(invoice.c.tenant_id == tenant_id, invoice.c.id == invoice_id)
    content = await session.scalar(query)
    if content is None:
        raise UnknownInvoice("the draft was replaced by another one meanwhile")
    return msgspec.json.decode(content, type=Document)


async def write_draft(
    database: Database,
    session: AsyncSession,
    invoice_id: UUID,
    document: Document,
    corrects: UUID | None = None,
) -> None:
    """Insert a draft with its lines. A draft that has this id is replaced."""
    # no entry: its callers record the document (`record_document`)
    row = columns_of(document)
    await delete_draft(session, row["tenant_id"], invoice_id)
    row |= {
        "id": invoice_id,
        "state": "draft",
        "corrects": corrects,
        "content": canonical(document),
        "drafted_at": database.clock,
    }
    await session.execute(insert(invoice).values(row))
    if document.lines:
        await session.execute(insert(invoice_line), rows_of(invoice_id, document))
    if deductions := deduction_rows_of(invoice_id, document):
        await session.execute(insert(advance_deduction), deductions)


async def update_invoice(session: AsyncSession, record: InvoiceRecord, values: Mapping[str, Any]) -> None:
    """Write columns of an invoice or credit note."""
    # no entry: its callers record the document (`record_document`)
    row = invoice.c
    this_row = (row.tenant_id == record.tenant_id, row.id == record.id)
    await session.execute(update(invoice).where(*this_row).values(values))


async def delete_draft(session: AsyncSession, tenant_id: UUID, invoice_id: UUID) -> None:
    """Delete a draft and its lines, if there is one."""
    # no entry: its callers record the document (`record_document`)
    for table in (invoice_line, advance_deduction):
        mine = (table.c.tenant_id == tenant_id, table.c.invoice_id == invoice_id)
        await session.execute(delete(table).where(*mine))
    await session.execute(delete(invoice).where(invoice.c.tenant_id == tenant_id, invoice.c.id == invoice_id))


def columns_of(document: Document) -> dict[str, Any]:
    """The columns of an `invoice` row that follow from its document alone."""
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
        "advance_tax": advance_tax_of(document),
        "drawn": drawn_of(document),
        "deferred_pico": 0 if document.deferred is msgspec.UNSET else int(document.deferred),
        "returned_pico": 0 if document.returned is msgspec.UNSET else int(document.returned.exact),
        **{
            name: int(getattr(document, name))
            for name in ("carry_in", "carry_out", "prepaid_carry_in", "prepaid_carry_out")
        },
    }


def rows_of(invoice_id: UUID, document: Document) -> list[dict[str, Any]]:
    """The `invoice_line` rows of a document."""
    return [
        {"invoice_id": invoice_id, "n": n, "tenant_id": UUID(document.tenant_id), "period": document.period}
        | _columns_of_line(line)
        for n, line in enumerate(document.lines, 1)
    ]


def deduction_rows_of(invoice_id: UUID, document: Document) -> list[dict[str, Any]]:
    """The `advance_deduction` rows of a document."""
    own = {"invoice_id": invoice_id, "tenant_id": UUID(document.tenant_id)}
    return [
        {**own, "n": n, "advance_id": UUID(one.advance), "exact_pico": int(one.exact), "net": one.net, "tax": one.tax}
        for n, one in enumerate(deductions_of(document), 1)
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
