"""Credit notes: an invoice taken back, whole or by line, never by more than is left of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import date

import msgspec
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from billing.accounts.balances import settle_payment
from billing.invoices.collection import MOST_TEXT, settled
from billing.invoices.document import Document, InvoiceLine
from billing.invoices.errors import AmountRefused, WrongState
from billing.invoices.finalizing import seal
from billing.invoices.minor_units import format_minor, minor_unit
from billing.invoices.party_store import lock_documents, read_seller
from billing.invoices.posting import moves, post, step_id
from billing.invoices.records import InvoiceRecord, locked, read_document, write_draft
from billing.invoices.tax import Tax, TaxTotal, tax_totals
from billing.tables.invoices import invoice
from billing.transaction.money_transaction import Grant
from storage.database.database import Database
from storage.free_text import check_text


class Creditable(msgspec.Struct, frozen=True):
    """What is left of an invoice, in minor units: by line, and of the tax by category and rate."""

    lines: list[int]
    taxes: dict[tuple[str, int], int]


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
    """Take back an invoice: all that is left of it, or of the lines in `amounts` (by number from 1) so many minor units
    each, all that is left where None. Without `write` the document alone is returned.

    What was still to be paid of the invoice is lowered; the rest becomes credit of the tenant's balance. `request`
    names this wish: repeated as it was, it is done once. Raises WrongState, AmountRefused, NumberRefused,
    DatabaseUnavailable.
    """
    check_text("reason", reason, MOST_TEXT)
    check_text("request", request, MOST_TEXT)
    identity = step_id(record.id, f"credit:{request}")
    if not write:
        async with database.reading() as session:
            return None, await _written_up(session, record, reason, amounts)
    async with database.transaction() as session:
        await lock_documents(database, session, record.tenant_id)
        now = await locked(database, session, record.id)
        known = await session.scalar(select(invoice.c.id).where(invoice.c.id == identity))
        if known is not None:
            _refuse_other(await read_document(session, identity), request, reason, amounts)
        else:
            document = await _written_up(session, now, reason, amounts)
            await write_draft(database, session, identity, document, corrects=now.id)
            note = await seal(database, session, await locked(database, session, identity), document, issued)
            await _settle(database, session, now, note)
        made = await locked(database, session, identity)
        document = await read_document(session, identity)
        if made.settled_pico:
            text = f"credit note {made.number}"
            returned = Grant(identity, made.tenant_id, made.settled_pico, made.currency, "paid", text)
            await settle_payment(database, session, returned)
    return made, document


def _refuse_other(note: Document, request: str, reason: str, amounts: Mapping[int, int | None] | None) -> None:
    """Raises AmountRefused if the credit note that this request led to is not what is asked for now."""
    lines = {line.of: line.net for line in note.lines}
    others = amounts is not None and (
        amounts.keys() != lines.keys() or any(net not in (None, lines[n]) for n, net in amounts.items())
    )
    if others or note.reason != reason:
        raise AmountRefused(f"request {request!r} led to {note.number}, of other lines or for another reason")


async def left_of(session: AsyncSession, record: InvoiceRecord) -> tuple[Document, Creditable]:
    """The invoice, and what its credit notes have left of it."""
    document = await read_document(session, record.id)
    lines = [line.net for line in document.lines]
    taxes: dict[tuple[str, int], int] = {(total.category, total.rate): total.tax for total in document.taxes}
    notes = await session.scalars(select(invoice.c.content).where(invoice.c.corrects == record.id))
    for content in notes:
        note = msgspec.json.decode(content, type=Document)
        for line in note.lines:
            lines[line.of - 1] -= line.net
        for total in note.taxes:
            taxes[total.category, total.rate] -= total.tax
    return document, Creditable(lines, taxes)


async def _written_up(
    session: AsyncSession, record: InvoiceRecord, reason: str, amounts: Mapping[int, int | None] | None
) -> Document:
    if record.kind != "invoice" or record.state in ("draft", "void"):
        raise WrongState(record.name, record.state, "credited")
    document, left = await left_of(session, record)
    wanted = {n: None for n, net in enumerate(left.lines, 1) if net} if amounts is None else dict(amounts)
    lines = [_line(document, left, n, wanted[n]) for n in sorted(wanted)]
    if not lines:
        raise AmountRefused(f"nothing is left of {record.name} that could be credited")
    taxes = _taxes(document, left, lines)
    net, vat = sum(line.net for line in lines), sum(total.tax for total in taxes)
    if net < 0 or net + vat > record.gross - record.credited:
        rest = f"{format_minor(record.gross - record.credited, record.currency)} {record.currency}"
        raise AmountRefused(
            f"these lines come to {format_minor(net + vat, record.currency)}: of {record.name} {rest} is left"
        )
    seller = await read_seller(session, record.seller)
    return msgspec.structs.replace(
        document,
        kind="credit_note",
        number="",
        series=seller.credit_series,
        issued="",
        due="",
        lines=lines,
        taxes=taxes,
        net=net,
        tax=vat,
        gross=net + vat,
        prepaid=0,
        payable=net + vat,
        prepaid_exact="0",
        carry_in="0",
        carry_out="0",
        prepaid_carry_in="0",
        prepaid_carry_out="0",
        returned=msgspec.UNSET,
        corrects=document.number,
        reason=reason,
        savings="",
        previous="",
    )


def _line(document: Document, left: Creditable, n: int, amount: int | None) -> InvoiceLine:
    if not 1 <= n <= len(document.lines):
        raise AmountRefused(f"{document.number} has no line {n}, only 1 to {len(document.lines)}")
    line, rest = document.lines[n - 1], left.lines[n - 1]
    amount = rest if amount is None else amount
    if not amount or (amount > 0) != (rest > 0) or abs(amount) > abs(rest):
        texts = (format_minor(amount, document.currency), format_minor(rest, document.currency))
        raise AmountRefused(
            f"line {n} of {document.number}: {texts[0]} {document.currency}, of which {texts[1]} is left"
        )
    whole = amount == line.net
    return msgspec.structs.replace(
        line,
        units=line.units if whole else "0",
        unit=line.unit if whole else "",
        exact=str(amount * minor_unit(document.currency)),
        net=amount,
        of=n,
    )


def _taxes(document: Document, left: Creditable, lines: list[InvoiceLine]) -> list[TaxTotal]:
    """The tax on the credited lines; with the last of a category goes all the tax that is left of it."""
    reasons = {(total.category, total.rate): total.reason for total in document.taxes}
    pairs = [(Tax(line.category, line.rate, reasons[line.category, line.rate]), line.net) for line in lines]
    rest: dict[tuple[str, int], int] = defaultdict(int)
    for n, line in enumerate(document.lines):
        rest[line.category, line.rate] += left.lines[n]
    totals = []
    for total in tax_totals(pairs):
        key = (total.category, total.rate)
        last = rest[key] == total.net
        totals.append(msgspec.structs.replace(total, tax=left.taxes[key] if last else min(total.tax, left.taxes[key])))
    return totals


async def _settle(database: Database, session: AsyncSession, now: InvoiceRecord, note: InvoiceRecord) -> None:
    """Lower what is left of the invoice, and note down how much goes to the tenant's balance (`settled_pico`).

    The grant books that as money that came in by way of `clearing`, where the note's own entries take it from.
    """
    unit = minor_unit(now.currency)
    settling = min(now.left, note.gross)
    usage = min(settling * unit, now.owed_pico - now.settled_pico)
    returned = usage + (note.gross - settling) * unit
    entries = moves(
        ("credited", "clearing", min(returned, note.net * unit)),
        ("tax", "clearing", max(0, returned - note.net * unit)),
        ("credited", "invoiced", max(0, note.net * unit - returned)),
        ("tax", "invoiced", note.tax * unit - max(0, returned - note.net * unit)),
    )
    await post(database, session, note, "finalize", entries)
    await settled(database, session, now, credited=now.credited + note.gross, settled_pico=now.settled_pico + usage)
    await session.execute(update(invoice).where(invoice.c.id == note.id).values(settled_pico=returned))
