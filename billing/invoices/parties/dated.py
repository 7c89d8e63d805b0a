"""Dated parties: a seller or buyer whose tax-relevant facts are known for each day.

Tax follows from the facts of the chargeable event's day (articles 63 to 65 of Directive 2006/112/EC): who sold,
countries, VAT ids, rates and treatment. A change of such a fact has a first day, past, present or to come. Everything
else of a party (name, address, how to pay) changes at once, since documents state it as of their issue date.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from billing.invoices.parties.parties import Buyer, InvalidParty, Party, Seller
from billing.invoices.parties.tax import Tax, tax_for

SELLER_FACTS = ("country", "vat_id", "rates")
BUYER_FACTS = ("seller", "country", "vat_id", "treatment", "exemption")

AnyParty = TypeVar("AnyParty", Seller, Buyer)


class FactChange(msgspec.Struct, frozen=True):
    """Facts that hold from a day (YYYY-MM-DD) on; "" is the first of all days. A rate of 0 is no rate."""

    valid_from: str
    facts: Mapping[str, Any]


class DatedParty(msgspec.Struct, Generic[AnyParty], frozen=True):
    """A party as of today, and the changes of its facts in the order of their first days; the first is the whole."""

    party: AnyParty
    changes: Sequence[FactChange] = ()

    def on(self, day: str) -> AnyParty:
        """The party with the facts of a day. Raises InvalidParty."""
        facts: dict[str, Any] = {}
        for change in self.changes:
            if change.valid_from > day:
                break
            facts |= {**change.facts, **_rates(facts, change.facts)}
        return msgspec.structs.replace(self.party, **facts)

    def versions(self) -> list[tuple[str, AnyParty]]:
        """Each first day with the facts that hold from then on; none while they never changed."""
        return [(day, self.on(day)) for day in sorted({change.valid_from for change in self.changes})]


class InvoiceParties(msgspec.Struct, frozen=True):
    """The parties of one document: its tax is that of events, its names and addresses are those of `issued`.

    `event` is the last day of the document's period. `refuted` says which VAT ids their register had called invalid by
    a day: they count as none.
    """

    dated_seller: DatedParty[Seller]
    dated_buyer: DatedParty[Buyer]
    event: str
    issued: str
    refuted: Callable[[str], Collection[str]] = lambda _: ()

    @property
    def seller(self) -> Seller:
        """The seller as the document states it."""
        return with_facts(self.dated_seller.on(self.issued), self.dated_seller.on(self.event), SELLER_FACTS)

    @property
    def buyer(self) -> Buyer:
        """The buyer as the document states it."""
        return with_facts(self.dated_buyer.on(self.issued), self.dated_buyer.on(self.event), BUYER_FACTS)

    def tax_on(self, day: str) -> Tax:
        """The tax on an event of this day. Raises InvalidParty."""
        try:
            buyer = self.dated_buyer.on(day)
            if buyer.vat_id in self.refuted(day):
                buyer = msgspec.structs.replace(buyer, vat_id="")
            return tax_for(self.dated_seller.on(day), buyer)
        except InvalidParty as error:
            needed = f"{error.problem}, on {day}; a change needs to be valid from then on or earlier"
            raise InvalidParty(error.field, needed) from error


def with_facts(party: AnyParty, event: AnyParty, names: Sequence[str]) -> AnyParty:
    """The party with another day's facts, but for the country: that is a part of the address."""
    return msgspec.structs.replace(party, **{name: getattr(event, name) for name in names if name != "country"})


def facts_of(party: Party) -> dict[str, Any]:
    """All facts of a party."""
    return {name: getattr(party, name) for name in (SELLER_FACTS if isinstance(party, Seller) else BUYER_FACTS)}


def changed_facts(before: Party, after: Party) -> dict[str, Any]:
    """The facts in which a party differs; of rates, those of the countries that differ."""
    old, new = facts_of(before), facts_of(after)
    facts = {name: value for name, value in new.items() if value != old[name]}
    if "rates" in facts:
        countries = old["rates"].keys() | new["rates"].keys()
        rates = {country: new["rates"].get(country, 0) for country in countries}
        facts["rates"] = {country: rate for country, rate in rates.items() if rate != old["rates"].get(country, 0)}
    return facts


def _rates(before: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    if "rates" not in change:
        return {}
    rates = {**before.get("rates", {}), **change["rates"]}
    return {"rates": {country: rate for country, rate in rates.items() if rate}}
