"""What goes back of a payment is its own credit, not that of another one."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from billing.accounts.balances import Balances
from billing.invoices.parties.store import Parties
from billing.ledger.wallet import RefundRefused
from billing.payments.top_ups import TopUp
from billing.usage import Usage
from billing.verification.audit import audit_money
from fake_stripe.disputes import close_dispute, open_dispute
from fake_stripe.payments import complete_checkout
from tests.billing.invoices.customers import USD, Customer
from tests.billing.invoices.documents import BUYER
from tests.billing.payments.desk import PaymentDesk

DOLLAR = 10**12
ADVANCE = msgspec.structs.replace(USD, prepayment="advance")
GERMAN = msgspec.structs.replace(BUYER, country="DE", vat_id="")


async def _paid(desk: PaymentDesk, customer: Customer, amount: int) -> TopUp:
    made = await desk.top_ups.create(customer.id, "stripe", amount, "USD")
    await desk.work()
    sent = await desk.top_ups.get(customer.id, made.id)
    assert sent.session_id is not None
    complete_checkout(desk.account, sent.session_id)
    await desk.work()
    return await desk.top_ups.get(customer.id, made.id)


async def _money(desk: PaymentDesk, tenant_id: UUID) -> tuple[int, int]:
    balance = await Balances(desk.database).get(tenant_id)
    assert balance is not None
    return balance.prepaid, balance.receivable


async def _lose_dispute(desk: PaymentDesk, top_up: TopUp) -> None:
    assert top_up.payment_id is not None
    dispute = open_dispute(desk.account, top_up.payment_id)
    await desk.work()
    close_dispute(desk.account, dispute["id"], won=False)
    await desk.work()


async def test_a_refund_and_a_dispute_of_another_payment_leave_nothing(desk: PaymentDesk) -> None:
    customer = await Customer.make(desk.database)
    await desk.connect(customer.id, card=None)
    first, second = [await _paid(desk, customer, 10_000) for _ in range(2)]
    await desk.refunds.create(customer.id, first.id, None, "asked for")
    await desk.work()
    assert await _money(desk, customer.id) == (100 * DOLLAR, 0)
    await _lose_dispute(desk, second)
    assert await _money(desk, customer.id) == (0, 0)
    assert await audit_money(desk.database) == []


async def test_a_refund_ends_with_the_credit_of_its_own_payment(desk: PaymentDesk) -> None:
    customer = await Customer.make(desk.database)
    await desk.connect(customer.id, card=None)
    first, second = [await _paid(desk, customer, 2500) for _ in range(2)]
    await customer.use("2026-10-03", Usage(output=10_000_000))  # 16.00
    with pytest.raises(RefundRefused) as refused:
        await desk.refunds.create(customer.id, first.id, None, "asked for")
    assert refused.value.refundable_pico == 9 * DOLLAR
    assert (await desk.refunds.create(customer.id, first.id, 900, "the rest")).amount == 900
    assert (await desk.refunds.create(customer.id, second.id, None, "all")).amount == 2500
    await desk.work()
    assert await _money(desk, customer.id) == (0, 0)


@pytest.mark.parametrize("amount", [None, 8000, 1, 33])
async def test_a_refund_is_what_was_asked_for_whatever_vat_others_have(desk: PaymentDesk, amount: int | None) -> None:
    customer = await Customer.make(desk.database, seller=ADVANCE, buyer=BUYER)  # without VAT: reverse charge
    await desk.connect(customer.id, card=None)
    first = await _paid(desk, customer, 10_000)
    await Parties(desk.database).set_buyer(customer.id, GERMAN, reason="moved")
    await _paid(desk, customer, 11_900)
    refund = await desk.refunds.create(customer.id, first.id, amount, "asked for")
    assert refund.amount == (amount or 10_000)
    await desk.work()
    assert (await desk.refunds.get(customer.id, refund.id)).state == "succeeded"
    assert await audit_money(desk.database) == []


async def test_parts_of_a_payment_with_vat_are_never_more_than_it(desk: PaymentDesk) -> None:
    customer = await Customer.make(desk.database, seller=ADVANCE, buyer=GERMAN)
    await desk.connect(customer.id, card=None)
    top_up = await _paid(desk, customer, 1_190)
    back = 0
    for asked in (3, 7, 11, 50, 333, 401):
        refund = await desk.refunds.create(customer.id, top_up.id, asked, "a part")
        assert asked - 2 <= refund.amount <= asked
        back += refund.amount
    assert back + (await desk.refunds.create(customer.id, top_up.id, None, "the rest")).amount == 1_190
    assert await _money(desk, customer.id) == (0, 0)
    assert await audit_money(desk.database) == []


async def test_credit_that_a_failed_refund_put_back_is_the_payments_own(desk: PaymentDesk) -> None:
    customer = await Customer.make(desk.database)
    await desk.connect(customer.id, card=None)
    top_up = await _paid(desk, customer, 2500)
    charge = desk.account.every("charge", payment_intent=top_up.payment_id)[0]
    charge["amount_refunded"] = 2500  # so it will be refused
    await desk.refunds.create(customer.id, top_up.id, None, "asked for")
    await desk.work()
    charge["amount_refunded"] = 0
    assert await _money(desk, customer.id) == (25 * DOLLAR, 0)
    assert (await desk.refunds.create(customer.id, top_up.id, 1000, "asked for again")).amount == 1000
    await desk.work()
    await _lose_dispute(desk, top_up)
    assert await _money(desk, customer.id) == (0, 0)
    assert await audit_money(desk.database) == []
