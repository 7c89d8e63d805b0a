"""The words and figures of a document, ready for the template `invoice.typ`, which decides on layout alone."""

from __future__ import annotations

import re
from datetime import date
from itertools import groupby
from typing import Any

import msgspec

from billing.invoices.document import (
    ClassSavings,
    Document,
    InvoiceLine,
    ModelSavings,
    Savings,
    warnings_of,
)
from billing.invoices.parties.countries import name_of
from billing.invoices.parties.parties import Party, format_rate
from billing.invoices.rendering.sums import day_text, left_of, settlements_of, tax_row, totals_of
from billing.invoices.savings import class_in_words, saved_pico
from billing.invoices.store import NOTHING_SETTLED, PaymentsAndCredits
from billing.money import format_grouped, format_minor, minor_unit, round_half_up
from billing.usage import METERS

_MICRO = 10**6
_TITLES = {"invoice": "Invoice", "credit_note": "Credit note", "advance": "Advance-payment invoice"}
_CLASS = re.compile(r"(read|write)_(\d+[mh])")
_METERS = {"uncached": "Input tokens", "read_automatic": "Cached input tokens, automatic", "output": "Output tokens"}
_LANGUAGES = {
    "AT": "de",
    "CH": "de",
    "DE": "de",
    "ES": "es",
    "FR": "fr",
    "IT": "it",
    "NL": "nl",
    "PL": "pl",
    "PT": "pt",
}
"""Country → language by which long words of a name and an address are hyphenated."""
_BANNERS = {"draft": "Draft", "void": "Void", "paid": "Paid", "credited": "Credited"}
_BESIDE = "Beside usage"


def shown(document: Document, state: str, digest: str, settled: PaymentsAndCredits = NOTHING_SETTLED) -> dict[str, Any]:
    """The template's data for a document in a state of its invoice, with the payments and credit notes until then.

    `digest` is the document's SHA-256, empty for a draft.
    """
    left = left_of(document, settled)
    rows = settlements_of(document, settled, left)
    due = day_text(document.due) if document.kind == "invoice" and document.payable else ""
    return {
        "title": _TITLES[document.kind],
        "banner": _banner(state, credited=bool(settled.credit_notes)),
        "number": document.number,
        "statement_of": f"{_TITLES[document.kind].lower()} {document.number}".strip()
        if document.number
        else f"the draft of {date.fromisoformat(document.service_from):%B %Y}",
        "facts": [
            [name, value]
            for name, value in (
                ("Number", document.number or "not yet numbered"),
                ("Issue date", day_text(document.issued)),
                ("Due date", due),
                ("Service period", _span(document.service_from, document.service_until)),
                ("Corrects invoice", document.corrects),
                ("Purchase order", document.buyer.purchase_order),
            )
            if value
        ],
        "seller": _party(document.seller),
        "seller_legal": [text for text in (document.seller.registration, document.seller.email) if text],
        "buyer": _party(document.buyer),
        "currency": document.currency,
        "headline": _headline(document, state, left, credited=bool(settled.credit_notes)),
        "reason": document.reason,
        "groups": [_group(document, *group) for group in _grouped(document.lines)],
        "totals": totals_of(document, due="" if state == "void" else "Payable" if rows else "Amount due"),
        "settled": rows,
        "taxes": [tax_row(document, tax) for tax in document.taxes],
        "statements": sorted({tax.reason for tax in document.taxes if tax.reason}),
        "payment": document.seller.payment if left > 0 and state != "void" else [],
        "notes": [text for text in (*_notes(document, state), _rounding(document)) if text],
        "savings": "" if document.savings == "" else _savings(document, document.savings),
        "digest": digest,
    }


def meter_name(meter: str) -> str:
    """A meter of tokens in words: write_5m → "Tokens written to the cache, 5 min"."""
    match = _CLASS.fullmatch(meter)
    if match is None:
        return _METERS[meter]
    kind = "Cached input tokens" if match.group(1) == "read" else "Tokens written to the cache"
    return f"{kind}, {class_in_words(match.group(2))}"


def _party(party: Party) -> dict[str, Any]:
    town = f"{party.postal_code} {party.city}".strip()
    lines = [*party.address, town, name_of(party.country)]
    language = _LANGUAGES.get(party.country, "en")
    return {"name": party.name, "lines": lines, "vat_id": party.vat_id, "language": language}


def _span(first: str, last: str) -> str:
    begin, end = date.fromisoformat(first), date.fromisoformat(last)
    if begin == end:
        return day_text(first)
    if (begin.year, begin.month) == (end.year, end.month):
        return f"{begin.day}–{day_text(last)}"
    return f"{day_text(first)} – {day_text(last)}"


