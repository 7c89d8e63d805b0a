"""A document as it is pushed: its lines with their share of the tax, and what differs from it at the provider.

Our tax is one amount for each category and rate (`billing.invoices.parties.tax`), a provider's is by line: the cents of
each rate are spread over its lines by largest remainder, so that they add up to it.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, date, datetime, time, timedelta

from billing.invoices.document import Document, InvoiceLine, paid_before
from billing.invoices.rendering.presentation import meter_name
from billing.invoices.store import InvoiceRecord
from billing.money import format_minor
from billing.payments.provider import DocumentLine, InvoiceFact, PushedBill
from billing.usage import METERS

LEAST_COLLECTED = {
    **dict.fromkeys(("USD", "EUR", "CHF", "CAD", "AUD", "JPY", "NZD", "SGD"), 50),
    **{"GBP": 30, "SEK": 300, "NOK": 300, "DKK": 250, "PLN": 200, "CZK": 1500, "HUF": 17500},
}
"""The least amount that is collected, in minor units; smaller ones cost more than they bring."""
_WHOLE = 10_000
_PREPAID = "Paid in advance"


def day_start(day: str) -> int:
    """The first second of a day in UTC, since the Unix epoch."""
    return int(datetime.combine(date.fromisoformat(day), time(), UTC).timestamp())


def to_bill(record: InvoiceRecord, document: Document, *, charge: bool) -> PushedBill:
    """An issued invoice as it is pushed. What was paid in advance is a line of its own, without tax."""
    assert record.sha256 is not None, "it is issued"
    lines = [
        DocumentLine(
            n=n,
            text=_text(line),
            net=line.net,
            tax=tax,
            rate=line.rate,
            starts_at=day_start(line.service_from),
            ends_at=_day_after(line.service_until),
        )
        for n, (line, tax) in enumerate(zip(document.lines, spread_tax(document), strict=True), 1)
    ]
    if paid := paid_before(document):
        lines.append(DocumentLine(n=len(lines) + 1, text=_PREPAID, net=-paid))
    reasons = [tax.reason for tax in document.taxes if tax.reason]
    return PushedBill(
        document=str(record.id),
        number=document.number,
        sha256=record.sha256,
        currency=document.currency,
        issued_at=day_start(document.issued),
        days_until_due=document.buyer.payment_days,
        charge=charge,
        country=document.buyer.country if _is_there(document) else document.seller.country,
        purchase_order=document.buyer.purchase_order,
        footer="\n".join([f"{document.seller.name} {document.seller.vat_id}".strip(), *reasons]),
        lines=lines,
        net=sum(line.net for line in lines),
        tax=document.tax,
        total=document.payable,
    )


def _text(line: InvoiceLine) -> str:
    """A line in words: what was used, of which project."""
    if not line.meter:
        return line.text
    what = (line.model, meter_name(line.meter)) if line.meter in METERS else (line.text,)
    parts = [line.project, *what, line.lane, f"{line.units} {line.unit}"]
    corrected = [f"correction of {line.corrects}"] if line.corrects else []
    return ", ".join(part for part in (*parts, *corrected) if part.strip())


def _is_there(document: Document) -> bool:
    """Whether the seller charges VAT in the buyer's country."""
    return document.buyer.country in document.seller.rates


def _day_after(day: str) -> int:
    return day_start((date.fromisoformat(day) + timedelta(days=1)).isoformat())


def spread_tax(document: Document) -> list[int]:
    """The tax of each line, in minor units; the lines of a rate add up to its tax."""
    lines: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for place, line in enumerate(document.lines):
        lines[line.category, line.rate].append(place)
    spread = [0] * len(document.lines)
    owed: defaultdict[tuple[str, int], int] = defaultdict(int)
    for total in document.taxes:
        owed[total.category, total.rate] += total.tax
    for key, places in lines.items():
        for place, tax in zip(places, _shares([document.lines[one] for one in places], owed[key]), strict=True):
            spread[place] = tax
    return spread


def _shares(lines: list[InvoiceLine], tax: int) -> list[int]:
    """A tax in shares of the lines' own: each rounded down, then a cent more for those with the largest remainder."""
    exact = [divmod(line.net * line.rate, _WHOLE) for line in lines]
    shares = [whole for whole, _ in exact]
    missing = tax - sum(shares)
    order = sorted(range(len(lines)), key=lambda place: (-exact[place][1], place))
    for turn in range(abs(missing)):
        shares[order[turn % len(order)]] += 1 if missing > 0 else -1
    return shares


def differences(bill: PushedBill, fact: InvoiceFact) -> str:
    """What an invoice at the provider says otherwise than ours; "" if nothing."""
    pairs = {
        "number": (bill.number, fact.number),
        "document": (bill.document, fact.document),
        "currency": (bill.currency, fact.currency),
        "lines": (len(bill.lines), len(fact.lines)),
        "net": (bill.net, fact.net),
        "tax": (bill.tax, fact.tax),
        "total": (bill.total, fact.total),
    }
    said = [
        f"{name} is {_shown(name, ours, bill)} here and {_shown(name, theirs, bill)} there"
        for name, (ours, theirs) in pairs.items()
        if ours != theirs
    ]
    return "; ".join(said)[:500]


def _shown(name: str, value: object, bill: PushedBill) -> str:
    is_money = isinstance(value, int) and name != "lines"
    return format_minor(value, bill.currency) if is_money else str(value)  # type: ignore[arg-type]
