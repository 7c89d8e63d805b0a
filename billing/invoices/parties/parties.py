"""The parties of an invoice: the seller, one of our legal entities, and the buyer, a tenant's billing profile.

Both are validated when they are made. Every document contains a copy of them, so that a later change of a name or
address changes no issued document.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

import msgspec
from stdnum import iban

from billing.invoices.parties.countries import NAMES
from billing.invoices.parties.vat_ids import problem_of
from billing.money import InvalidMoney, check_currency
from storage.free_text import InvalidText, problem_of_text

Treatment = Literal["auto", "standard", "zero", "exempt", "reverse_charge", "intra_community", "export", "outside"]
Detail = Literal["model", "project"]
Role = Literal["seller", "buyer"]
Profile = Literal["en16931", "xrechnung", "peppol"]
OptionalText = str | msgspec.UnsetType
"""A field that came later: absent where nobody set it, so that documents from before keep their hash."""
Prepayment = Literal["advance", "multi_purpose"]

_COUNTRY = re.compile(r"[A-Z]{2}", re.ASCII)
_IDENTITY = re.compile(r"[a-z0-9][a-z0-9-]{0,39}", re.ASCII)
_SERIES = re.compile(r"[A-Z0-9][A-Z0-9-]{0,11}", re.ASCII)
_VAT = re.compile(r"[A-Z]{2}[A-Z0-9+*]{2,13}", re.ASCII)
_EXAMPLE = "DE136695976"
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_FIELD = re.compile(r"\{(?:series|year|n(?::0\d{1,2})?)\}", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9/._-]*", re.ASCII)
_SCHEME = re.compile(r"[A-Z0-9]{2,4}", re.ASCII)
_BIC = re.compile(r"[A-Z]{6}[A-Z0-9]{2}(?:[A-Z0-9]{3})?", re.ASCII)
_RATE = re.compile(r"(\d{1,2})(?:\.(\d{1,2}))?", re.ASCII)

DEMONSTRATION = "demonstration"
"""The id of the seller of demonstrations (`turnpike demo`), which every document of theirs names."""
_DEMO_SERIES = "DEMO"
_TEST_SERIES = "TEST"

MOST_LINES = 6
"""Most address lines above postal code and city."""
MOST_PAYMENT_LINES = 12
"""Most lines that say how to pay."""


class InvalidParty(InvalidText):
    """An invalid seller or buyer; `field` is the field that is wrong."""


class Party(msgspec.Struct, frozen=True, kw_only=True):
    """What both parties have. `address` is the lines above postal code and city. Raises InvalidParty.

    `endpoint` is the electronic address to which documents are sent, in the scheme `endpoint_scheme` of the code list
    EAS (BT-34 and BT-49 of EN 16931), such as 0204 for a Leitweg-ID.
    """

    name: str
    address: list[str]
    postal_code: str = ""
    city: str
    country: str
    vat_id: str = ""
    email: str = ""
    endpoint: OptionalText = msgspec.UNSET
    endpoint_scheme: OptionalText = msgspec.UNSET

    def __post_init__(self) -> None:
        _check_text("name", self.name, 200)
        _check_text("city", self.city, 100)
        _check_text("postal_code", self.postal_code, 20, empty=True)
        if len(self.address) > MOST_LINES:
            raise InvalidParty("address", f"{len(self.address)} lines, more than {MOST_LINES}")
        for line in self.address:
            _check_text("address", line, 120)
        if _COUNTRY.fullmatch(self.country) is None:
            raise InvalidParty("country", f"{self.country!r} is not a country code such as DE")
        if self.vat_id and _VAT.fullmatch(self.vat_id) is None:
            raise InvalidParty(
                "vat_id", f"{self.vat_id!r} is not a VAT id with its country in front, such as {_EXAMPLE}"
            )
        _check_text("email", self.email, 254, empty=True)
        if self.email and _EMAIL.fullmatch(self.email) is None:
            raise InvalidParty("email", f"{self.email!r} is not an address such as billing@example.com")
        _check_text("endpoint", self.endpoint or "", 100, empty=True)
        scheme = self.endpoint_scheme or ""
        if scheme and _SCHEME.fullmatch(scheme) is None:
            raise InvalidParty("endpoint_scheme", f"{scheme!r} is not a code of the list EAS such as 0204 or EM")
        if bool(scheme) != bool(self.endpoint):
            raise InvalidParty("endpoint_scheme", "an endpoint needs its scheme, and a scheme its endpoint")


class Seller(Party, frozen=True, kw_only=True):
    """A legal entity that sells. Raises InvalidParty.

    - `payment`: lines that say how to pay.
    - `rates`: country → standard VAT rate in hundredths of a percent, for the countries where it charges VAT.
    - `series`, `credit_series`: the number series of invoices and of credit notes.
    - `prepayment`: when VAT on credit is due (`billing.invoices.advances`): `advance`, when it is paid, or
      `multi_purpose`, when it is used. Absent in documents from before the choice, and means `multi_purpose` there.
    - `number_format`: has the fields `{series}`, `{year}` and `{n}` or `{n:06}`. With a year, each year begins at 1.
    - `contact`, `phone`: whom to ask about an invoice (BT-41, BT-42). `iban`, `bic`: the account for credit transfers
      (BT-84, BT-86).
    """

    id: str
    registration: str = ""
    payment: list[str] = []
    currency: str = "USD"
    series: str = "INV"
    credit_series: str = "CN"
    number_format: str = "{series}-{year}-{n:06}"
    rates: dict[str, int] = {}
    contact: OptionalText = msgspec.UNSET
    phone: OptionalText = msgspec.UNSET
    iban: OptionalText = msgspec.UNSET
    bic: OptionalText = msgspec.UNSET
    prepayment: Prepayment | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        if _IDENTITY.fullmatch(self.id) is None:
            raise InvalidParty("id", f"{self.id!r} is not a short name such as acme-eu")
        _check_text("registration", self.registration, 200, empty=True)
        if len(self.payment) > MOST_PAYMENT_LINES:
            raise InvalidParty("payment", f"{len(self.payment)} lines, more than {MOST_PAYMENT_LINES}")
        for line in self.payment:
            _check_text("payment", line, 200)
        try:
            check_currency(self.currency)
        except InvalidMoney as error:
            raise InvalidParty("currency", str(error)) from error
        for field, series in (("series", self.series), ("credit_series", self.credit_series)):
            if _SERIES.fullmatch(series) is None:
                raise InvalidParty(field, f"{series!r} is not a series such as INV")
        if self.series == self.credit_series:
            raise InvalidParty("credit_series", "credit notes need a series of their own")
        _check_format(self.number_format)
        for country, rate in self.rates.items():
            if _COUNTRY.fullmatch(country) is None:
                raise InvalidParty("rates", f"{country!r} is not a country code such as DE")
            if not 0 < rate < 10_000:
                raise InvalidParty("rates", f"{rate} hundredths of a percent for {country}")
        _check_text("contact", self.contact or "", 100, empty=True)
        _check_text("phone", self.phone or "", 40, empty=True)
        if self.iban and not iban.is_valid(self.iban):
            raise InvalidParty("iban", f"{self.iban[:40]!r} is not an IBAN: its form or its check digits are wrong")
        if self.bic and _BIC.fullmatch(self.bic) is None:
            raise InvalidParty("bic", f"{self.bic[:20]!r} is not a BIC such as COBADEFFXXX")


def prepayment_of(seller: Seller) -> Prepayment:
    """When VAT on credit is due: of a seller from before the choice, when it is used."""
    return "multi_purpose" if seller.prepayment is msgspec.UNSET else seller.prepayment


class Buyer(Party, frozen=True, kw_only=True):
    """A tenant's billing profile. Raises InvalidParty.

    - `seller`: the id of the legal entity that sells to it.
    - `treatment`: `auto` if the tax follows from countries and VAT ids. `exempt`, `zero` and `outside` need a reason in
      `exemption`; the law gives the reason of the others.
    - `detail`: lines by model, or by project and model.
    - `buyer_reference`: who the buyer wants it routed to, such as a Leitweg-ID (BT-10).
    - `einvoice`: the profile of its documents as XML; empty: EN 16931 itself.
    """

    seller: str
    purchase_order: str = ""
    payment_days: int = 30
    treatment: Treatment = "auto"
    exemption: str = ""
    detail: Detail = "model"
    buyer_reference: OptionalText = msgspec.UNSET
    einvoice: Profile | Literal[""] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_text("purchase_order", self.purchase_order, 60, empty=True)
        _check_text("exemption", self.exemption, 300, empty=True)
        if not 0 <= self.payment_days <= 365:
            raise InvalidParty("payment_days", f"{self.payment_days} is not between 0 and 365")
        if self.treatment not in get_args(Treatment):
            raise InvalidParty("treatment", f"{self.treatment!r} is not one of {', '.join(get_args(Treatment))}")
        if self.detail not in get_args(Detail):
            raise InvalidParty("detail", f"{self.detail!r} is not one of {', '.join(get_args(Detail))}")
        if self.treatment in ("exempt", "zero", "outside") and not self.exemption:
            raise InvalidParty("exemption", f"treatment {self.treatment} needs a reason, which the invoice states")
        _check_text("buyer_reference", self.buyer_reference or "", 100, empty=True)
        self._check_einvoice()

    def _check_einvoice(self) -> None:
        """Refuse a profile without the fields that it needs of the buyer: a buyer cannot stop its own invoices by
        taking one away."""
        needed = {
            "xrechnung": {
                "buyer_reference": self.buyer_reference,
                "postal_code": self.postal_code,
                "endpoint": self.endpoint or self.email,
            },
            "peppol": {
                "buyer_reference": self.buyer_reference or self.purchase_order,
                "endpoint": self.endpoint,
            },
        }
        if self.einvoice and self.einvoice not in get_args(Profile):
            raise InvalidParty("einvoice", f"{self.einvoice!r} is not one of {', '.join(get_args(Profile))}")
        for field, value in needed.get(self.einvoice or "", {}).items():
            if not value:
                raise InvalidParty(field, f"documents in the profile {self.einvoice} need it")


def check_countries(party: Seller | Buyer) -> None:
    """Refuse unknown country codes, such as UK for GB, since the tax follows from them. Raises InvalidParty.

    Not part of the structs' own validation: parties on issued documents are not checked again.
    """
    countries = {"country": [party.country], "rates": list(party.rates) if isinstance(party, Seller) else []}
    for field, codes in countries.items():
        for code in codes:
            if code not in NAMES:
                correct = {"UK": "GB", "EL": "GR"}.get(code)
                raise InvalidParty(field, f"{code} is no country of ISO 3166{f'; use {correct}' if correct else ''}")


def check_series(seller: Seller, *, is_sandbox: bool = False) -> None:
    """Refuse series that do not say that the documents of a demonstration, or of a sandbox, are no documents. Raises
    InvalidParty."""
    begins = {_DEMO_SERIES: "a demonstration's"} if seller.id == DEMONSTRATION else {}
    begins = begins or ({_TEST_SERIES: "a sandbox's"} if is_sandbox else {})
    for field, series in (("series", seller.series), ("credit_series", seller.credit_series)):
        for beginning, whose in begins.items():
            if not series.startswith(beginning):
                raise InvalidParty(field, f"{series!r} does not begin with {beginning}, as {whose} series do")
    if seller.id == DEMONSTRATION and seller.name != "Demonstration":
        raise InvalidParty("name", "the seller of a demonstration is named Demonstration")


def check_vat_id(party: Party, before: Party | None = None) -> None:
    """Refuse an invalid VAT id, since the tax follows from it. Raises InvalidParty.

    A profile from before this check (`before`) may keep its invalid id while other fields change: the tax rules treat
    such an id as absent, and `vat_warnings` names it. Parties on issued documents are not checked again.
    """
    problem = problem_of(party.vat_id, party.country) if party.vat_id else ""
    kept = before is not None and before.vat_id == party.vat_id and problem_of(before.vat_id, before.country)
    if problem and not kept:
        raise InvalidParty("vat_id", problem)


def vat_warnings(seller: Seller, buyer: Buyer) -> list[str]:
    """Warnings about the parties' VAT ids to show before an invoice is finalized, a sentence each."""
    found = (vat_warning("seller", seller), vat_warning("buyer", buyer))
    return [warning for warning in found if warning]


