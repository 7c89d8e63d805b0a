"""A document as business terms of EN 16931: by their numbers, as `facturx` writes them in either syntax.

`BT` is a term, `BG` a group of terms; the numbers are those of EN 16931-1. All values are text, so that nothing is
rounded on the way. What the standard cannot express is refused here, with the rule that forbids it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from typing import Any

from billing.invoices.document import Document, DocumentKind, InvoiceLine, paid_before
from billing.invoices.errors import NotExpressible
from billing.invoices.parties.parties import Party, Seller, format_rate
from billing.invoices.parties.tax import Category, TaxTotal
from billing.invoices.rendering.presentation import meter_name
from billing.money import MICRO, format_minor, minor_digits
from billing.usage import METERS

Terms = dict[str, Any]

_TYPES: dict[DocumentKind, str] = {"invoice": "380", "credit_note": "381", "advance": "386"}
"""BT-3 by UNTDID 1001."""
_REASON_CODES: dict[Category, str] = {
    "AE": "VATEX-EU-AE",
    "K": "VATEX-EU-IC",
    "G": "VATEX-EU-G",
    "O": "VATEX-EU-O",
}
"""BT-121: why there is no VAT, by the code list VATEX. An exemption (E) has its reason in words alone."""
_ONE = "C62"
"""The unit "one" of UNECE Recommendation 20: a token, a token-second, a charge."""
_BASE_QUANTITY = 1_000_000
"""BT-149: a price is for so many units."""
_COUNTRIES = {"XK": "1A"}
"""Codes of ours that the standard's code list writes otherwise: Kosovo."""
_INVALID_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def terms_of(document: Document) -> Terms:
    """All terms of an issued document but those of its profile (BT-23, BT-24). Raises NotExpressible."""
    check_expressible(document)
    seller, buyer = document.seller, document.buyer
    reference = buyer.buyer_reference or ""
    terms: Terms = {
        "BT-1": document.number,
        "BT-2": date.fromisoformat(document.issued),
        "BT-3": _TYPES[document.kind],
        "BT-5": document.currency,
        "BT-10": reference,
        "BT-13": buyer.purchase_order,
        "BT-20": _payment_terms(document),
        "BT-72": date.fromisoformat(document.service_until),
        "BT-73": date.fromisoformat(document.service_from),
        "BT-74": date.fromisoformat(document.service_until),
        "BG-1": [{"BT-22": note} for note in _notes(document)],
        "BG-4": _seller(document),
        "BG-7": _buyer(document),
        "BG-23": [_tax(document, total) for total in document.taxes],
        "BG-25": [_line(document, n, line) for n, line in enumerate(document.lines, 1)],
        **_payment(seller, document.currency),
        **_totals(document),
    }
    if document.due:
        terms["BT-9"] = date.fromisoformat(document.due)
    if document.corrects:
        terms["BG-3"] = [{"BT-25": document.corrects}]
    if any(total.category == "K" for total in document.taxes):  # BR-IC-12: where it was delivered to
        terms["BG-13"] = {"name": buyer.name, "country_code": _country(buyer)}
    printable: Terms = _printable(terms)
    return printable


def check_expressible(document: Document) -> None:
    """Raise NotExpressible, naming what is missing, if EN 16931 has no form for the document."""
    categories = {total.category for total in document.taxes}
    if document.kind not in _TYPES:
        raise NotExpressible("kind", f"{document.kind} has no type code")
    if not document.number:
        raise NotExpressible("number", "a draft is no invoice yet")
    if not document.lines:
        raise NotExpressible("lines", "it has none, and an e-invoice needs one (BR-16)")
    if minor_digits(document.currency) > 2:
        raise NotExpressible("currency", f"{document.currency} has more than two decimal places (BR-DEC-23)")
    if "O" in categories and len(categories) > 1:
        raise NotExpressible("taxes", "what is not subject to VAT cannot be with other lines (BR-O-11)")
    if categories - {"O"} and not document.seller.vat_id:
        raise NotExpressible("seller.vat_id", f"the seller needs one for category {min(categories - {'O'})} (BR-CO-26)")
    if categories & {"AE", "K"} and not document.buyer.vat_id:
        raise NotExpressible("buyer.vat_id", f"the buyer needs one for category {min(categories)} (BR-AE-02)")


def _seller(document: Document) -> Terms:
    seller = document.seller
    return {
        **_party(document, seller),
        "identifiers": {None: seller.id},  # BR-CO-26: known by one even where there is no VAT id
        "legal_info": seller.registration,
        "contacts": _contacts(seller),
    }


def _buyer(document: Document) -> Terms:
    return _party(document, document.buyer)


