"""What an invoice or a credit note says: its whole content, with nothing left to look up.

Amounts are integers in minor units of the currency; exact amounts are pico-units, as text since they can be large.
Dates are ISO 8601 in UTC. The content is that of article 226 of the VAT directive 2006/112/EC, and what its lines and
its savings statement are computed from.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from billing.invoices.parties import Buyer, Seller
from billing.invoices.tax import Category, TaxTotal
from billing.rating.lines import Kind as LineKind

VERSION = 1
"""Of this content's form; a document keeps the version that it was made with."""

Kind = Literal["invoice", "credit_note"]


class Line(msgspec.Struct, frozen=True, kw_only=True):
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


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """The cache savings statement: the period's own usage by model, without corrections."""

    models: list[ModelSavings]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The content. `number`, `issued`, `due` and `previous` are empty until it is finalized; `previous` is the SHA-256
    of the document before it in its series.

    `gross` is `net` with `tax`; of it `prepaid` (exactly `prepaid_exact`) was paid in advance, and `payable` is left.
    `corrects` is the number of the invoice that a credit note reduces. What rounding left over came in as `carry_in`
    and goes on as `carry_out`, pico-units as text; so do `prepaid_carry_in` and `prepaid_carry_out` for what was paid
    in advance.
    """

    version: int = VERSION
    kind: Kind
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
    lines: list[Line]
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
    corrects: str = ""
    reason: str = ""
    savings: Savings | Literal[""] = ""
    previous: str = ""
