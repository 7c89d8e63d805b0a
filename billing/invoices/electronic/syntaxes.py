"""E-invoices by profile and syntax: EN 16931, and what XRechnung and Peppol BIS Billing (a CIUS each) add to it.

| profile | what it needs beyond EN 16931 |
|---|---|
| en16931 | nothing |
| xrechnung | buyer reference (BT-10), contact, telephone and e-mail of the seller, post codes, electronic addresses |
| peppol | electronic addresses with their schemes, buyer reference or purchase order |

The XML is written by `facturx`, which knows the specification identifiers (BT-24) of its own levels alone: that of a
profile is put in afterwards. Its own checks are not used: without a server its Schematron check says yes to everything.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from billing.invoices.document import Document
from billing.invoices.electronic.semantic_model import terms_of
from billing.invoices.errors import NotExpressible
from billing.invoices.parties.parties import Buyer, Profile, Seller

Syntax = Literal["ubl", "cii"]
SYNTAXES: tuple[Syntax, ...] = get_args(Syntax)
"""UBL 2.1, and UN/CEFACT Cross Industry Invoice D16B."""

_PEPPOL_BILLING = "urn:fdc:peppol.eu:2017:poacc:billing:01:1.0"
_EN16931 = "urn:cen.eu:en16931:2017"


class ProfileTerms(msgspec.Struct, frozen=True):
    """Specification (BT-24) and business process (BT-23) of a profile.

    `syntaxes`: those in which it exists; in the others a document is plain EN 16931. `level` and `file_name` are what a
    PDF says of an XML of this profile that it embeds.
    """

    specification: str
    process: str = ""
    syntaxes: tuple[Syntax, ...] = SYNTAXES
    level: str = "EN 16931"
    file_name: str = "factur-x.xml"


PROFILES: dict[Profile, ProfileTerms] = {
    "en16931": ProfileTerms(_EN16931),
    "xrechnung": ProfileTerms(
        f"{_EN16931}#compliant#urn:xeinkauf.de:kosit:xrechnung_3.0",
        _PEPPOL_BILLING,
        level="XRECHNUNG",
        file_name="xrechnung.xml",
    ),
    "peppol": ProfileTerms(f"{_EN16931}#compliant#urn:fdc:peppol.eu:2017:poacc:billing:3.0", _PEPPOL_BILLING, ("ubl",)),
}


def profile_in(syntax: Syntax, buyer: Buyer) -> Profile:
    """The profile of a buyer's documents in this syntax."""
    profile = buyer.einvoice or "en16931"
    return profile if syntax in PROFILES[profile].syntaxes else "en16931"


def check_profile(seller: Seller, buyer: Buyer) -> None:
    """Raise NotExpressible, naming the first field of the seller that the buyer's profile needs and that is empty. The
    buyer's own fields were checked when the profile was set."""
    needed = {
        "xrechnung": ("contact", "phone", "email", "postal_code"),
        "peppol": ("endpoint",),
    }
    for name in needed.get(buyer.einvoice or "", ()):
        if not getattr(seller, name):
            raise NotExpressible(f"seller.{name}", f"the profile {buyer.einvoice} of the buyer needs it")


_SPECIFICATIONS: dict[Syntax, bytes] = {
    "ubl": b"<cbc:CustomizationID>%s</cbc:CustomizationID>",
    "cii": b"<ram:GuidelineSpecifiedDocumentContextParameter>\n      <ram:ID>%s</ram:ID>",
}
"""Where a syntax has BT-24."""


def to_xml(document: Document, syntax: Syntax) -> bytes:
    """An issued document as XML in the profile of its buyer; the same document, the same bytes. Raises
    NotExpressible."""
    from facturx.generate_xml import generate_cii_xml, generate_ubl_xml  # noqa: PLC0415  # what only this needs

    profile = profile_in(syntax, document.buyer)
    write = generate_ubl_xml if syntax == "ubl" else generate_cii_xml
    terms = terms_of(document) | {"BT-23": PROFILES[profile].process}
    try:
        xml: bytes = write(terms, level="en16931", check_xsd=False, check_schematron=False)
    except ValueError as error:
        raise NotExpressible("document", str(error)) from error
    plain, wanted = (_SPECIFICATIONS[syntax] % PROFILES[name].specification.encode() for name in ("en16931", profile))
    if xml.count(plain) != 1:  # what people wrote is escaped, and cannot look like it
        raise NotExpressible("document", "it does not say once which specification it follows")
    return xml.replace(plain, wanted)
