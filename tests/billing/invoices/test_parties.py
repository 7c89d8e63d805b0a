"""Parties are checked when they are made, and the tax follows from both."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from billing.invoices.parties.countries import NAMES, name_of
from billing.invoices.parties.parties import (
    Buyer,
    InvalidParty,
    Seller,
    check_countries,
    check_vat_id,
    format_rate,
    parse_rate,
    vat_warnings,
)
from billing.invoices.parties.tax import Tax, tax_for, tax_totals
from billing.invoices.parties.vat_ids import EU, compact
from tests.billing.invoices.documents import BUYER, SELLER

GERMAN = msgspec.structs.replace(BUYER, country="DE", vat_id="")
FRENCH = msgspec.structs.replace(BUYER, vat_id="")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": " "}, "name"),
        ({"city": ""}, "city"),
        ({"city": "Par\nis"}, "city"),
        ({"address": ["x"] * 7}, "address"),
        ({"address": ["a\tb"]}, "address"),
        ({"country": "de"}, "country"),
        ({"country": "DEU"}, "country"),
        ({"vat_id": "12"}, "vat_id"),
        ({"email": "nobody"}, "email"),
        ({"payment_days": -1}, "payment_days"),
        ({"treatment": "free"}, "treatment"),
        ({"treatment": "exempt"}, "exemption"),
        ({"purchase_order": "x" * 61}, "purchase_order"),
    ],
)
def test_a_buyer_that_cannot_be_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParty) as refused:
        msgspec.structs.replace(BUYER, **changes)
    assert refused.value.field == field


def test_a_country_that_there_is_not_is_refused() -> None:
    check_countries(BUYER)
    check_countries(SELLER)
    with pytest.raises(InvalidParty, match="country: UK is no country of ISO 3166; use GB"):
        check_countries(msgspec.structs.replace(BUYER, country="UK", vat_id=""))
    with pytest.raises(InvalidParty, match="rates: ZZ is no country"):
        check_countries(msgspec.structs.replace(SELLER, rates={"DE": 1900, "ZZ": 100}))


VALID = {
    "AT": "ATU13585627",
    "DE": "DE136695976",
    "FR": "FR40303265045",
    "GR": "EL094259216",
    "GB": "GB980780684",
    "CH": "CHE107787577IVA",
    "NO": "NO995525828MVA",
    "US": "",
}


@pytest.mark.parametrize(("country", "vat_id"), VALID.items())
def test_a_vat_id_is_of_its_country(country: str, vat_id: str) -> None:
    check_vat_id(msgspec.structs.replace(BUYER, country=country, vat_id=vat_id))


@pytest.mark.parametrize(
    ("country", "vat_id"),
    [
        ("FR", "FRHELLO"),
        ("FR", "XX9999"),
        ("DE", "XX9999"),
        ("FR", "FR12345678901"),  # the check digits are wrong
        ("DE", "DE136695977"),
        ("FR", "DE136695976"),  # of another member state
        ("GR", "GR094259216"),  # Greece writes EL
        ("GB", "XI123456789"),
        ("GB", "GB123456789"),
        ("CH", "CHE107787578IVA"),
        ("NO", "NO995525829MVA"),
    ],
)
def test_a_vat_id_that_cannot_be_is_refused(country: str, vat_id: str) -> None:
    buyer = msgspec.structs.replace(BUYER, country=country, vat_id=vat_id)  # as documents may have it
    with pytest.raises(InvalidParty, match=vat_id) as refused:
        check_vat_id(buyer)
    assert refused.value.field == "vat_id"


def test_separators_of_a_vat_id_are_left_out() -> None:
    assert compact(" de 136.695-976") == "DE136695976"


@pytest.mark.parametrize("vat_id", ["FRHELLO", "XX9999", "FR12345678901", "DE136695976", "GB980780684"])
@pytest.mark.parametrize("treatment", ["auto", "reverse_charge", "intra_community"])
def test_vat_is_charged_without_a_valid_id(vat_id: str, treatment: str) -> None:
    buyer = msgspec.structs.replace(BUYER, vat_id=vat_id, treatment=treatment)
    seller = msgspec.structs.replace(SELLER, rates=SELLER.rates | {"FR": 2000})
    tax = tax_for(seller, buyer)
    assert (tax.category, tax.rate) == ("S", 2000)
    if vat_id != "GB980780684":  # which is an id, but of no member state
        (warning,) = vat_warnings(seller, buyer)
        assert vat_id in warning
    with pytest.raises(InvalidParty, match="FR"):
        tax_for(SELLER, buyer)  # who has no rate for it


def test_reverse_charge_reaches_northern_ireland_and_no_other_country_outside() -> None:
    base = "980780684"
    for country, vat_id, category in (
        ("GB", f"XI{base}", "AE"),
        ("GB", f"GB{base}", "O"),
        ("CH", VALID["CH"], "O"),
        ("NO", VALID["NO"], "O"),
        ("US", "DE136695976", "O"),
    ):
        buyer = msgspec.structs.replace(BUYER, country=country, vat_id=vat_id)
        check_vat_id(buyer)
        assert tax_for(SELLER, buyer).category == category


def test_a_country_has_a_name() -> None:
    assert len(NAMES) == 250  # ISO's 249 and Kosovo
    assert all(len(code) == 2 and code.isupper() and name == name.strip() for code, name in NAMES.items())
    assert set(NAMES) > EU
    assert name_of("DE") == "Germany"
    assert name_of("ZZ") == "ZZ"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": "Acme EU"}, "id"),
        ({"currency": "eur"}, "currency"),
        ({"series": "inv/1"}, "series"),
        ({"credit_series": "INV"}, "credit_series"),
        ({"number_format": "{series}-{year}"}, "number_format"),
        ({"number_format": "{year}-{n}"}, "number_format"),
        ({"number_format": "{series}-{n}-{tenant}"}, "number_format"),
        ({"number_format": "{series}-{n:6d}"}, "number_format"),
        ({"number_format": "{series.__class__}-{n}"}, "number_format"),
        ({"rates": {"de": 1900}}, "rates"),
        ({"rates": {"DE": 0}}, "rates"),
    ],
)
def test_a_seller_that_cannot_be_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParty) as refused:
        msgspec.structs.replace(SELLER, **changes)
    assert refused.value.field == field


@pytest.mark.parametrize(("text", "rate"), [("19", 1900), ("8.1", 810), ("5.25", 525), ("0", 0)])
def test_rates_in_percent(text: str, rate: int) -> None:
    assert parse_rate(text) == rate
    assert format_rate(rate) == text


@pytest.mark.parametrize("text", ["", "19%", "-1", "1e1", "8.125", "100"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(InvalidParty):
        parse_rate(text)


ABROAD = msgspec.structs.replace(SELLER, country="US", vat_id="", rates={})
SWISS = msgspec.structs.replace(BUYER, country="CH", vat_id="")
GREEK = msgspec.structs.replace(BUYER, country="GR", vat_id="EL094259216")


@pytest.mark.parametrize(
    ("seller", "buyer", "category", "rate"),
    [
        (SELLER, GERMAN, "S", 1900),
        (SELLER, BUYER, "AE", 0),
        (SELLER, GREEK, "AE", 0),
        (SELLER, msgspec.structs.replace(FRENCH, country="ES"), "S", 2100),
        (SELLER, SWISS, "O", 0),
        (msgspec.structs.replace(SELLER, rates={"DE": 1900, "CH": 810}), SWISS, "S", 810),
        (ABROAD, BUYER, "O", 0),
        (SELLER, msgspec.structs.replace(GERMAN, treatment="exempt", exemption="§ 4 UStG"), "E", 0),
        (SELLER, msgspec.structs.replace(GERMAN, treatment="zero", exemption="why"), "Z", 0),
        (SELLER, msgspec.structs.replace(SWISS, treatment="export"), "G", 0),
        (SELLER, msgspec.structs.replace(BUYER, treatment="intra_community"), "K", 0),
        (SELLER, msgspec.structs.replace(BUYER, treatment="standard"), "S", 1900),
    ],
)
def test_the_tax_that_follows_from_both(seller: Seller, buyer: Buyer, category: str, rate: int) -> None:
    tax = tax_for(seller, buyer)
    assert (tax.category, tax.rate) == (category, rate)
    assert bool(tax.reason) == (category != "S")


@pytest.mark.parametrize(
    ("seller", "buyer"),
    [
        (SELLER, FRENCH),  # no French rate is known
        (msgspec.structs.replace(SELLER, vat_id=""), BUYER),
        (SELLER, msgspec.structs.replace(FRENCH, treatment="reverse_charge")),
    ],
)
def test_what_is_missing_for_a_tax_is_said(seller: Seller, buyer: Buyer) -> None:
    with pytest.raises(InvalidParty):
        tax_for(seller, buyer)


def test_tax_is_made_once_for_a_rate_and_never_per_line() -> None:
    standard, reduced, exempt = Tax("S", 1900), Tax("S", 700), Tax("E", 0, "why")
    totals = tax_totals([(standard, 1), (exempt, 50), (standard, 1), (reduced, 50), (standard, 1)])
    assert [(t.category, t.rate, t.net, t.tax) for t in totals] == [
        ("E", 0, 50, 0), ("S", 700, 50, 4), ("S", 1900, 3, 1)
    ]  # fmt: skip
    assert [t.tax for t in tax_totals([(standard, -50)])] == [-10]  # 9.5, away from zero like 9.5 itself
