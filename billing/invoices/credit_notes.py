"""Credit notes: take back an invoice, whole or by line, never more than is left of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.accounts.balances import settle_payment
from billing.accounts.taken_back import read_taken_back
from billing.invoices.accounting.deferral import deferred_by_note, with_deferral
from billing.invoices.accounting.posting import balanced_entries, post, step_id
from billing.invoices.collection import MOST_TEXT, settle_invoice
from billing.invoices.document import Document, InvoiceLine, LocalTax
from billing.invoices.errors import AmountRefused, WrongState
from billing.invoices.finalizing import issue
from billing.invoices.parties.dated import BUYER_FACTS, SELLER_FACTS, with_facts
from billing.invoices.parties.store import lock_documents, read_buyer, read_seller, today
from billing.invoices.parties.tax import Tax, TaxTotal, tax_totals
from billing.invoices.recording import record_document
from billing.invoices.store import InvoiceRecord, lock_invoice, read_document, update_invoice, write_draft
from billing.money import format_minor, format_pico, minor_to_pico, minor_unit, round_half_up
from billing.pending_changes import propose_if_needed
from billing.rating.commitment_accounts import read_commitment_lines
from billing.rating.commitments import lines_of
from billing.rating.lines import money_text
from billing.rating.schedules import read_schedule
from billing.tables.invoices import invoice
from billing.transaction.money_transaction import Grant
from billing.transaction.opening import money_transaction_in
from storage.database.database import Database
from storage.free_text import check_text


class Creditable(msgspec.Struct, frozen=True):
    """What credit notes have left of an invoice, in minor units: by line, and of the tax by category and rate."""

    lines: list[int]
    taxes: dict[tuple[str, int], int]


class CreditArguments(msgspec.Struct, frozen=True):
    """A credit note, as it is kept until another person approves it."""

    tenant_id: UUID
    invoice_id: UUID
    reason: str
    request: str
    amounts: Mapping[int, int | None] | None = None
    issued: date | None = None


async def credit(
    database: Database,
    record: InvoiceRecord,
    reason: str,
    *,
    request: str,
    amounts: Mapping[int, int | None] | None = None,
    issued: date | None = None,
    write: bool = True,
) -> tuple[InvoiceRecord | None, Document]:
    """Issue a credit note for an invoice; return it and its document.

    `amounts` are minor units by line number from 1, None for all that is left of the line; without `amounts`, all that
    is left of the invoice is credited. The credit lowers what is still to be paid; the rest goes to the tenant's
    balance. `request` is an idempotency key: repeated with the same reason and lines, it changes nothing. Without
    `write` (a dry run) only the document is returned.

    Raises WrongState, AmountRefused, NumberRefused, InvalidText, DatabaseUnavailable; ChangePending while it takes two
    people.
    """
    check_text("reason", reason, MOST_TEXT)
    check_text("request", request, MOST_TEXT)
    arguments = CreditArguments(record.tenant_id, record.id, reason, request, amounts, issued)
    if not write:
        async with database.reading() as session:
            return None, await _compose(database, session, record, arguments)
    await _propose(database, record, arguments)
    async with database.transaction() as session:
        return await credit_in(database, session, arguments)


async def credit_in(
    database: Database, session: AsyncSession, arguments: CreditArguments
) -> tuple[InvoiceRecord, Document]:
    """As `credit`, in this transaction and without another person's approval."""
    tenant_id, reason, request = arguments.tenant_id, arguments.reason, arguments.request
    amounts, note_id = arguments.amounts, step_id(arguments.invoice_id, f"credit:{request}")
    await lock_documents(database, session, tenant_id)
    current = await lock_invoice(database, session, tenant_id, arguments.invoice_id)
    await (await money_transaction_in(database, session)).lock([tenant_id])  # nobody corrects usage meanwhile
    if await session.scalar(select(invoice.c.id).where(invoice.c.id == note_id)) is not None:
        _check_same_request(await read_document(session, tenant_id, note_id), request, reason, amounts)
    else:
        document = await _compose(database, session, current, arguments)
        await write_draft(database, session, note_id, document, corrects=current.id)
        draft = await lock_invoice(database, session, tenant_id, note_id)
        issued_note = await issue(database, session, draft, document, arguments.issued)
        await _settle(database, session, current, issued_note)
        await record_document(session, "credit_note.issued", None, issued_note, reason)
    note = await lock_invoice(database, session, tenant_id, note_id)
    document = await read_document(session, tenant_id, note_id)
    if note.settled_pico:
        text = f"credit note {note.number}"
        to_balance = Grant(note_id, tenant_id, note.settled_pico, note.currency, "paid", text)
        await settle_payment(database, session, to_balance)
    return note, document