def vat_warning(role: Role, party: Party) -> str:
    """A warning about one party's VAT id, in a sentence; "" if it is valid or there is none."""
    problem = problem_of(party.vat_id, party.country) if party.vat_id else ""
    if not problem:
        return ""
    charged = ": the tax is that of a buyer without one" if role == "buyer" else ""
    return f"The VAT id of the {role} is not valid: {problem}{charged}."


def parse_rate(text: str) -> int:
    """Hundredths of a percent of a rate in percent: "19" → 1900, "8.1" → 810. Raises InvalidParty."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise InvalidParty("rates", f"{text!r} is not a rate in percent such as 19 or 8.1")
    return int(match.group(1)) * 100 + int((match.group(2) or "").ljust(2, "0"))


def format_rate(rate: int) -> str:
    """A rate in percent without needless zeros: 1900 → "19", 810 → "8.1"."""
    return f"{rate // 100}.{rate % 100:02d}".rstrip("0").rstrip(".")


def _check_text(field: str, text: str, most: int, *, empty: bool = False) -> None:
    if problem := problem_of_text(text, most, empty=empty):
        raise InvalidParty(field, problem)


def _check_format(form: str) -> None:
    fields = _FIELD.findall(form)
    if _PLAIN.fullmatch(_FIELD.sub("", form)) is None or not any(field.startswith("{n") for field in fields):
        raise InvalidParty("number_format", f"{form!r} is not a format such as {{series}}-{{year}}-{{n:06}}")
    if "{series}" not in form:
        raise InvalidParty("number_format", "without {series}, an invoice and a credit note could have the same number")
