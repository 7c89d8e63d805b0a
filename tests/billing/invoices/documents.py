"""What the tests of documents share: two parties, and documents made by hand."""

from __future__ import annotations

from uuid import UUID

import msgspec

from billing.invoices.document import Document, InvoiceLine, ModelSavings, Savings
from billing.invoices.parties.parties import Buyer, Seller
from billing.invoices.parties.tax import tax_for, tax_totals

SELLER = Seller(
    id="turnpike",
    name="Turnpike Cloud GmbH",
    address=["Industriestraße 44a"],
    postal_code="80331",
    city="München",
    country="DE",
    vat_id="DE136695976",
    registration="Amtsgericht München HRB 123456",
    email="billing@turnpike.example",
    payment=["Musterbank München", "IBAN DE89 3704 0044 0532 0130 00"],
    currency="EUR",
    rates={"DE": 1900, "ES": 2100},
)
BUYER = Buyer(
    seller="turnpike",
    name="Société d'Intelligence Artificielle Appliquée S.A.S.",
    address=["Direction Administrative et Financière", "128, boulevard du Général-de-Gaulle-Prolongé"],
    postal_code="92130",
    city="Issy-les-Moulineaux Cedex 9",
    country="FR",
    vat_id="FR40303265045",
    purchase_order="PO-4711",
)


def document(lines: int = 3, currency: str = "EUR", **changes: object) -> Document:
    """An invoice of October 2026 with this many lines, over models of long names."""
    tax = tax_for(SELLER, BUYER)
    made = [
        InvoiceLine(
            kind="usage",
            text="a line",
            project_id=str(UUID(int=7)),
            model=f"meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8-revision-{n // 4}",
            meter=("uncached", "read_5m", "write_1h", "output")[n % 4],
            lane="batch" if n % 3 else "standard",
            context_from=200_000 if n % 5 == 1 else 0,
            price=400_000,
            units=str(1_000_000 * (n + 1)),
            unit="tokens",
            service_from="2026-10-01",
            service_until="2026-10-31",
            exact=str(4 * 10**11 * (n + 1)),
            net=40 * (n + 1),
            category=tax.category,
            rate=tax.rate,
        )
        for n in range(lines)
    ]
    taxes = tax_totals((tax, line.net) for line in made)
    net, vat = sum(line.net for line in made), sum(total.tax for total in taxes)
    numbers = {"prompt": "4000000", "read": "3000000", "written": "500000", "cost": "400000000000"}
    savings = Savings(models=[ModelSavings(model="llama", uncached="1600000000000", **numbers)])
    whole = Document(
        kind="invoice",
        number="INV-2026-000042",
        series="INV",
        issued="2026-11-01",
        due="2026-12-01",
        period="2026-10",
        service_from="2026-10-01",
        service_until="2026-10-31",
        currency=currency,
        seller=SELLER,
        tenant_id=str(UUID(int=1)),
        buyer=BUYER,
        lines=made,
        taxes=taxes,
        net=net,
        tax=vat,
        gross=net + vat,
        prepaid=0,
        payable=net + vat,
        carry_out="40400000",
        savings=savings if lines else "",
    )
    return msgspec.structs.replace(whole, **changes)
