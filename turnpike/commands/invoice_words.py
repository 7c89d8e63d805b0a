"""What commands about invoices say of a document, and days as people write them."""

from __future__ import annotations

from datetime import date

import msgspec

from billing.invoices.document import Document
from billing.invoices.minor_units import format_minor
from billing.invoices.records import InvoiceRecord
from billing.money import format_pico
from storage.free_text import counted
from turnpike.failures import CommandError

NOTHING_WRITTEN = "dry run, nothing written"


def totals_line(document: Document) -> str:
    """What a document comes to."""

    def money(amount: int) -> str:
        return f"{format_minor(amount, document.currency)} {document.currency}"

    parts = [counted(len(document.lines), "line"), f"net {money(document.net)}", f"VAT {money(document.tax)}"]
    if document.prepaid:
        parts.append(f"paid in advance {money(document.prepaid)}")
    if document.returned is not msgspec.UNSET:
        back = sum(int(part) for part in (document.returned.credit, document.returned.promo))
        if back:
            parts.append(f"back to the balance {format_pico(back)} {document.currency}")
    asked = "credited" if document.kind == "credit_note" else "to pay"
    return ", ".join([*parts, f"{asked} {money(document.payable)}"])


def record_line(record: InvoiceRecord) -> str:
    """How an invoice or credit note stands."""

    def money(amount: int) -> str:
        return f"{format_minor(amount, record.currency)} {record.currency}"

    parts = [f"{record.name}: {record.state.replace('_', ' ')}", f"total {money(record.gross)}"]
    if record.kind == "invoice" and record.state not in ("draft", "void"):
        parts.append(f"left to pay {money(record.left)}")
    return ", ".join(parts)


def parse_day(text: str, name: str) -> date:
    """The day that the argument `name` says. Raises CommandError."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise CommandError(f"{name}: {text!r} is not a day such as 2026-11-30") from error