def _party(document: Document, party: Party) -> Terms:
    lines = [*party.address[:2], ", ".join(party.address[2:])]
    scheme, address = electronic_address(party)
    states_vat_id = all(total.category != "O" for total in document.taxes)  # BR-O-02: none where nothing is subject
    return {
        "name": party.name,
        **{f"addr_l{n}": line for n, line in enumerate(lines, 1)},
        "postcode": party.postal_code,
        "city": party.city,
        "country_code": _country(party),
        "vat_identifier": party.vat_id if states_vat_id else "",
        "einvoicing_addr": address,
        "einvoicing_addr_schemeid": scheme,
    }


def electronic_address(party: Party) -> tuple[str, str]:
    """Scheme (of the code list EAS) and address at which a party gets documents: its own, else its e-mail address."""
    if party.endpoint:
        return party.endpoint_scheme or "", party.endpoint
    return ("EM", party.email) if party.email else ("", "")


def _country(party: Party) -> str:
    return _COUNTRIES.get(party.country, party.country)


def _contacts(seller: Seller) -> list[Terms]:
    contact = {"name": seller.contact or "", "phone": seller.phone or "", "email": seller.email}
    return [contact] if any(contact.values()) else []


def _payment(seller: Seller, currency: str) -> Terms:
    """How to pay (BG-16): by credit transfer to the seller's account, else as agreed."""
    if not seller.iban:
        return {"BT-81": "1"}
    code = "58" if currency == "EUR" else "30"
    return {"BT-81": code, "BT-84": seller.iban, "BT-85": seller.name, "BT-86": seller.bic or ""}


def _payment_terms(document: Document) -> str:
    if document.kind == "credit_note":
        return f"Settled against {document.corrects}; what was paid of it goes to the balance."
    if document.kind == "advance" or not document.payable:
        return "Paid in advance."
    return ", ".join(document.seller.payment)


def _notes(document: Document) -> Iterator[str]:
    if document.reason:
        yield document.reason
    for total in document.taxes:
        if total.category == "Z" and total.reason:  # BR-Z-10: a zero rate has no exemption reason
            yield total.reason


def _tax(document: Document, total: TaxTotal) -> Terms:
    terms = {
        "BT-116": format_minor(total.net, document.currency),
        "BT-117": format_minor(total.tax, document.currency),
        "BT-118": total.category,
    }
    if total.category != "O":
        terms["BT-119"] = format_rate(total.rate)
    if total.category not in ("S", "Z"):
        terms |= {"BT-120": total.reason, "BT-121": _REASON_CODES.get(total.category, "")}
    return terms


def _line(document: Document, n: int, line: InvoiceLine) -> Terms:
    quantity, price, base = _quantity(document, line)
    terms = {
        "BT-126": str(n),
        "BT-127-00": [{"BT-127": note} for note in _line_notes(document, line)],
        "BT-129": quantity,
        "BT-130": _ONE,
        "BT-131": format_minor(line.net, document.currency),
        "BT-134": date.fromisoformat(line.service_from),
        "BT-135": date.fromisoformat(line.service_until),
        "BT-146": price,
        "BT-149": base,
        "BT-151": line.category,
        "BT-153": meter_name(line.meter) if line.meter in METERS else line.text,
        "BT-154": " · ".join(part for part in (line.project, line.model) if part),
    }
    if line.category != "O":
        terms["BT-152"] = format_rate(line.rate)
    return terms


def _quantity(document: Document, line: InvoiceLine) -> tuple[str, str, str]:
    """Quantity, price and what the price is for. A line without units is one, or minus one, of its amount: a price is
    never negative (BR-27)."""
    if not line.unit:
        return "-1" if line.net < 0 else "1", format_minor(abs(line.net), document.currency), "1"
    whole, rest = divmod(line.price, MICRO)
    price = f"{whole}.{f'{rest:06d}'.rstrip('0').ljust(2, '0')}"
    return line.units, price, str(_BASE_QUANTITY)


def _line_notes(document: Document, line: InvoiceLine) -> list[str]:
    parts = [
        f"{line.lane} lane" if line.lane not in ("", "standard") else "",
        f"context from {line.context_from} tokens" if line.context_from else "",
        f"correction of {line.corrects}" if line.corrects else "",
        f"line {line.of} of {document.corrects}" if line.of else "",
    ]
    note = ", ".join(part for part in parts if part)
    return [note] if note else []


def _totals(document: Document) -> Terms:
    amounts = {
        "BT-106": document.net,
        "BT-109": document.net,
        "BT-110": document.tax,
        "BT-112": document.gross,
        "BT-115": document.payable,
    }
    if paid := paid_before(document):
        amounts["BT-113"] = paid
    return {term: format_minor(minor, document.currency) for term, minor in amounts.items()}


def _printable(value: Any) -> Any:
    """The same without characters that XML cannot have."""
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return _INVALID_IN_XML.sub("\ufffd", value) if isinstance(value, str) else value
