"""Advance-payment invoices: VAT on credit that is due when it is paid (article 65 of Directive 2006/112/EC).

A seller chooses between two treatments of credit, of which one applies to each payment:

| `prepayment` | when VAT is due | what a payment is | what an invoice does |
|---|---|---|---|
| `advance` | when credit is paid | net credit + VAT, with an advance-payment invoice | deducts both |
| `multi_purpose` | when credit is used | credit, without VAT | takes VAT from credit too |

VAT in advance needs a known place and rate: where the tenant has no billing profile yet, credit is without VAT. The
document is numbered in the seller's series of invoices and is paid from the start. Its net is a grant, which has the id
of its payment. A refund credits net and VAT in proportion. The VAT of credit that expires stays due.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import partial
from uuid import UUID

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.accounts.balances import Balances
from billing.integrity.row_seals import seal_rows
from billing.invoices.accounting.posting import balanced_entries, post, step_id
from billing.invoices.credit_notes import note_of
from billing.invoices.document import Document, InvoiceLine
from billing.invoices.errors import NoProfile
from billing.invoices.finalizing import issue
from billing.invoices.parties.dated import DatedParty, InvoiceParties
from billing.invoices.parties.parties import Buyer
from billing.invoices.parties.store import lock_documents, read_buyer, read_seller, today
from billing.invoices.parties.tax import Tax, TaxTotal, tax_totals
from billing.invoices.recording import PAID, record_document, send_notice
from billing.invoices.registers.exchange_rates import local_tax
from billing.invoices.registers.vat_checks import read_vat_checks, refuted_ids
from billing.invoices.store import InvoiceRecord, lock_invoice, read_document, update_invoice, write_draft
from billing.money import InvalidMoney, minor_unit, round_half_up
from billing.tables.invoices import invoice, invoice_payment
from billing.transaction.money_transaction import Grant
from storage.database.database import Database

_WHOLE = 10_000
_TEXT = "Credit for the use of models, paid in advance"


class TopUpQuote(msgspec.Struct, frozen=True):
    """What so much credit costs now, in minor units. Without `tax_in_advance` VAT is due when the credit is used."""

    net: int
    tax: int
    currency: str
    tax_in_advance: bool

    @property
    def gross(self) -> int:
        """What is to be paid."""
        return self.net + self.tax


class Advances:
    """Writes the documents of payments and refunds (`billing.accounts.balances.AdvanceInvoicing`)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def issue(self, session: AsyncSession, made: Grant) -> None:
        """Write the advance-payment invoice of a payment that is about to be put in, where its seller takes VAT in
        advance; once for each payment. Raises InvalidMoney, InvalidParty, NumberRefused."""
        try:
            buyer = await lock_documents(self._database, session, made.tenant_id)
        except NoProfile:
            return
        parties = await _parties(self._database, session, buyer, made.tenant_id)
        if parties.seller.prepayment != "advance" or await self._is_issued(session, made.id):
            return
        if made.amount_pico % minor_unit(made.currency):
            raise InvalidMoney("amount: credit with VAT in advance is a whole number of minor units")
        document = compose_advance(parties, made.tenant_id, made.amount_pico, made.currency)
        local = await local_tax(session, document, parties.event) or msgspec.UNSET
        document = msgspec.structs.replace(document, local_tax=local)
        draft_id = step_id(made.id, "advance")
        await write_draft(self._database, session, draft_id, document)
        draft = await lock_invoice(self._database, session, made.tenant_id, draft_id)
        record = await issue(self._database, session, draft, document, None)
        paid = await self._record_payment(session, record, made)
        await record_document(session, "advance.issued", None, paid, made.reason)

    async def lock_units(self, session: AsyncSession, tenant_id: UUID) -> Mapping[UUID, int]:
        """Lock the tenant's documents; the minor unit of each grant that has an advance-payment invoice."""
        try:
            await lock_documents(self._database, session, tenant_id)
        except NoProfile:
            return {}
        return {grant: minor_unit(currency) for grant, _, currency in await _issued(session, tenant_id)}

    async def credit(
        self, session: AsyncSession, tenant_id: UUID, refund_id: UUID, parts: Mapping[UUID, int], reason: str
    ) -> int:
        """Credit, with a note for each advance-payment invoice, what is refunded of it. Returns the VAT that goes back
        beside it, in minor units. Raises NumberRefused."""
        vat = 0
        documents = {grant: document for grant, document, _ in await _issued(session, tenant_id)}
        for grant, pico in parts.items():
            current = await lock_invoice(self._database, session, tenant_id, documents[grant])
            vat += await self._write_note(session, current, pico // minor_unit(current.currency), refund_id, reason)
        return vat

    async def net_of(self, session: AsyncSession, tenant_id: UUID, grant: UUID, gross: int) -> int:
        """The most credit of a grant that can go back, with its VAT, as so many minor units of money; all of them
        without such an invoice."""
        documents = {grant: document for grant, document, _ in await _issued(session, tenant_id)}
        if grant not in documents:
            return gross
        document = await read_document(session, tenant_id, documents[grant])
        before = await _credited(session, tenant_id, documents[grant])
        net = min(gross * document.net // document.gross + 1, document.net - before)
        while net > 0 and net + _tax_of_note(document, before, net) > gross:
            net -= 1
        return net

    async def _write_note(
        self, session: AsyncSession, current: InvoiceRecord, net: int, refund_id: UUID, reason: str
    ) -> int:
        database, tenant_id = self._database, current.tenant_id
        document = await read_document(session, tenant_id, current.id)
        before = await _credited(session, tenant_id, current.id)
        note = _compose_note(document, before, net, reason or "Unused credit is refunded")
        note_id = step_id(current.id, f"refund:{refund_id}")
        await write_draft(database, session, note_id, note, corrects=current.id)
        draft = await lock_invoice(database, session, tenant_id, note_id)
        issued = await issue(database, session, draft, note, None)
        entries = balanced_entries(("tax", "clearing", issued.tax * minor_unit(issued.currency)))
        await post(database, session, issued, "finalize", entries)
        whole = current.credited + issued.gross == current.gross
        changes = {"credited": current.credited + issued.gross, "state": "credited" if whole else current.state}
        await update_invoice(session, current, changes)
        await record_document(session, "credit_note.issued", None, issued, note.reason)
        return issued.tax

    async def _is_issued(self, session: AsyncSession, payment_id: UUID) -> bool:
        # all tenants: an id is one for all of them
        row = invoice_payment.c.id
        return await session.scalar(select(row).where(row == payment_id)) is not None

    async def _record_payment(self, session: AsyncSession, record: InvoiceRecord, made: Grant) -> InvoiceRecord:
        row = {
            **{"id": made.id, "invoice_id": record.id, "tenant_id": made.tenant_id, "amount": record.gross},
            **{"currency": made.currency, "usage_pico": made.amount_pico, "at": self._database.clock},
            "reference": made.reason or str(made.id),
        }
        await session.execute(insert(invoice_payment).values(row))
        await seal_rows(session, invoice_payment, invoice_payment.c.id == made.id)
        rest = balanced_entries(("clearing", "invoiced", record.tax * minor_unit(record.currency)))
        await post(self._database, session, record, "payment:rest", rest, memo=f"VAT of {record.name}")
        await update_invoice(session, record, {"state": "paid", "paid": record.gross})
        paid = await lock_invoice(self._database, session, record.tenant_id, record.id)
        await send_notice(self._database, session, PAID, paid)
        return paid


def top_ups(database: Database) -> Balances:
    """Balances whose payments and refunds have the documents that their VAT needs."""
    return Balances(database, Advances(database))


async def quote(database: Database, tenant_id: UUID, net: int, currency: str) -> TopUpQuote:
    """What so many minor units of credit cost the tenant now. Raises InvalidParty, DatabaseUnavailable."""
    async with database.reading() as session:
        tax = await _tax_now(database, session, tenant_id)
    return TopUpQuote(net, 0 if tax is None else _tax_on(net, tax), currency, tax is not None)


async def refunded_vat(database: Database, tenant_id: UUID, refund_id: UUID) -> int:
    """The VAT that a refund paid back beside its amount, in pico-units. Raises DatabaseUnavailable."""
    async with database.reading() as session:
        issued = await _issued(session, tenant_id)
        notes = [step_id(document, f"refund:{refund_id}") for _, document, _ in issued]
        row = invoice.c
        query = select(row.tax, row.currency).where(row.tenant_id == tenant_id, row.id.in_(notes))
        return sum(tax * minor_unit(currency) for tax, currency in await session.execute(query))


async def credit_for(database: Database, tenant_id: UUID, gross: int, currency: str) -> TopUpQuote:
    """The most credit that so many minor units of money buy the tenant now. Where rounding the VAT leaves a minor unit
    over, the quote's `gross` is less by that. Raises InvalidParty, DatabaseUnavailable."""
    async with database.reading() as session:
        return await credit_in(database, session, tenant_id, gross, currency)


async def credit_in(
    database: Database, session: AsyncSession, tenant_id: UUID, gross: int, currency: str
) -> TopUpQuote:
    """As `credit_for`, in this transaction."""
    tax = await _tax_now(database, session, tenant_id)
    if tax is None:
        return TopUpQuote(gross, 0, currency, tax_in_advance=False)
    net = gross * _WHOLE // (_WHOLE + tax.rate) + 1
    while net + _tax_on(net, tax) > gross:
        net -= 1
    return TopUpQuote(net, _tax_on(net, tax), currency, tax_in_advance=True)


def compose_advance(parties: InvoiceParties, tenant_id: UUID, pico: int, currency: str) -> Document:
    """The document of a payment for so much credit, a whole number of minor units. Raises InvalidParty."""
    net, tax = pico // minor_unit(currency), parties.tax_on(parties.event)
    totals = tax_totals([(tax, net)])
    vat = sum(total.tax for total in totals)
    line = InvoiceLine(kind="advance", text=_TEXT, service_from=parties.event, service_until=parties.event,
                       exact=str(pico), net=net, category=tax.category, rate=tax.rate)  # fmt: skip
    return Document(
        kind="advance",
        series=parties.seller.series,
        period=parties.event[:7],
        service_from=parties.event,
        service_until=parties.event,
        currency=currency,
        seller=parties.seller,
        tenant_id=str(tenant_id),
        buyer=parties.buyer,
        lines=[line],
        taxes=totals,
        net=net,
        tax=vat,
        gross=net + vat,
        prepaid=0,
        payable=net + vat,
    )


def _compose_note(document: Document, credited: int, net: int, reason: str) -> Document:
    """The credit note for `net` minor units, after `credited`. What is credited and what is left have, together, the
    VAT that was charged."""
    (line,), (total,) = document.lines, document.taxes
    pico = net * minor_unit(document.currency)
    tax = _tax_of_note(document, credited, net)
    lines = [msgspec.structs.replace(line, exact=str(pico), net=net, of=1)]
    return note_of(document, lines, [TaxTotal(total.category, total.rate, total.reason, net, tax)], reason)


def _tax_of_note(document: Document, credited: int, net: int) -> int:
    def tax_of_rest(credited_net: int) -> int:
        return round_half_up(document.tax * (document.net - credited_net), document.net)

    return tax_of_rest(credited) - tax_of_rest(credited + net)


async def _credited(session: AsyncSession, tenant_id: UUID, document_id: UUID) -> int:
    """The net that credit notes have taken off a document."""
    query = select(invoice.c.net).where(invoice.c.tenant_id == tenant_id, invoice.c.corrects == document_id)
    return sum(await session.scalars(query))


async def _issued(session: AsyncSession, tenant_id: UUID) -> list[tuple[UUID, UUID, str]]:
    """The tenant's advance-payment invoices: grant, document, currency."""
    row, payment = invoice.c, invoice_payment.c
    query = select(payment.id, row.id, row.currency).join_from(invoice, invoice_payment, payment.invoice_id == row.id)
    found = await session.execute(query.where(row.tenant_id == tenant_id, row.kind == "advance"))
    return [(grant, document, currency) for grant, document, currency in found]


async def _parties(
    database: Database, session: AsyncSession, buyer: DatedParty[Buyer], tenant_id: UUID
) -> InvoiceParties:
    """The parties of a payment of today."""
    day: date = await today(database, session)
    seller = await read_seller(database, session, buyer.on(day.isoformat()).seller)
    refuted = partial(refuted_ids, await read_vat_checks(session, tenant_id))
    return InvoiceParties(seller, buyer, day.isoformat(), day.isoformat(), refuted)


async def _tax_now(database: Database, session: AsyncSession, tenant_id: UUID) -> Tax | None:
    """The tax on a payment of today; None where it is due later."""
    try:
        buyer = await read_buyer(database, session, tenant_id)
        parties = await _parties(database, session, buyer, tenant_id)
    except NoProfile:
        return None
    return parties.tax_on(parties.event) if parties.seller.prepayment == "advance" else None


def _tax_on(net: int, tax: Tax) -> int:
    return round_half_up(net * tax.rate, _WHOLE)