def _banner(state: str, *, credited: bool) -> str:
    """The stamp. An invoice that a credit note settled is "Settled", not "Paid"."""
    return "Settled" if state == "paid" and credited else _BANNERS.get(state, "")


def _headline(document: Document, state: str, left: int, *, credited: bool) -> list[str]:
    """The one figure on top, which says what to pay and never contradicts the stamp."""
    if document.kind == "credit_note":
        name, minor = "Credited", document.payable
    elif state == "void":
        name, minor = "Void: nothing is due of", document.gross
    elif state == "credited":
        name, minor = "Credited in full", document.gross
    elif state == "paid" and document.payable:
        name, minor = "Settled" if credited else "Paid in full", document.payable
    else:
        name, minor = "Amount due", left
    return [name, f"{document.currency} {format_grouped(minor, document.currency)}"]


def _grouped(lines: list[InvoiceLine]) -> list[tuple[str, list[tuple[int, InvoiceLine]]]]:
    """Groups of neighbouring lines with one project, model and corrected month: heading, and numbered lines.

    Lines without a model get a heading of their own after another group, unless they are rounding alone.
    """
    numbered = enumerate(lines, 1)
    by_group = groupby(numbered, key=lambda item: (item[1].project, item[1].model, _correction(item[1])))
    groups = [(" · ".join(part for part in key if part), list(group)) for key, group in by_group]
    return [(heading or (_BESIDE if groups[0][0] and _beside(group) else ""), group) for heading, group in groups]


def _beside(lines: list[tuple[int, InvoiceLine]]) -> bool:
    return any(line.kind != "carry" for _, line in lines)


def _correction(line: InvoiceLine) -> str:
    return f"correction of {date.fromisoformat(line.corrects + '-01'):%B %Y}" if line.corrects else ""


def _group(document: Document, heading: str, lines: list[tuple[int, InvoiceLine]]) -> dict[str, Any]:
    total = sum(line.net for _, line in lines)
    return {
        "heading": heading,
        "total": format_grouped(total, document.currency) if heading else "",
        "lines": [_line(document, n, line) for n, line in lines],
    }


def _line(document: Document, n: int, line: InvoiceLine) -> dict[str, Any]:
    other = [
        version_note(document, line),
        f"{line.lane} lane" if line.lane not in ("", "standard") else "",
        f"context from {line.context_from:,} tokens" if line.context_from else "",
        f"line {line.of} of {document.corrects}" if line.of else "",
    ]
    return {
        "n": str(n),
        "text": meter_name(line.meter) if line.meter in METERS else line.text,
        "detail": " · ".join(text for text in other if text),
        "units": f"{_signed(int(line.units))} {line.unit}".strip() if line.unit else "",
        "price": _price(line.price) if line.unit else "",
        "net": format_grouped(line.net, document.currency),
        "rate": f"{format_rate(line.rate)} %" if line.category == "S" else line.category,
    }


def version_note(document: Document, line: InvoiceLine) -> str:
    """The line's price version, where other lines of the document differ from it in the version alone; else nothing."""
    versions = {(each.price_version, each.price) for each in document.lines if _sold(each) == _sold(line)}
    return f"price version {line.price_version}" if line.unit and len(versions) > 1 else ""


def _sold(line: InvoiceLine) -> tuple[object, ...]:
    """What a line is for, without its price: lines of several price versions agree in it."""
    names = ("kind", "project_id", "model", "meter", "lane", "context_from", "corrects", "of", "rate")
    return tuple(getattr(line, name) for name in names)


def _signed(number: int) -> str:
    return f"{'−' if number < 0 else ''}{abs(number):,}"


def _price(micro: int) -> str:
    """A price per million, with two decimal places or as many as it needs."""
    whole, rest = divmod(micro, _MICRO)
    return f"{whole:,}.{f'{rest:06d}'.rstrip('0').ljust(2, '0')}"


def carried_on(document: Document) -> list[tuple[str, str]]:
    """Pairs (words, exact amount) of what goes to the next invoice and of what went back to the balance."""
    rows = []
    if document.returned is not msgspec.UNSET:
        for name, pico in (("credit", document.returned.credit), ("promotional credit", document.returned.promo)):
            if int(pico):
                rows.append((f"back to {name}", _exact(int(pico), document.currency)))
    if carry := _carried(document):
        rows.append(("carried to the next invoice", _exact(carry, document.currency)))
    return rows


def _carried(document: Document) -> int:
    """What the next invoice adds to the sum of its lines, in pico-units; a negative amount is deducted."""
    return int(document.carry_out) - int(document.prepaid_carry_out)


def _notes(document: Document, state: str) -> list[str]:
    """Warnings on a draft, and what goes back to the balance."""
    warnings = warnings_of(document) if state == "draft" else []
    return [*warnings, *_returned(document, state)]


