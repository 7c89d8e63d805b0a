"""Checks of one invoice, for who cannot compute them: the seal, the chain, the sums of lines, tax and totals.

Each is what a browser can compute from the document and its drill-down. `check_invoices` of the audit does more, over
all documents of all sellers.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import msgspec
from sqlalchemy import select, tuple_

from billing.integrity.canonical_json import canonical, sha256
from billing.invoices import drill_down
from billing.invoices.document import Document, advance_tax_of, drawn_of
from billing.invoices.parties.tax import Tax, tax_totals
from billing.invoices.store import InvoiceRecord, columns_of
from billing.money import minor_unit, round_half_up
from billing.tables.invoices import invoice
from storage.database.database import Database


class Check(msgspec.Struct, frozen=True):
    """A check: its name, what was compared, and the first difference; None if it holds."""

    name: str
    about: str
    difference: str | None


class Predecessor(msgspec.Struct, frozen=True):
    """The document before another one in its series. `sha256` is computed anew from its content."""

    id: UUID
    tenant_id: UUID
    number: str
    sha256: str


async def predecessor(database: Database, record: InvoiceRecord) -> Predecessor | None:
    """The document before this one in its series; None for the first one and for drafts. Raises DatabaseUnavailable."""
    row = invoice.c
    this = select(row.year, row.n, row.series).where(row.tenant_id == record.tenant_id, row.id == record.id)
    async with database.reading() as session:
        place = (await session.execute(this)).one_or_none()
        if place is None or place.n is None:
            return None
        # all tenants: a seller's series has documents of many
        before = (
            select(row.id, row.tenant_id, row.number, row.content)
            .where(row.seller == record.seller, row.series == place.series)
            .where(tuple_(row.year, row.n) < tuple_(place.year, place.n))
            .order_by(row.year.desc(), row.n.desc())
            .limit(1)
        )
        found = (await session.execute(before)).one_or_none()
    return None if found is None else Predecessor(found.id, found.tenant_id, found.number, sha256(found.content))


async def check_invoice(
    database: Database, record: InvoiceRecord, content: str, before: Predecessor | None
) -> list[Check]:
    """All checks of a document with this canonical JSON, after `predecessor`. Raises DatabaseUnavailable."""
    try:
        document = msgspec.json.decode(content, type=Document)
    except (msgspec.DecodeError, ValueError) as error:
        return [Check("Form", "The JSON is a document.", str(error))]
    previous = "" if before is None else before.sha256
    return [
        _first("Seal", "The SHA-256 of the JSON is the one that was sealed.", _seal(record, content)),
        _first("Form", "The JSON is in its canonical form (RFC 8785).", _form(document, content)),
        _first(
            "Chain",
            "It holds the SHA-256 of the document before it.",
            ()
            if document.previous == previous
            else (f"{document.previous or 'nothing'}, not {previous or 'nothing'}",),
        ),
        _first("Lines", "Units × price is each line's exact amount, which is rounded once.", _lines(document)),
        _first("Tax", "The tax of each rate is that of the sum of its lines, rounded once.", _tax(document)),
        _first("Totals", "Net, tax, gross and what is to be paid follow from the lines.", _totals(document)),
        _first("Page", "The amounts that are listed are those of the document.", _listed(record, document)),
        await _usage(database, record, document),
    ]


def _first(name: str, about: str, differences: Iterator[str] | tuple[str, ...]) -> Check:
    return Check(name, about, next(iter(differences), None))


def _seal(record: InvoiceRecord, content: str) -> Iterator[str]:
    if record.sha256 is not None and sha256(content) != record.sha256:
        yield f"{sha256(content)}, not {record.sha256}"


def _form(document: Document, content: str) -> Iterator[str]:
    if canonical(document) != content:
        yield "it is written in another form"


def _lines(document: Document) -> Iterator[str]:
    if document.kind == "credit_note":  # a credit note's lines are parts of lines
        return
    unit = minor_unit(document.currency)
    for n, line in enumerate(document.lines, 1):
        exact = int(line.exact)
        if line.unit and int(line.units) * line.price != exact:
            yield f"line {n}: {line.units} × {line.price} is not {exact}"
        if line.kind != "carry" and round_half_up(exact, unit) != line.net:
            yield f"line {n}: {exact} pico is not {line.net} minor units"


def _tax(document: Document) -> Iterator[str]:
    reasons = {(tax.category, tax.rate): tax.reason for tax in document.taxes}
    nets = [
        (Tax(line.category, line.rate, reasons.get((line.category, line.rate), "")), line.net)
        for line in document.lines
    ]
    said = {(tax.category, tax.rate): tax for tax in document.taxes}
    for total in tax_totals(nets):
        stated = said.get((total.category, total.rate))
        if stated is None or stated.net != total.net:
            yield f"{total.category} at {total.rate}: the lines are {total.net}, not {stated and stated.net}"
        elif (
            document.kind != "credit_note" and stated.tax != total.tax
        ):  # the last credit note takes the rest of a rate
            yield f"{total.category} at {total.rate}: the tax is {total.tax}, not {stated.tax}"


def _totals(document: Document) -> Iterator[str]:
    wanted = [
        ("net", sum(line.net for line in document.lines), document.net),
        ("tax", sum(tax.tax for tax in document.taxes), document.tax),
        ("gross", document.net + document.tax, document.gross),
        (
            "payable",
            document.gross - document.prepaid - advance_tax_of(document) - drawn_of(document),
            document.payable,
        ),
    ]
    if document.kind == "invoice":
        exact = sum(int(line.exact) for line in document.lines) + int(document.carry_in)
        billed = document.net * minor_unit(document.currency) + int(document.carry_out)
        wanted.append(("net with what rounding leaves", exact, billed))
    for name, found, stated in wanted:
        if found != stated:
            yield f"{name} is {found}, not {stated}"


def _listed(record: InvoiceRecord, document: Document) -> Iterator[str]:
    for name, value in columns_of(document).items():
        if name in InvoiceRecord.__struct_fields__ and getattr(record, name) != value:
            yield f"{name} is {getattr(record, name)}, the document says {value}"


async def _usage(database: Database, record: InvoiceRecord, document: Document) -> Check:
    opened = [(n, line) for n, line in enumerate(document.lines, 1) if line.kind in drill_down.OPENED and not line.of]
    about = f"Each of {len(opened)} lines is the sum of its days."
    for n, line in opened:
        days = await drill_down.days(database, record, n)
        units, exact = sum(day.units for day in days), sum(day.exact_pico for day in days)
        if (units, exact) != (int(line.units), int(line.exact)):
            return Check("Usage", about, f"line {n}: its days are {units} units and {exact} pico, not {line.units}")
    return Check("Usage", about, None)
