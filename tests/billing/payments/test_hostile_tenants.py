"""What one tenant does to its own profile, card or settings stops nobody else's payments."""

from __future__ import annotations

import msgspec

from billing.invoices.parties.store import Parties
from billing.payments.auto_top_ups import AutoTopUp
from tests.billing.invoices.customers import USD, Customer
from tests.billing.invoices.documents import BUYER
from tests.billing.money import Tenant
from tests.billing.payments.desk import PaymentDesk

DOLLAR = 10**12
ADVANCE = msgspec.structs.replace(USD, prepayment="advance")
GERMAN = msgspec.structs.replace(BUYER, country="DE", vat_id="")
ITALIAN = msgspec.structs.replace(BUYER, country="IT", vat_id="")
"""The seller has no VAT rate for its country."""


async def _auto(desk: PaymentDesk, customer: Customer | Tenant) -> AutoTopUp:
    auto = await desk.auto.get(customer.id)
    assert auto is not None
    return auto


async def test_a_tenant_whose_vat_is_unknown_stops_its_own_top_ups_alone(desk: PaymentDesk) -> None:
    customer = await Customer.make(desk.database, seller=ADVANCE, buyer=GERMAN)
    await desk.connect(customer.id)
    await desk.auto.put(customer.id, currency="USD", threshold_pico=10 * DOLLAR, amount=5000, enabled=True)
    await Parties(desk.database).set_buyer(customer.id, ITALIAN, reason="moved")
    other = await Tenant.rich(desk.database, 0)
    await desk.connect(other.id)
    assert await desk.queued() == []
    auto = await _auto(desk, customer)
    assert (auto.state, "no top-up can be made" in auto.reason) == ("paused", True)
    assert await desk.open_tasks() == {"top_up_paused"}
    assert await desk.top_ups.list(customer.id, limit=10) == []