def _returned(document: Document, state: str) -> list[str]:
    if document.returned is msgspec.UNSET:
        return []
    back = {"credit": int(document.returned.credit), "promotional credit": int(document.returned.promo)}
    parts = [
        f"{_exact(pico, document.currency)} {document.currency} to the {name} that paid"
        for name, pico in back.items()
        if pico
    ]
    if not parts:
        return []
    goes = "goes back when this invoice is finalized" if state == "draft" else "went back"
    return [f"Usage was taken from credit at list prices. What the lines above take off it {goes}: {', '.join(parts)}."]


def _rounding(document: Document) -> str:
    """A sentence about what is carried to the next invoice; "" if nothing is."""
    carry = _carried(document)
    if document.kind == "credit_note" or not carry:
        return ""
    left = f"{_exact(abs(carry), document.currency)} {document.currency}"
    if carry <= -minor_unit(document.currency):
        return f"What the corrections come to beyond this period's usage, {left}, is deducted from the next invoice."
    sign = "−" if carry < 0 else ""
    return f"Each line is rounded once. The {sign}{left} that rounding leaves is carried to the next invoice."


def _exact(pico: int, currency: str) -> str:
    """Pico-units as a decimal, with at least two places more than the minor unit and no trailing zeros beyond them."""
    whole, rest = divmod(abs(pico), 10**12)
    least = len(format_minor(0, currency).partition(".")[2]) + 2
    return f"{'−' if pico < 0 else ''}{whole:,}.{f'{rest:012d}'.rstrip('0').ljust(least, '0')}"


def _savings(document: Document, savings: Savings) -> dict[str, Any]:
    """The cache savings statement: totals, a row for each model, a row for each class, and advice."""
    total = ModelSavings(
        model="Total",
        **{
            name: str(sum(int(getattr(model, name)) for model in savings.models))
            for name in ("prompt", "read", "written", "cost", "uncached")
        },
    )
    rows = [_saved(document, model) for model in savings.models]
    prompt, read, written = (int(getattr(total, name)) for name in ("prompt", "read", "written"))
    return {
        "total": _saved(document, total),
        "rows": rows,
        "used": bool(read or written),
        "classes": [_class(document, use) for use in savings.classes],
        "unread": f"{sum(int(use.unread) for use in savings.classes):,}" if savings.classes else "",
        "unread_cost": format_grouped(
            round_half_up(sum(int(use.unread_cost) for use in savings.classes), minor_unit(document.currency)),
            document.currency,
        ),
        "advice": savings.advice,
        "share_permille": round_half_up(read * 1000, prompt) if prompt else 0,
        "read": f"{read:,}",
        "written": f"{written:,}",
        "prompt": f"{prompt:,}",
        "reads_per_write": _ratio(read, written) if written else "",
    }


def _saved(document: Document, model: ModelSavings) -> dict[str, str]:
    unit = minor_unit(document.currency)
    cost, saved = round_half_up(int(model.cost), unit), round_half_up(saved_pico([model]), unit)
    uncached = cost + saved  # of the rounded figures, so that the printed ones add up
    prompt, read = int(model.prompt), int(model.read)
    return {
        "model": model.model,
        "prompt": f"{prompt:,}",
        "read": f"{read:,}",
        "written": f"{int(model.written):,}",
        "share": f"{_tenths(round_half_up(read * 1000, prompt))} %" if prompt else "–",
        "uncached": format_grouped(uncached, document.currency),
        "cost": format_grouped(cost, document.currency),
        "saved": format_grouped(saved, document.currency),
        "saved_share": f"{_tenths(round_half_up(saved_pico([model]) * 1000, int(model.uncached)))} %"
        if int(model.uncached)
        else "–",
    }


def _class(document: Document, use: ClassSavings) -> dict[str, str]:
    def money(pico: str) -> str:
        return format_grouped(round_half_up(int(pico), minor_unit(document.currency)), document.currency)

    read, written = int(use.read), int(use.written)
    return {
        "project": use.project,
        "model": use.model,
        "name": class_in_words(use.name),
        "written": f"{written:,}",
        "read": f"{read:,}",
        "ratio": _ratio(read, written) if written > 0 else "–",
        "unread": f"{int(use.unread):,}",
        "unread_cost": money(use.unread_cost),
        "net": money(str(int(use.read_saved) - int(use.write_extra))),
    }


def _tenths(permille: int) -> str:
    return f"{'−' if permille < 0 else ''}{abs(permille) // 10}.{abs(permille) % 10}"


def _ratio(read: int, written: int) -> str:
    return _tenths(round_half_up(read * 10, written))
