"""VAT identification numbers: format and check digits by country, with python-stdnum.

A valid number can still belong to nobody: only the VIES service of the European Union knows which are registered.
"""

from __future__ import annotations

from stdnum.eu import vat as eu_vat
from stdnum.exceptions import ValidationError
from stdnum.util import clean, get_cc_module

from billing.invoices.parties.countries import NAMES

_MEMBERS = "AT BE BG CY CZ DE DK EE ES FI FR GR HR HU IE IT LT LU LV MT NL PL PT RO SE SI SK"
EU = frozenset(_MEMBERS.split())
"""The member states of the European Union by ISO 3166."""
NORTHERN_IRELAND = "XI"
_COUNTRIES = {"EL": "GR", NORTHERN_IRELAND: "GB"}
"""Prefixes that are not codes of ISO 3166, with their countries: Greece and Northern Ireland."""


def country_of(vat_id: str) -> str:
    """The ISO 3166 country of a VAT id's prefix; "" if there is none."""
    prefix = vat_id[:2]
    if prefix == "GR":
        return ""  # Greece writes EL
    country = _COUNTRIES.get(prefix, prefix)
    return country if country in NAMES else ""


def compact(vat_id: str) -> str:
    """A VAT id without separators, in capitals: "de 136 695-976" → "DE136695976"."""
    return clean(vat_id, " -./,").upper().strip()


def problem_of(vat_id: str, country: str) -> str:
    """Why a VAT id is not valid for a party in this country, in words; "" if it is valid.

    The prefix must be a country's, and the rest have that country's format and check digits. For member states of the
    European Union and Northern Ireland, the country must be the party's own.
    """
    prefix, named = vat_id[:2], country_of(vat_id)
    if not named:
        hint = " (Greece writes EL)" if prefix == "GR" else ""
        return f"{vat_id!r} does not begin with a country prefix such as DE{hint}"
    if named != country and (named in EU or prefix == NORTHERN_IRELAND) and country in EU | {"GB"}:
        return f"{vat_id} is a VAT id of {named}, but the country is {country}"
    if not _has_form(vat_id, prefix):
        return f"{vat_id} does not have the format or the check digits of a VAT id of {named}"
    return ""


def member_state(vat_id: str, country: str) -> str:
    """The member state of a party's valid VAT id, or XI for Northern Ireland; "" if it has none."""
    if not vat_id or problem_of(vat_id, country):
        return ""
    if vat_id.startswith(NORTHERN_IRELAND):
        return NORTHERN_IRELAND
    named = country_of(vat_id)
    return named if named in EU and named == country else ""


def _has_form(vat_id: str, prefix: str) -> bool:
    if country_of(vat_id) in EU or prefix == NORTHERN_IRELAND:
        return eu_vat.is_valid(vat_id)
    module = get_cc_module(prefix.lower(), "vat")
    if module is None:
        return True  # python-stdnum knows no VAT id of this country
    for number in (vat_id, vat_id[2:]):
        try:
            module.validate(number)
        except ValidationError:
            continue
        return True
    return False
