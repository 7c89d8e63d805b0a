"""The document: the complete content of an invoice or a credit note.

Amounts are integers in minor units of the currency. Exact amounts are pico-units as text, since they can exceed 2^53.
Dates are ISO 8601 in UTC. The content is what article 226 of the VAT directive 2006/112/EC requires, and everything
that its lines and its savings statement are computed from.
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import msgspec

from billing.invoices.parties.parties import Buyer, Seller, vat_warnings
from billing.invoices.parties.tax import Category, TaxTotal
from billing.rating.lines import LineKind

VERSION = 1
"""The version of this form. A document keeps the version that it was made with."""

DocumentKind = Literal["invoice", "credit_note", "advance"]
"""An `advance` is an advance-payment invoice (`billing.invoices.advances`)."""


class InvoiceLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line. `exact` is its amount in pico-units, `net` the same rounded once to minor units.

    A line of usage has `units` of a `meter` at `price` micro-units per million; `context_from` is the lower bound of
    its context tier. `corrects` is the earlier period whose usage came after it had closed. `service_from` and
    `service_until` are days, both included. `of` is the number of the credited line on a credit note, else 0.
    """

    kind: LineKind
    text: str
    project_id: str = ""
    project: str = ""
    model: str = ""
    meter: str = ""
    lane: str = ""
    context_from: int = 0
    price_version: int = 0
    price: int = 0
    units: str = "0"
    unit: str = ""
    corrects: str = ""
    service_from: str
    service_until: str
    exact: str
    net: int
    category: Category
    rate: int
    of: int = 0


class ModelSavings(msgspec.Struct, frozen=True, kw_only=True):
    """Cache savings of one model; tokens and pico-units as text.

    `cost` is the cost of its usage, `uncached` the cost if every prompt token were uncached.
    """

    model: str
    prompt: str
    read: str
    written: str
    cost: str
    uncached: str


class ClassSavings(msgspec.Struct, frozen=True, kw_only=True):
    """Cache savings of one class of lease, for one project and model; tokens and pico-units as text.

    - `unread`: written tokens that were certainly never read. Writing them cost `unread_cost`, at the average price,
      which is `unread_extra` more than plain input.
    - `read_saved`: what all reads saved against plain input. `write_extra`: what all writes cost beyond plain input.
    - `once_read`: what reading everything written once would save.
    - `shorter_cost`: what the writes would have cost in the shortest class. `again`: what writing everything there once
      more would cost beyond reading it.
    """

    project_id: str
    project: str
    model: str
    name: str
    read: str
    written: str
    unread: str
    unread_cost: str
    unread_extra: str
    read_saved: str
    write_cost: str
    write_extra: str
    once_read: str
    shorter_cost: str
    again: str


class Savings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The cache savings statement of a period's own usage, without corrections.

    Defaults are omitted, so that documents from before `classes` and `advice` keep their hash.
    """

    models: list[ModelSavings]
    classes: list[ClassSavings] = []
    advice: list[str] = []


class Returned(msgspec.Struct, frozen=True, kw_only=True):
    """What goes back to the balance, since lines lower usage that was posted at list prices; pico-units as text.

    `exact` is the sum. Of it, `credit` goes to paid and `promo` to promotional credit; the rest was not paid yet.
    """

    exact: str
    credit: str
    promo: str


class DayRoot(msgspec.Struct, frozen=True, kw_only=True):
    """What a day's file of receipts comes to: its number of events, their cost in pico-units as text, and the root of
    their tree in hexadecimal (`billing.receipts.day_files`)."""

    day: str
    events: int
    cost: str
    root: str


class LocalTax(msgspec.Struct, frozen=True, kw_only=True):
    """The VAT in the currency of the country that it is owed to (article 230 of Directive 2006/112/EC): `tax` minor
    units of `currency`. `rate` is units of it for one of the document's currency, of `day`, by `source`."""

    currency: str
    tax: int
    rate: str
    day: str
    source: str