async def _propose(database: Database, record: InvoiceRecord, arguments: CreditArguments) -> None:
    """Keep the credit note for another person to approve, where it takes two and was not issued before."""
    note_id = step_id(record.id, f"credit:{arguments.request}")
    async with database.reading() as session:
        # tenant: the id is made of the invoice's
        if await session.scalar(select(invoice.c.id).where(invoice.c.id == note_id)) is not None:
            return
        document = await _compose(database, session, record, arguments)
    amount = f"{format_minor(document.gross, document.currency)} {document.currency}"
    await propose_if_needed(
        database,
        "credit_note.issue",
        arguments,
        f"a credit note of {amount} for {record.name}",
        tenant_id=record.tenant_id,
        reason=arguments.reason,
    )


def _check_same_request(note: Document, request: str, reason: str, amounts: Mapping[int, int | None] | None) -> None:
    """Raise AmountRefused if the credit note that was issued for this request has another reason or other lines."""
    lines = {line.of: line.net for line in note.lines}
    has_other_lines = amounts is not None and (
        amounts.keys() != lines.keys() or any(net not in (None, lines[n]) for n, net in amounts.items())
    )
    if has_other_lines or note.reason != reason:
        raise AmountRefused(f"request {request!r} was made before, for other lines or another reason: {note.number}")


async def read_creditable(session: AsyncSession, record: InvoiceRecord) -> tuple[Document, Creditable]:
    """The invoice's document, and what its credit notes have left of it."""
    document = await read_document(session, record.tenant_id, record.id)
    lines = [line.net for line in document.lines]
    taxes: dict[tuple[str, int], int] = {(total.category, total.rate): total.tax for total in document.taxes}
    contents = select(invoice.c.content).where(invoice.c.tenant_id == record.tenant_id, invoice.c.corrects == record.id)
    for content in await session.scalars(contents):
        note = msgspec.json.decode(content, type=Document)
        for line in note.lines:
            lines[line.of - 1] -= line.net
        for total in note.taxes:
            taxes[total.category, total.rate] -= total.tax
    return document, Creditable(lines, taxes)


async def _compose(
    database: Database, session: AsyncSession, record: InvoiceRecord, arguments: CreditArguments
) -> Document:
    """The document of a credit note, not numbered yet. Its taxes are the invoice's, its names and addresses are those
    of its own issue date. Raises WrongState, AmountRefused."""
    amounts = arguments.amounts
    if record.kind != "invoice" or record.state in ("draft", "void"):
        raise WrongState(record.name, record.state, "credited")
    document, creditable = await read_creditable(session, record)
    wanted = {n: None for n, net in enumerate(creditable.lines, 1) if net} if amounts is None else dict(amounts)
    lines = [_line(document, creditable, n, wanted[n]) for n in sorted(wanted)]
    if not lines:
        raise AmountRefused(f"nothing is left of {record.name} to credit")
    await _check_commitment(session, record, lines)
    taxes = _taxes(document, creditable, lines)
    net, tax = sum(line.net for line in lines), sum(total.tax for total in taxes)
    if net < 0 or net + tax > record.gross - record.credited:
        left = f"{format_minor(record.gross - record.credited, record.currency)} {record.currency}"
        raise AmountRefused(
            f"these lines come to {format_minor(net + tax, record.currency)}, but {left} is left of {record.name}"
        )
    taken_back = await read_taken_back(session, record.tenant_id, record.period)
    if taken_back is not None and not taken_back.allows(credited=minor_to_pico(net, record.currency)):
        corrected = format_pico(taken_back.corrected)
        raise AmountRefused(
            f"{corrected} {record.currency} of {record.name} were given back by corrections of usage: together with"
            f" {format_minor(net, record.currency)} that is more than it charged"
        )
    day = (arguments.issued or await today(database, session)).isoformat()
    seller = (await read_seller(database, session, record.seller)).on(day)
    buyer = (await read_buyer(database, session, record.tenant_id)).on(day)
    document = msgspec.structs.replace(
        document,
        seller=with_facts(seller, document.seller, SELLER_FACTS),
        buyer=with_facts(buyer, document.buyer, BUYER_FACTS),
    )
    note = note_of(document, lines, taxes, arguments.reason)
    return with_deferral(note, await deferred_by_note(session, record, lines))


def note_of(document: Document, lines: list[InvoiceLine], taxes: list[TaxTotal], reason: str) -> Document:
    """The document of a credit note for a document of these parties, not numbered yet."""
    net, tax = sum(line.net for line in lines), sum(total.tax for total in taxes)
    return msgspec.structs.replace(
        document,
        kind="credit_note",
        number="",
        series=document.seller.credit_series,
        issued="",
        due="",
        lines=lines,
        taxes=taxes,
        net=net,
        tax=tax,
        gross=net + tax,
        prepaid=0,
        payable=net + tax,
        prepaid_exact="0",
        carry_in="0",
        carry_out="0",
        prepaid_carry_in="0",
        prepaid_carry_out="0",
        returned=msgspec.UNSET,
        deductions=msgspec.UNSET,
        drawn=msgspec.UNSET,
        deferred=msgspec.UNSET,
        local_tax=_local_tax(document, tax),
        corrects=document.number,
        reason=reason,
        savings="",
        previous="",
    )


