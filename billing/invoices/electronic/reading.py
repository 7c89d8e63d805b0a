"""What an e-invoice says, read back from its XML: the number, the day and every amount that can be compared."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from lxml import etree

from billing.invoices.document import Document, paid_before
from billing.invoices.electronic.syntaxes import Syntax
from billing.money import format_minor

_NAMESPACES = {
    "cac": "urn:oasis:names:specification:ubl:schema:xsd:CommonAggregateComponents-2",
    "cbc": "urn:oasis:names:specification:ubl:schema:xsd:CommonBasicComponents-2",
    "rsm": "urn:un:unece:uncefact:data:standard:CrossIndustryInvoice:100",
    "ram": "urn:un:unece:uncefact:data:standard:ReusableAggregateBusinessInformationEntity:100",
    "udt": "urn:un:unece:uncefact:data:standard:UnqualifiedDataType:100",
}
_UBL_TOTAL = "cac:LegalMonetaryTotal/cbc:"
_CII_TRADE = "rsm:SupplyChainTradeTransaction/"
_CII_SETTLEMENT = f"{_CII_TRADE}ram:ApplicableHeaderTradeSettlement/"
_CII_TOTAL = f"{_CII_SETTLEMENT}ram:SpecifiedTradeSettlementHeaderMonetarySummation/ram:"
_PATHS: dict[Syntax, Mapping[str, str]] = {
    "ubl": {
        "number": "cbc:ID",
        "issued": "cbc:IssueDate",
        "currency": "cbc:DocumentCurrencyCode",
        "net": f"{_UBL_TOTAL}TaxExclusiveAmount",
        "tax": "cac:TaxTotal/cbc:TaxAmount",
        "gross": f"{_UBL_TOTAL}TaxInclusiveAmount",
        "prepaid": f"{_UBL_TOTAL}PrepaidAmount",
        "payable": f"{_UBL_TOTAL}PayableAmount",
        "lines": "cac:InvoiceLine/cbc:LineExtensionAmount | cac:CreditNoteLine/cbc:LineExtensionAmount",
        "taxes": "cac:TaxTotal/cac:TaxSubtotal/cbc:TaxAmount",
    },
    "cii": {
        "number": "rsm:ExchangedDocument/ram:ID",
        "issued": "rsm:ExchangedDocument/ram:IssueDateTime/udt:DateTimeString",
        "currency": f"{_CII_SETTLEMENT}ram:InvoiceCurrencyCode",
        "net": f"{_CII_TOTAL}TaxBasisTotalAmount",
        "tax": f"{_CII_TOTAL}TaxTotalAmount",
        "gross": f"{_CII_TOTAL}GrandTotalAmount",
        "prepaid": f"{_CII_TOTAL}TotalPrepaidAmount",
        "payable": f"{_CII_TOTAL}DuePayableAmount",
        "lines": f"{_CII_TRADE}ram:IncludedSupplyChainTradeLineItem/ram:SpecifiedLineTradeSettlement/"
        "ram:SpecifiedTradeSettlementLineMonetarySummation/ram:LineTotalAmount",
        "taxes": f"{_CII_SETTLEMENT}ram:ApplicableTradeTax/ram:CalculatedAmount",
    },
}
"""Where each syntax has what is compared; `lines` and `taxes` are there several times."""
_TOTALS = ("net", "tax", "gross", "prepaid", "payable")


class Statement(msgspec.Struct, frozen=True):
    """What an e-invoice states, as it is written there; `issued` without dashes."""

    number: str
    issued: str
    currency: str
    net: str
    tax: str
    gross: str
    prepaid: str
    payable: str
    lines: list[str]
    taxes: list[str]


def statement_of(document: Document) -> Statement:
    """What the e-invoice of a document has to state."""
    totals = {name: format_minor(getattr(document, name), document.currency) for name in _TOTALS}
    paid = paid_before(document)
    return Statement(
        number=document.number,
        issued=document.issued.replace("-", ""),
        currency=document.currency,
        **totals | {"prepaid": format_minor(paid, document.currency) if paid else ""},
        lines=[format_minor(line.net, document.currency) for line in document.lines],
        taxes=[format_minor(total.tax, document.currency) for total in document.taxes],
    )


def read_statement(content: str, syntax: Syntax) -> Statement:
    """What an e-invoice states. Raises ValueError if it is no XML."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    try:
        root = etree.fromstring(content.encode(), parser)
    except etree.XMLSyntaxError as error:
        raise ValueError(str(error)) from error
    texts = {
        name: [element.text or "" for element in root.xpath(path, namespaces=_NAMESPACES)]
        for name, path in _PATHS[syntax].items()
    }
    single = {name: " ".join(texts[name]) for name in texts.keys() - {"lines", "taxes"}}
    single["issued"] = single["issued"].replace("-", "")
    return Statement(**single, lines=texts["lines"], taxes=texts["taxes"])
