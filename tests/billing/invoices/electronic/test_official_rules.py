"""The golden e-invoices by the official rules: nothing is found in them, and each corrupted twin fails by its rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.billing.invoices.electronic import schematron
from tests.billing.invoices.electronic.documents import golden
from tests.billing.invoices.electronic.schematron import Failure, NotValidated, failures_of, schema_errors

pytestmark = pytest.mark.slow

Files = Mapping[str, bytes]


def _files(*, syntax: str, profile: str = "") -> Files:
    ending = f".{syntax}.xml"
    return {name: content for name, content in golden().items() if name.endswith(ending) and name.startswith(profile)}


RULE_SETS: Mapping[str, Callable[[], Files]] = {
    "ubl": lambda: _files(syntax="ubl"),
    "cii": lambda: _files(syntax="cii"),
    "facturx": lambda: {n: file for n, file in _files(syntax="cii").items() if not n.startswith("xrechnung")},
    "xrechnung-ubl": lambda: _files(syntax="ubl", profile="xrechnung"),
    "xrechnung-cii": lambda: _files(syntax="cii", profile="xrechnung"),
}
"""Rule set → the golden files that it is for."""


def test_all_golden_files_keep_the_schema() -> None:
    files = golden()
    assert len(files) == 92
    assert {name: errors for name, file in files.items() if (errors := schema_errors(file))} == {}


@pytest.mark.parametrize("rule_set", RULE_SETS)
def test_the_rules_find_nothing_in_the_golden_files(rule_set: str) -> None:
    files = RULE_SETS[rule_set]()
    assert len(files) >= 2
    failures = failures_of(rule_set, list(files.values()))
    assert {name: each for name, each in zip(files, failures, strict=True) if each} == {}


_EUR = ' currencyID="EUR">'
_LEITWEG = "04011000-1234512345-35"
TWINS: tuple[tuple[str, str, str, str, str], ...] = (
    ("ubl", "BR-CO-10", "S-EUR", f"<cbc:LineExtensionAmount{_EUR}61.63", f"<cbc:LineExtensionAmount{_EUR}61.64"),
    ("ubl", "BR-CO-13", "S-EUR", f"<cbc:TaxExclusiveAmount{_EUR}61.63", f"<cbc:TaxExclusiveAmount{_EUR}61.64"),
    ("ubl", "BR-CO-14", "S-EUR", f"<cbc:TaxAmount{_EUR}11.71", f"<cbc:TaxAmount{_EUR}11.72"),
    ("ubl", "BR-CO-15", "S-EUR", f"<cbc:TaxInclusiveAmount{_EUR}73.34", f"<cbc:TaxInclusiveAmount{_EUR}73.35"),
    ("ubl", "BR-CO-16", "S-EUR", f"<cbc:PrepaidAmount{_EUR}1.00", f"<cbc:PrepaidAmount{_EUR}1.01"),
    ("ubl", "BR-S-08", "S-EUR", f"<cbc:TaxableAmount{_EUR}61.63", f"<cbc:TaxableAmount{_EUR}51.63"),
    ("ubl", "BR-CO-17", "S-EUR", "<cbc:Percent>19", "<cbc:Percent>29"),
    ("ubl", "BR-DEC-23", "S-EUR", f"<cbc:LineExtensionAmount{_EUR}49.38<", f"<cbc:LineExtensionAmount{_EUR}49.381<"),
    ("ubl", "BR-27", "S-EUR", f"<cbc:PriceAmount{_EUR}0.50", f"<cbc:PriceAmount{_EUR}-0.50"),
    ("ubl", "BR-AE-08", "AE-EUR", f"<cbc:TaxableAmount{_EUR}61.63", f"<cbc:TaxableAmount{_EUR}51.63"),
    ("ubl", "BR-AE-02", "AE-EUR", "<cbc:CompanyID>FR40303265045</cbc:CompanyID>", ""),
    ("ubl", "BR-CO-09", "AE-EUR", "<cbc:CompanyID>DE136695976", "<cbc:CompanyID>XX136695976"),
    ("ubl", "BR-E-10", "E-EUR", "<cbc:TaxExemptionReason>Exempt by a ruling</cbc:TaxExemptionReason>", ""),
    ("ubl", "BR-Z-05", "Z-EUR", "<cbc:Percent>0</cbc:Percent>\n        <cac:TaxScheme>\n          <cbc:ID>VAT</cbc:ID>"
     "\n        </cac:TaxScheme>\n      </cac:ClassifiedTaxCategory>", "<cbc:Percent>7</cbc:Percent>\n"
     "        <cac:TaxScheme><cbc:ID>VAT</cbc:ID></cac:TaxScheme></cac:ClassifiedTaxCategory>"),
    ("ubl", "BR-IC-12", "K-EUR", "<cac:DeliveryLocation>\n      <cac:Address>\n        <cac:Country>\n"
     "          <cbc:IdentificationCode>FR</cbc:IdentificationCode>\n        </cac:Country>\n      </cac:Address>\n"
     "    </cac:DeliveryLocation>", ""),
    ("ubl", "BR-G-02", "G-EUR", "<cbc:CompanyID>DE136695976</cbc:CompanyID>", ""),
    ("ubl", "BR-CL-04", "G-USD", "<cbc:DocumentCurrencyCode>USD", "<cbc:DocumentCurrencyCode>EUX"),
    ("ubl", "BR-O-05", "O-EUR", "<cac:ClassifiedTaxCategory>\n        <cbc:ID>O</cbc:ID>",
     "<cac:ClassifiedTaxCategory><cbc:ID>O</cbc:ID><cbc:Percent>0</cbc:Percent>"),
    ("ubl", "BR-55", "S-EUR-credit", "<cac:InvoiceDocumentReference>\n      <cbc:ID>INV-2026-000001</cbc:ID>",
     "<cac:InvoiceDocumentReference>"),
    ("ubl", "BR-04", "S-EUR-credit", "<cbc:CreditNoteTypeCode>381</cbc:CreditNoteTypeCode>", ""),
    ("cii", "BR-CO-10", "S-EUR", "<ram:LineTotalAmount>61.63", "<ram:LineTotalAmount>61.64"),
    ("cii", "BR-CO-15", "S-EUR", "<ram:GrandTotalAmount>73.34", "<ram:GrandTotalAmount>73.35"),
    ("cii", "BR-CO-16", "S-EUR", "<ram:TotalPrepaidAmount>1.00", "<ram:TotalPrepaidAmount>1.01"),
    ("cii", "BR-S-08", "S-EUR", "<ram:BasisAmount>61.63", "<ram:BasisAmount>51.63"),
    ("cii", "BR-27", "S-EUR", "<ram:ChargeAmount>0.50", "<ram:ChargeAmount>-0.50"),
    ("cii", "BR-DEC-23", "S-EUR", "<ram:LineTotalAmount>49.38<", "<ram:LineTotalAmount>49.381<"),
    ("cii", "BR-AE-02", "AE-EUR", '<ram:ID schemeID="VA">FR40303265045</ram:ID>', ""),
    ("cii", "BR-CL-04", "G-USD", "<ram:InvoiceCurrencyCode>USD", "<ram:InvoiceCurrencyCode>EUX"),
    ("facturx", "BR-CO-10", "S-EUR", "<ram:LineTotalAmount>61.63", "<ram:LineTotalAmount>61.64"),
    ("facturx", "BR-CO-16", "S-EUR", "<ram:TotalPrepaidAmount>1.00", "<ram:TotalPrepaidAmount>1.01"),
    ("xrechnung-ubl", "BR-DE-15", "xrechnung-EUR", f"<cbc:BuyerReference>{_LEITWEG}</cbc:BuyerReference>", ""),
    ("xrechnung-ubl", "BR-DE-6", "xrechnung-EUR", "<cbc:Telephone>+49 89 1234567</cbc:Telephone>", ""),
    ("xrechnung-ubl", "BR-DE-4", "xrechnung-EUR", "<cbc:PostalZone>80331</cbc:PostalZone>", ""),
    ("xrechnung-cii", "BR-DE-15", "xrechnung-EUR", f"<ram:BuyerReference>{_LEITWEG}</ram:BuyerReference>", ""),
    ("xrechnung-cii", "BR-DE-5", "xrechnung-EUR", "<ram:PersonName>Petra Muster</ram:PersonName>", ""),
)  # fmt: skip
"""Rule set, the rule that the twin breaks, its golden file, and what is replaced in it by what, where it is first."""


def _twin(name: str, old: str, new: str) -> bytes:
    text = golden()[name].decode()
    assert old in text, f"{name} has no {old}"
    return text.replace(old, new, 1).encode()


@pytest.fixture(scope="module")
def failures() -> Mapping[tuple[str, str], list[Failure]]:
    """What the rules find in each twin, by its rule set and rule: one child for each rule set."""
    found = {}
    for rule_set in RULE_SETS:
        twins = [twin for twin in TWINS if twin[0] == rule_set]
        syntax = "ubl" if rule_set.endswith("ubl") else "cii"
        documents = [_twin(f"{name}.{syntax}.xml", old, new) for _, _, name, old, new in twins]
        answers = failures_of(rule_set, documents)
        found |= {(rule_set, rule): answer for (_, rule, *_), answer in zip(twins, answers, strict=True)}
    return found


@pytest.mark.parametrize(("rule_set", "rule"), [twin[:2] for twin in TWINS])
def test_a_corrupted_twin_fails_by_its_rule(
    failures: Mapping[tuple[str, str], list[Failure]], rule_set: str, rule: str
) -> None:
    rules = {failure.rule for failure in failures[rule_set, rule] if failure.flag != "warning"}
    assert rule in rules


def test_rules_that_did_not_run_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = golden()["S-EUR.ubl.xml"]
    with pytest.raises(NotValidated, match="looked at"):
        failures_of("ubl", [golden()["S-EUR.cii.xml"]])  # rules for another syntax match nothing
    with pytest.raises(NotValidated):
        failures_of("ubl", [b"<not xml"])
    for content, words in ((None, "is not there"), ("<xsl:stylesheet", "ubl: ")):
        rules = tmp_path / f"{words[:3]}.xsl"
        if content:
            rules.write_text(content)
        monkeypatch.setattr(schematron, "rule_sets", lambda rules=rules: {"ubl": rules})
        with pytest.raises(NotValidated, match=words):
            failures_of("ubl", [document])
