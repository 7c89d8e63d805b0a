"""The sums of a document, ready for the template: net, tax by rate, what paid of it until now, and what is left."""

from __future__ import annotations

from datetime import date

import msgspec

from billing.invoices.document import Document, deductions_of, drawn_of
from billing.invoices.parties.parties import format_rate
from billing.invoices.parties.tax import TaxTotal
from billing.invoices.store import PaymentsAndCredits
from billing.money import format_grouped
from storage.database.base import from_instant

_TAXES = {
    "S": "Standard rate",
    "Z": "Zero rated",
    "E": "Exempt",
    "AE": "Reverse charge",
    "G": "Export",
    "O": "Not subject to VAT",
    "K": "Intra-community supply",
}


def totals_of(document: Document, due: str) -> list[list[str]]:
    def row(name: str, minor: int, weight: str = "") -> list[str]:
        return [name, format_grouped(minor, document.currency), weight]

    rows = [row("Total without VAT", document.net)]
    rows += [
        row(f"VAT {format_rate(tax.rate)} % on {format_grouped(tax.net, document.currency)}", tax.tax)
        for tax in document.taxes
        if tax.category == "S"
    ]
    rows.append(row("Total", document.gross, "strong"))
    if document.prepaid:
        rows.append(row("Paid in advance from credit", -document.prepaid))
    rows += [
        row(
            f"VAT {format_rate(one.rate)} % of advance-payment invoice {one.number} of {day_text(one.issued)}", -one.tax
        )
        for one in deductions_of(document)
        if one.tax
    ]
    if document.local_tax is not msgspec.UNSET:
        local = document.local_tax
        at = f"{local.rate} {local.currency} for 1 {document.currency} ({local.source}, {day_text(local.day)})"
        rows.append([f"VAT in {local.currency}, at {at}", format_grouped(local.tax, local.currency), ""])
    if drawn := drawn_of(document):
        rows.append(row("Paid from credit", -drawn))
    if document.kind == "invoice" and due:
        rows.append(row(due, document.payable, "strong"))
    return rows


def settlements_of(document: Document, settled: PaymentsAndCredits, left: int) -> list[list[str]]:
    """Rows (name, amount, weight) of payments and credit notes, and of what is left to pay."""
    rows = [
        (f"Payment of {day_text(from_instant(payment.at).date().isoformat())}, {payment.reference}", -payment.amount)
        for payment in settled.payments
    ]
    rows += [
        (f"Credit note {note.number} of {day_text(note.issued or '')}", -note.gross) for note in settled.credit_notes
    ]
    if not rows:
        return []
    if to_balance := left - document.payable - sum(minor for _, minor in rows):
        rows.append(("Credited beyond what was due, to the balance", to_balance))
    shown_rows = [[name, format_grouped(minor, document.currency), ""] for name, minor in rows]
    return [*shown_rows, ["Left to pay", format_grouped(left, document.currency), "strong"]]


def left_of(document: Document, settled: PaymentsAndCredits) -> int:
    """What is left to pay of an invoice, in minor units."""
    if document.kind == "credit_note":
        return 0
    paid = sum(payment.amount for payment in settled.payments)
    return max(0, document.payable - paid - sum(note.gross for note in settled.credit_notes))


def tax_row(document: Document, tax: TaxTotal) -> list[str]:
    rate = f"{format_rate(tax.rate)} %" if tax.category == "S" else "–"
    names = (f"{_TAXES[tax.category]} ({tax.category})", rate)
    return [*names, format_grouped(tax.net, document.currency), format_grouped(tax.tax, document.currency)]


def day_text(iso: str) -> str:
    if not iso:
        return ""
    day = date.fromisoformat(iso)
    return f"{day.day} {day:%B %Y}"
