"""What an invoice or a credit note says: its whole content, with nothing left to look up.

Amounts are integers in minor units of the currency; exact amounts are pico-units, as text since they can be large.
Dates are ISO 8601 in UTC. The content is that of article 226 of the VAT directive 2006/112/EC, and what its lines and
its savings statement are computed from.
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import msgspec

from billing.invoices.parties.parties import Buyer, Seller
from billing.invoices.parties.tax import Category, TaxTotal
from billing.rating.lines import LineKind

VERSION = 1
"""Of this content's form; a document keeps the version that it was made with."""

DocumentKind = Literal["invoice", "credit_note"]


class InvoiceLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line. `exact` is what it comes to in pico-units, `net` that in minor units, rounded once.

    A line of usage has `units` of a `meter` at `price` micro-units per million; `context_from` is the context tier's
    first token. `corrects` is the earlier period whose usage was recorded after its invoice. The service was given from
    the one day to the other, both included. `of` is the credited invoice's line, 0 elsewhere.
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
    """What the prompt cache did for one model. Tokens and pico-units as text.

    `cost` is what the usage costs, `uncached` what the same tokens would cost if every prompt token were uncached.
    """

    model: str
    prompt: str
    read: str
    written: str
    cost: str
    uncached: str


class ClassSavings(msgspec.Struct, frozen=True, kw_only=True):
    """What one class of lease did for one project and model. Tokens and pico-units as text.

    `unread` is how many of the written tokens were certainly never read; writing those cost `unread_cost`, which is
    `unread_extra` more than plain input, at the average price. `read_saved` is what all reads saved against plain
    input, `write_extra` what all writes cost beyond it, and `once_read` what it would save to read all that was
    written once. `shorter_cost` is what the writes would have cost in the shortest class, and `again` what it would
    cost beyond reads to write all of it once more there.
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
    """The cache savings statement: the period's own usage, without corrections. Documents that are older than
    `classes` and `advice` have none, and keep their hash."""

    models: list[ModelSavings]
    classes: list[ClassSavings] = []
    advice: list[str] = []


class Returned(msgspec.Struct, frozen=True, kw_only=True):
    """What the lines that lower the usage give back of what it was posted at, in pico-units as text: `exact` in all, of
    it `credit` to credit that was paid and `promo` to credit that was given. The rest was not paid yet."""

    exact: str
    credit: str
    promo: str


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The content. `number`, `issued`, `due` and `previous` are empty until it is finalized; `previous` is the SHA-256
    of the document before it in its series.

    `gross` is `net` with `tax`; of it `prepaid` (exactly `prepaid_exact`) was paid in advance, and `payable` is left.
    `corrects` is the number of the invoice that a credit note reduces. What rounding left over came in as `carry_in`
    and goes on as `carry_out`, pico-units as text; so do `prepaid_carry_in` and `prepaid_carry_out` for what was paid
    in advance. `returned` is absent where nothing is given back, so that older documents keep their text.
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
    corrects: str = ""
    reason: str = ""
    savings: Savings | Literal[""] = ""
    previous: str = ""


def project_names(document: Document) -> dict[UUID, str]:
    """What the projects are called that the document names, in its lines or its savings statement."""
    classes = [] if document.savings == "" else document.savings.classes
    named = [
        *((line.project_id, line.project) for line in document.lines),
        *((c.project_id, c.project) for c in classes),
    ]
    return {UUID(project): name for project, name in named if project}