def _local_tax(document: Document, tax: int) -> LocalTax | msgspec.UnsetType:
    """So much VAT of a document in the national currency, at the document's own rate."""
    local = document.local_tax
    if local is msgspec.UNSET or not document.tax:
        return msgspec.UNSET
    return msgspec.structs.replace(local, tax=round_half_up(local.tax * tax, document.tax))


async def _check_commitment(session: AsyncSession, record: InvoiceRecord, lines: Sequence[InvoiceLine]) -> None:
    """Raise AmountRefused if a commitment has paid more than these credited lines leave of it."""
    if record.state == "uncollectible" or not any(line.kind == "commitment" and line.net > 0 for line in lines):
        return
    schedule = await read_schedule(session, record.tenant_id)
    commitment = schedule.terms_of(record.period).commitment
    if commitment is None:
        return
    of_tenant = await read_commitment_lines(session, record.tenant_id)
    mine = lines_of(of_tenant, schedule, commitment.first)
    latest = schedule.latest(commitment.first) or commitment
    undrawn = latest.paid_pico + sum(
        line.funds_pico - line.draws_pico for line in mine if line.net_left or line.funds_pico
    )  # what was drawn of less than a minor unit cannot be credited
    credited = {line.of: line for line in lines}
    funds = 0
    for line in mine:
        if line.invoice_id == record.id and (note := credited.get(line.n)) is not None:
            left = line.exact_pico - line.credited_pico
            funds += left if note.net == line.net_left else max(-abs(left), min(abs(left), int(note.exact)))
    if funds > undrawn:
        drawn = f"{money_text(undrawn)} {record.currency}"
        raise AmountRefused(
            f"only {drawn} of the commitment for {commitment.first} to {commitment.last} was not drawn:"
            " credit no more of it, or first the lines that it paid"
        )


def _line(document: Document, creditable: Creditable, n: int, amount: int | None) -> InvoiceLine:
    if not 1 <= n <= len(document.lines):
        raise AmountRefused(f"{document.number} has no line {n}, only lines 1 to {len(document.lines)}")
    line, left = document.lines[n - 1], creditable.lines[n - 1]
    amount = left if amount is None else amount
    if not amount or (amount > 0) != (left > 0) or abs(amount) > abs(left):
        texts = (format_minor(amount, document.currency), format_minor(left, document.currency))
        raise AmountRefused(
            f"{texts[0]} {document.currency} cannot be credited: {texts[1]} of line {n} of {document.number} is left"
        )
    is_whole = amount == line.net
    return msgspec.structs.replace(
        line,
        units=line.units if is_whole else "0",
        unit=line.unit if is_whole else "",
        exact=str(minor_to_pico(amount, document.currency)),
        net=amount,
        of=n,
    )


def _taxes(document: Document, creditable: Creditable, lines: list[InvoiceLine]) -> list[TaxTotal]:
    """The tax on the credited lines. The last credit of a category takes all tax that is left of it."""
    reasons = {(total.category, total.rate): total.reason for total in document.taxes}
    nets = [(Tax(line.category, line.rate, reasons[line.category, line.rate]), line.net) for line in lines]
    left: dict[tuple[str, int], int] = defaultdict(int)
    for line, net in zip(document.lines, creditable.lines, strict=True):
        left[line.category, line.rate] += net
    totals = []
    for total in tax_totals(nets):
        key = (total.category, total.rate)
        tax_left = creditable.taxes[key]
        tax = tax_left if left[key] == total.net else min(total.tax, tax_left)
        totals.append(msgspec.structs.replace(total, tax=tax))
    return totals


async def _settle(database: Database, session: AsyncSession, current: InvoiceRecord, note: InvoiceRecord) -> None:
    """Lower what is left of the invoice, and write how much goes to the tenant's balance (the note's `settled_pico`).

    The grant will book that amount as money received through `clearing`, where the note's own entries put it.
    """
    unit = minor_unit(current.currency)
    net, tax, settling = note.net * unit, note.tax * unit, min(current.left, note.gross)
    usage = max(0, min(settling * unit, current.owed_pico - current.settled_pico))
    to_balance = usage + (note.gross - settling) * unit
    entries = balanced_entries(
        ("credited", "clearing", min(to_balance, net)),
        ("tax", "clearing", max(0, to_balance - net)),
        ("credited", "invoiced", max(0, net - to_balance)),
        ("tax", "invoiced", tax - max(0, to_balance - net)),
        ("credited", "deferred", note.deferred_pico),
    )
    await post(database, session, note, "finalize", entries)
    changes = {"credited": current.credited + note.gross, "settled_pico": current.settled_pico + usage}
    await settle_invoice(database, session, current, f"credit:{note.id}", **changes)
    await update_invoice(session, note, {"settled_pico": to_balance})
