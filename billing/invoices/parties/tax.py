"""The tax category and rate of an invoice, and its tax totals.

Categories are those of EN 16931 (UNCL 5305). They follow from the parties by the rules of the VAT directive 2006/112/EC
for electronically supplied services:

| seller | buyer | category |
|---|---|---|
| charges no VAT anywhere | any | O, not subject to VAT |
| any country where it charges VAT | the same country | S at that country's rate |
| EU | another EU country or Northern Ireland, with its valid VAT id | AE, reverse charge (articles 44 and 196) |
| EU | another EU country, without a valid VAT id | S at the buyer's rate (articles 58 and 369a, one-stop shop) |
| any | elsewhere | S where the seller charges VAT there, else O (articles 44, 58 and 59) |

A buyer's profile can override them: zero rated (Z), exempt (E), export (G), intra-community supply (K). Reverse charge
and intra-community supply need a valid VAT id all the same; without one the rules above decide.

Tax is computed on the sum of all lines of a category and rate, never by line. Which day's parties it follows from,
`billing.invoices.parties.dated` says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from billing.invoices.parties.parties import Buyer, InvalidParty, Seller
from billing.invoices.parties.vat_ids import EU, member_state, problem_of
from billing.money import round_half_up

Category = Literal["S", "Z", "E", "AE", "G", "O", "K"]

_REASONS = {
    "reverse_charge": "Reverse charge: article 196 of Directive 2006/112/EC",
    "intra_community": "Intra-community supply: article 138 of Directive 2006/112/EC",
    "export": "Export: article 146 of Directive 2006/112/EC",
}
_TREATED: dict[str, Category] = {
    "zero": "Z",
    "exempt": "E",
    "reverse_charge": "AE",
    "intra_community": "K",
    "export": "G",
    "outside": "O",
}
_WHOLE = 10_000


class Tax(msgspec.Struct, frozen=True):
    """A tax category with its rate in hundredths of a percent; `reason` says why no tax is charged."""

    category: Category
    rate: int = 0
    reason: str = ""


class TaxTotal(msgspec.Struct, frozen=True):
    """The tax on all lines of one category and rate, in minor units."""

    category: Category
    rate: int
    reason: str
    net: int
    tax: int


def tax_for(seller: Seller, buyer: Buyer) -> Tax:
    """The tax on what the seller sells to the buyer. Raises InvalidParty naming the missing field."""
    treatment = buyer.treatment
    if treatment == "auto":
        return _by_rule(seller, buyer)
    if treatment == "standard":
        return Tax("S", _rate(seller, buyer.country if buyer.country in seller.rates else seller.country))
    if treatment in ("reverse_charge", "intra_community"):
        if buyer.vat_id and not member_state(buyer.vat_id, buyer.country):
            return _by_rule(seller, buyer)
        _need_vat_ids(seller, buyer)
    return Tax(_TREATED[treatment], 0, buyer.exemption or _REASONS[treatment])


def tax_totals(lines: Iterable[tuple[Tax, int]]) -> list[TaxTotal]:
    """Totals by category and rate of lines (tax, net in minor units), ordered by category and rate."""
    nets: dict[tuple[str, int, str], tuple[Tax, int]] = {}
    for tax, net in lines:
        key = (tax.category, tax.rate, tax.reason)
        nets[key] = (tax, nets.get(key, (tax, 0))[1] + net)
    return [
        TaxTotal(tax.category, tax.rate, tax.reason, net, round_half_up(net * tax.rate, _WHOLE))
        for _, (tax, net) in sorted(nets.items())
    ]


def _by_rule(seller: Seller, buyer: Buyer) -> Tax:
    state = member_state(buyer.vat_id, buyer.country)
    within_eu = seller.country in EU and buyer.country in EU and seller.country != buyer.country
    if not seller.rates:
        return Tax("O", 0, "Not subject to VAT")
    if seller.country == buyer.country:
        return Tax("S", _rate(seller, seller.country))
    if seller.country in EU and state:
        _need_vat_ids(seller, buyer)
        return Tax("AE", 0, _REASONS["reverse_charge"])
    if within_eu:
        if buyer.country not in seller.rates and buyer.vat_id:
            problem = problem_of(buyer.vat_id, buyer.country) or f"{buyer.vat_id} is no VAT id of {buyer.country}"
            needed = f"VAT of {buyer.country} is charged, and seller {seller.id} has no rate for it"
            raise InvalidParty("vat_id", f"{problem}, so {needed}")
        return Tax("S", _rate(seller, buyer.country))
    if buyer.country in seller.rates:
        return Tax("S", seller.rates[buyer.country])
    return Tax("O", 0, "Not subject to VAT here: the place of supply is where the customer is")


def _rate(seller: Seller, country: str) -> int:
    if country not in seller.rates:
        raise InvalidParty("rates", f"seller {seller.id} has no VAT rate for {country}")
    return seller.rates[country]


def _need_vat_ids(seller: Seller, buyer: Buyer) -> None:
    for who, party in (("seller", seller), ("buyer", buyer)):
        if not party.vat_id:
            raise InvalidParty("vat_id", f"the {who} needs a VAT id, since the invoice must state both")
