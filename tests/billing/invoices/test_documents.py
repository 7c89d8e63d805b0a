"""Amounts, the canonical text, and the PDF with everything that the law wants on it."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import facturx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from pypdf import PdfReader
from pypdf.errors import PyPdfError

from billing.integrity.canonical_json import NotCanonical, canonical, sha256
from billing.invoices.document import Document, Returned
from billing.invoices.electronic.store import EInvoice
from billing.invoices.electronic.syntaxes import to_xml
from billing.invoices.rendering.factur_x import UnknownMetadata, declare_factur_x
from billing.invoices.rendering.pdf import NotPrintable, to_pdf
from billing.invoices.rendering.presentation import shown
from billing.invoices.store import NOTHING_SETTLED, InvoiceRecord, Payment, PaymentsAndCredits
from billing.money import InvalidMoney, format_minor, minor_unit, round_half_up, round_with_carry
from storage.database.base import to_instant
from tests.billing.invoices.documents import BUYER, document


@pytest.mark.parametrize(
    ("currency", "minor", "text"),
    [
        ("USD", 5, "0.05"),
        ("EUR", -123456, "-1234.56"),
        ("JPY", 1000, "1000"),
        ("KWD", 1, "0.001"),
        ("CLF", 1, "0.0001"),
    ],
)
def test_minor_units_by_iso_4217(currency: str, minor: int, text: str) -> None:
    assert format_minor(minor, currency) == text
    whole, _, places = text.partition(".")
    assert minor_unit(currency) == 10 ** (12 - len(places))
    assert whole


def test_what_is_no_currency() -> None:
    with pytest.raises(InvalidMoney):
        minor_unit("dollars")


@given(st.integers(-(10**20), 10**20), st.sampled_from([1, 10**8, 10**10, 10**12]))
def test_half_up(amount: int, unit: int) -> None:
    units = round_half_up(amount, unit)
    assert 2 * abs(amount - units * unit) <= unit
    assert round_half_up(-amount, unit) == -units
    if 2 * (abs(amount) % unit) == unit:
        assert abs(units * unit) > abs(amount)


@given(st.lists(st.integers(-(10**14), 10**14), max_size=60), st.sampled_from([10**9, 10**10, 10**12]))
def test_what_is_carried_is_never_more_than_half_a_unit(exact: list[int], unit: int) -> None:
    carry = billed = 0
    for n, amount in enumerate(exact, 1):
        step = round_with_carry(amount, carry, unit)
        billed, carry = billed + step.amount, step.carry
        assert billed * unit + carry == sum(exact[:n])
        assert 2 * abs(carry) <= unit


plain = st.recursive(
    st.integers(-(2**53) + 1, 2**53 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(max_codepoint=127)), inner),
    max_leaves=12,
)


@given(plain)
def test_the_canonical_text_says_the_same_and_has_one_form(value: object) -> None:
    text = canonical(value)
    assert json.loads(text) == value
    assert canonical(json.loads(text)) == text
    assert sha256(text) == sha256(canonical(value))


def test_keys_are_sorted_and_nothing_is_escaped_that_need_not_be() -> None:
    assert canonical({"b": [1, "é\n"], "a": {}}) == '{"a":{},"b":[1,"é\\n"]}'


@pytest.mark.parametrize("value", [1.5, True, None, 2**53, {"a": [0, 1.0]}, {"ä": 1}])
def test_what_has_no_canonical_text(value: object) -> None:
    with pytest.raises(NotCanonical):
        canonical(value)


def test_a_document_comes_back_from_its_text() -> None:
    made = document()
    assert msgspec.json.decode(canonical(made), type=Document) == made


def _text(pdf: bytes) -> tuple[str, int]:
    reader = PdfReader(io.BytesIO(pdf))
    return "\n".join(page.extract_text() for page in reader.pages), len(reader.pages)


def test_a_pdf_has_what_article_226_wants() -> None:
    made = document()
    text, pages = _text(to_pdf(made, "finalized", "ab" * 32))
    words = " ".join(text.split())
    for wanted in (
        "1 November 2026", "INV-2026-000042", "DE136695976", "FR40303265045", "Turnpike Cloud GmbH",
        "Industriestraße 44a", "80331 München", "128, boulevard", "92130 Issy-les-Moulineaux", "1–31 October 2026",
        "1,000,000 tokens", "0.40", "2.40", "Reverse charge", "article 196", "Amount due", "EUR 2.40", "IBAN DE89",
        "PO-4711", "Cached input tokens, 5 min", "context from 200,000 tokens", "batch lane", "0.0000404 EUR",
        "Cache savings statement", "75.0 %", "EUR 1.20", "ab" * 32,
    ):  # fmt: skip
        assert wanted in words, wanted
    assert pages == 2
    assert "Page 1 of 2" in words


def test_a_pdf_has_the_same_bytes_each_time() -> None:
    assert to_pdf(document(), "finalized") == to_pdf(document(), "finalized")


def test_a_pdf_with_its_xml_is_factur_x() -> None:
    xml = to_xml(document(), "cii").decode()
    pdf = to_pdf(document(), "finalized", embedded=EInvoice("cii", "en16931", xml, sha256(xml)))
    assert pdf == to_pdf(document(), "finalized", embedded=EInvoice("cii", "en16931", xml, sha256(xml)))
    assert facturx.get_xml_from_pdf(pdf, check_xsd=True) == ("factur-x.xml", xml.encode())
    reader = PdfReader(io.BytesIO(pdf), strict=True)
    root = cast(Any, reader.trailer["/Root"])
    (file,) = root["/AF"]
    assert (file.get_object()["/AFRelationship"], file.get_object()["/UF"]) == ("/Alternative", "factur-x.xml")
    assert file.get_object()["/EF"]["/F"].get_object()["/Subtype"] == "/text/xml"
    metadata = etree.fromstring(root["/Metadata"].get_object().get_data())
    stated = {each.tag.rpartition("}")[2]: each.text for each in metadata.iter(f"{_FACTUR_X}*")}
    assert stated == {
        "DocumentType": "INVOICE",
        "DocumentFileName": "factur-x.xml",
        "Version": "1.0",
        "ConformanceLevel": "EN 16931",
    }
    schemas = [each.text for each in metadata.iter("{http://www.aiim.org/pdfa/ns/schema#}prefix")]
    assert "fx" in schemas
    part, conformance = (metadata.find(f".//{{http://www.aiim.org/pdfa/ns/id/}}{name}").text for name in _PDF_A)
    assert (part, conformance) == ("3", "B")
    assert _text(pdf) == _text(to_pdf(document(), "finalized")), "the pages stay what they are"


_FACTUR_X = "{urn:factur-x:pdfa:CrossIndustryDocument:invoice:1p0#}"
_PDF_A = ("part", "conformance")


def test_metadata_of_another_form_are_no_factur_x() -> None:
    for wrong in (
        b"%PDF-1.7\n",
        to_pdf(document(), "finalized").replace(b"pdfaExtension:schemas", b"pdfaExtension:others_"),
    ):
        with pytest.raises((UnknownMetadata, PyPdfError)):
            declare_factur_x(wrong, file_name="factur-x.xml", level="EN 16931")


@pytest.mark.slow
def test_many_lines_survive_with_their_heading_on_every_page() -> None:
    text, pages = _text(to_pdf(document(300), "finalized"))
    assert pages > 8
    assert text.count("Per million") == pages - 1  # all but the statement
    assert f"Page {pages} of {pages}" in text
    assert f"EUR {40 * 300 * 301 // 200:,}.00" in text


@pytest.mark.parametrize(
    ("made", "state", "wanted"),
    [
        (document(0), "finalized", "Nothing was used"),
        (document(currency="JPY"), "finalized", "JPY 240"),
        (document(), "void", "VOID"),
        (document(number="", issued="", due=""), "draft", "DRAFT"),
        (document(kind="credit_note", corrects="INV-2026-000041", reason="An outage"), "finalized", "An outage"),
        (document(prepaid=100, payable=140), "paid", "Paid in advance from credit −1.00"),
    ],
)
def test_every_variant_can_be_printed(made: Document, state: str, wanted: str) -> None:
    assert wanted in " ".join(_text(to_pdf(made, state))[0].split())


def test_lines_of_two_price_versions_are_told_apart() -> None:
    made = document(1)
    (line,) = made.lines
    lines = [msgspec.structs.replace(line, price_version=7), msgspec.structs.replace(line, price_version=9)]
    (group,) = shown(msgspec.structs.replace(made, lines=lines), "finalized", "")["groups"]
    assert [row["detail"] for row in group["lines"]] == ["price version 7", "price version 9"]
    (alone,) = shown(msgspec.structs.replace(made, lines=lines[:1]), "finalized", "")["groups"]
    assert [row["detail"] for row in alone["lines"]] == [""]


def test_an_invoice_that_was_taken_back_says_so() -> None:
    words = _words(document(), "credited", PaymentsAndCredits([], [_credit_note(240)]))
    assert "CREDITED" in words
    assert "PAID" not in words
    assert "IBAN" not in words


def test_letters_that_no_font_has_are_said() -> None:
    with pytest.raises(NotPrintable, match="--fonts"):
        to_pdf(document(buyer=msgspec.structs.replace(BUYER, name="株式会社")), "finalized")


def _payment(amount: int) -> Payment:
    at = to_instant(datetime(2026, 11, 20, 9, tzinfo=UTC))
    return Payment(id=UUID(int=1), amount=amount, reference="bank 4711", at=at)


def _credit_note(gross: int) -> InvoiceRecord:
    empty: dict[str, Any] = dict.fromkeys(InvoiceRecord.__struct_fields__, 0)
    said = {"id": UUID(int=2), "tenant_id": UUID(int=1), "kind": "credit_note", "seller": "s", "period": "2026-10"}
    more = {"currency": "EUR", "state": "finalized", "number": "CN-2026-000003", "issued": "2026-11-21", "due": None}
    return InvoiceRecord(**(empty | said | more | {"gross": gross, "corrects": UUID(int=3), "sha256": None}))


def _words(made: Document, state: str, settled: PaymentsAndCredits = NOTHING_SETTLED) -> str:
    return " ".join(_text(to_pdf(made, state, "", settled))[0].split())


def test_a_paid_invoice_asks_for_nothing_any_more() -> None:
    words = _words(document(), "paid", PaymentsAndCredits([_payment(240)]))
    assert "PAID IN FULL" in words
    assert "Payment of 20 November 2026, bank 4711 −2.40" in words
    assert "Left to pay EUR 0.00" in words
    assert "AMOUNT DUE" not in words.upper()
    assert "IBAN" not in words, "nobody is told how to pay it once more"


def test_a_void_invoice_has_no_amount_due() -> None:
    words = _words(document(), "void")
    assert "VOID: NOTHING IS DUE OF" in words
    assert "AMOUNT DUE" not in words.upper()


def test_what_a_credit_note_settled_is_not_stamped_as_paid() -> None:
    made = document()
    assert shown(made, "paid", "", PaymentsAndCredits([], [_credit_note(240)]))["banner"] == "Settled"
    assert shown(made, "paid", "", PaymentsAndCredits([_payment(240)]))["banner"] == "Paid"


def test_payments_and_credit_notes_are_listed_with_what_is_left() -> None:
    words = _words(document(), "partially_paid", PaymentsAndCredits([_payment(100)], [_credit_note(60)]))
    assert "Credit note CN-2026-000003 of 21 November 2026 −0.60" in words
    assert "Left to pay EUR 0.80" in words
    assert "AMOUNT DUE EUR 0.80" in words.replace("Amount due", "AMOUNT DUE")
    assert "IBAN" in words
    over = _words(document(), "paid", PaymentsAndCredits([_payment(240)], [_credit_note(60)]))
    assert "Credited beyond what was due, to the balance 0.60" in over


def test_a_draft_has_no_gap_where_its_number_will_be() -> None:
    words = _words(document(number="", issued="", due=""), "draft")
    assert "invoice ." not in words
    assert "To the draft of October 2026" in words
    assert "Please quote" not in words


def test_a_pdf_says_what_goes_back_and_what_is_carried() -> None:
    returned = Returned(exact="6344000000000", credit="5656000000000", promo="100000000000")
    made = document(prepaid=240, payable=0, returned=returned, carry_out="0", prepaid_carry_out="-3000000000")
    words = _words(made, "paid")
    assert "went back: 5.6560 EUR to the credit that paid, 0.1000 EUR to the promotional credit that paid" in words
    assert "The 0.0030 EUR that rounding leaves is carried to the next invoice" in words
    assert "goes back when this invoice is finalized" in _words(made, "draft")


@pytest.mark.slow
@pytest.mark.parametrize("lines", [17, 26])
def test_no_heading_stands_alone_at_the_end_of_a_page(lines: int) -> None:
    for above in range(1, 7):  # moves the lines down
        made = document(lines, buyer=msgspec.structs.replace(BUYER, address=["1 rue de la Paix"] * above))
        for page in PdfReader(io.BytesIO(to_pdf(made, "finalized"))).pages:
            text = page.extract_text()
            if "FP8-revision" in text and "Per million" in text:
                after = text.rpartition("FP8-revision")[2]
                assert " tokens" in after, f"{lines} lines, {above} lines of address"