class Deduction(msgspec.Struct, frozen=True, kw_only=True):
    """What an invoice deducts of an advance-payment invoice: `net` of it paid for usage and charges, exactly `exact`
    pico-units as text, and `tax` is the VAT that was due with it. Negative where usage was taken back. `advance` is the
    id of the document, `number` and `issued` are its own."""

    advance: str
    number: str
    issued: str
    category: Category
    rate: int
    exact: str
    net: int
    tax: int


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a document. `number`, `issued`, `due` and `previous` are empty until it is finalized.

    - `previous`: the SHA-256 of the document before it in its series.
    - `gross` = `net` + `tax`; of it, `prepaid` (exactly `prepaid_exact`) was paid in advance. `deductions` name the
      advance-payment invoices among that, whose VAT is deducted too. `drawn` is taken from credit for what is no usage.
      `payable` is left.
    - `deferred`: pico-units as text that a commitment asked for and has not earned yet, less what it earned
      (`billing.invoices.accounting.deferral`).
    - `local_tax`: the VAT in the national currency, where the document has another. These four are absent where there
      is nothing to say, so that older documents keep their hash.
    - `corrects`: the number of the invoice that a credit note reduces.
    - `carry_in`, `carry_out`: what rounding left before and leaves now, pico-units as text; `prepaid_carry_in` and
      `prepaid_carry_out` are the same for the prepaid amount.
    - `returned`: absent where nothing goes back to the balance, so that older documents keep their hash.
    - `receipts`: all days of the period, on an invoice with usage; absent on older documents.
    """

    version: int = VERSION
    kind: DocumentKind
    number: str = ""
    series: str
    issued: str = ""
    due: str = ""
    period: str
    service_from: str
    service_until: str
    currency: str
    seller: Seller
    tenant_id: str
    buyer: Buyer
    lines: list[InvoiceLine]
    taxes: list[TaxTotal]
    net: int
    tax: int
    gross: int
    prepaid: int
    payable: int
    prepaid_exact: str = "0"
    carry_in: str = "0"
    carry_out: str = "0"
    prepaid_carry_in: str = "0"
    prepaid_carry_out: str = "0"
    returned: Returned | msgspec.UnsetType = msgspec.UNSET
    deductions: list[Deduction] | msgspec.UnsetType = msgspec.UNSET
    drawn: int | msgspec.UnsetType = msgspec.UNSET
    deferred: str | msgspec.UnsetType = msgspec.UNSET
    local_tax: LocalTax | msgspec.UnsetType = msgspec.UNSET
    corrects: str = ""
    reason: str = ""
    savings: Savings | Literal[""] = ""
    receipts: list[DayRoot] | msgspec.UnsetType = msgspec.UNSET
    previous: str = ""


def deductions_of(document: Document) -> list[Deduction]:
    """What a document deducts of advance-payment invoices."""
    return [] if document.deductions is msgspec.UNSET else document.deductions


def drawn_of(document: Document) -> int:
    """What a document takes from credit for what is no usage, in minor units."""
    return 0 if document.drawn is msgspec.UNSET else document.drawn


def paid_before(document: Document) -> int:
    """What of a document was paid when it was issued, in minor units: from credit, and with advances their VAT."""
    return document.gross - document.payable


def advance_tax_of(document: Document) -> int:
    """The VAT of advance-payment invoices that a document deducts, in minor units."""
    return sum(deduction.tax for deduction in deductions_of(document))


def warnings_of(document: Document) -> list[str]:
    """Warnings about a document's VAT ids, a sentence each. None where its tax rests on them: they were checked with
    the countries of the tax's day, and the addresses are those of the issue date."""
    if any(tax.category in ("AE", "K") for tax in document.taxes):
        return []
    return vat_warnings(document.seller, document.buyer)


def project_names(document: Document) -> dict[UUID, str]:
    """Names of the projects on the document, in its lines and its savings statement, by id."""
    classes = [] if document.savings == "" else document.savings.classes
    named = [
        *((line.project_id, line.project) for line in document.lines),
        *((c.project_id, c.project) for c in classes),
    ]
    return {UUID(project): name for project, name in named if project}
