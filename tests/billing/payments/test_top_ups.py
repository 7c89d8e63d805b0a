"""Top-ups: on a page the first time, by the saved card afterwards; credit for money that came, once."""

from __future__ import annotations

import pytest
from sqlalchemy import literal

from billing.accounts.balances import Balances
from billing.payments.errors import InvalidTopUp, PaymentRefused
from billing.payments.top_ups import MOST_OPEN, TopUp
from billing.usage import Usage
from billing.verification.audit import audit_money
from fake_stripe.errors import StripeError
from fake_stripe.payments import complete_checkout, new_intent, take_money
from storage.database.base import Count, new_id
from storage.database.database import Database
from tests.billing.invoices.customers import Customer
from tests.billing.money import Tenant
from tests.billing.payments.desk import PaymentDesk

DOLLAR = 10**12
DAY_US = 86_400_000_000


async def _available(desk: PaymentDesk, tenant: Tenant) -> int:
    balance = await Balances(desk.database).get(tenant.id)
    return 0 if balance is None else balance.available


async def _on_page(desk: PaymentDesk, tenant: Tenant, amount: int = 2500) -> TopUp:
    made = await desk.top_ups.create(tenant.id, "stripe", amount, "USD")
    await desk.work()
    return await desk.top_ups.get(tenant.id, made.id)


async def _automatic(desk: PaymentDesk, tenant: Tenant, *, threshold: int = 10 * DOLLAR) -> None:
    await desk.auto.put(tenant.id, currency="USD", threshold_pico=threshold, amount=5000, enabled=True)


async def _only(desk: PaymentDesk, tenant: Tenant) -> TopUp:
    (only,) = await desk.top_ups.list(tenant.id, limit=10)
    return only


async def test_the_first_top_up_is_paid_on_a_page_and_leaves_the_card(desk: PaymentDesk) -> None:
    tenant = await Tenant.rich(desk.database, 0)
    await desk.connect(tenant.id, card=None)
    sent = await _on_page(desk, tenant)
    assert (sent.state, sent.url.startswith("https://checkout")) == ("sent", True)
    assert await _available(desk, tenant) == 0, "nothing for a page that nobody has paid"

    assert sent.session_id is not None
    complete_checkout(desk.account, sent.session_id)
    await desk.work()
    granted = await desk.top_ups.get(tenant.id, sent.id)
    assert (granted.state, await _available(desk, tenant)) == ("granted", 25 * DOLLAR)
    connected, _ = await desk.customers.get(tenant.id)
    assert connected.method_text == "visa 4242, 12/2031"
    assert await audit_money(desk.database) == []


async def test_the_same_id_is_the_same_top_up(desk: PaymentDesk) -> None:
    tenant, identity = await Tenant.rich(desk.database, 0), new_id()
    await desk.connect(tenant.id, card=None)
    made = [await desk.top_ups.create(tenant.id, "stripe", 2500, "USD", top_up_id=identity) for _ in range(2)]
    assert made[0] == made[1]
    with pytest.raises(InvalidTopUp, match="another"):
        await desk.top_ups.create(tenant.id, "stripe", 2600, "USD", top_up_id=identity)
    with pytest.raises(InvalidTopUp, match="between"):
        await desk.top_ups.create(tenant.id, "stripe", 99, "USD")
    for _ in range(MOST_OPEN - 1):
        await desk.top_ups.create(tenant.id, "stripe", 2500, "USD")
    with pytest.raises(PaymentRefused, match="wait to be paid"):
        await desk.top_ups.create(tenant.id, "stripe", 2500, "USD")


async def test_a_card_that_is_declined_on_the_page_can_be_another(desk: PaymentDesk) -> None:
    tenant = await Tenant.rich(desk.database, 0)
    await desk.connect(tenant.id, card=None)
    sent = await _on_page(desk, tenant)
    assert sent.session_id is not None
    with pytest.raises(StripeError):
        complete_checkout(desk.account, sent.session_id, "pm_card_declined")
    await desk.work()
    assert (await desk.top_ups.get(tenant.id, sent.id)).state == "sent"
    complete_checkout(desk.account, sent.session_id, "pm_card_authenticate")
    await desk.work()
    assert await _available(desk, tenant) == 25 * DOLLAR


async def test_a_low_balance_charges_the_saved_card_once(desk: PaymentDesk) -> None:
    tenant = await Tenant.rich(desk.database, 9 * DOLLAR)
    await desk.connect(tenant.id)
    await _automatic(desk, tenant)
    await desk.work()
    await desk.work()
    assert (await _only(desk, tenant)).state == "granted"
    assert await _available(desk, tenant) == 59 * DOLLAR
    charges = [one for one in desk.fake.carried_out if one == ("POST", "/v1/payment_intents")]
    assert len(charges) == 1
    assert await audit_money(desk.database) == []


async def test_processing_grants_nothing_until_it_succeeds(desk: PaymentDesk) -> None:
    tenant = await Tenant.rich(desk.database, DOLLAR)
    await desk.connect(tenant.id, "pm_card_slow")
    await _automatic(desk, tenant)
    await desk.work()
    waiting = await _only(desk, tenant)
    assert (waiting.state, await _available(desk, tenant)) == ("sent", DOLLAR)
    assert waiting.payment_id is not None
    take_money(desk.account, desk.account.find("payment_intent", waiting.payment_id))
    await desk.work()
    assert ((await _only(desk, tenant)).state, await _available(desk, tenant)) == ("granted", 51 * DOLLAR)


async def test_a_bank_that_asks_for_the_owner_gets_a_page(desk: PaymentDesk) -> None:
    tenant = await Tenant.rich(desk.database, DOLLAR)
    await desk.connect(tenant.id, "pm_card_authenticate")
    await _automatic(desk, tenant)
    await desk.work()
    page, asked = await desk.top_ups.list(tenant.id, limit=10)
    assert (asked.state, page.kind, page.replaces, page.state) == ("needs_customer", "checkout", asked.id, "sent")
    assert asked.payment_id is not None
    assert desk.account.find("payment_intent", asked.payment_id)["status"] == "canceled"
    assert page.session_id is not None
    complete_checkout(desk.account, page.session_id, "pm_card_visa")
    await desk.work()
    assert await _available(desk, tenant) == 51 * DOLLAR
    auto = await desk.auto.get(tenant.id)
    assert auto is not None
    assert (auto.state, auto.failures, auto.next_at) == ("on", 0, 0)


async def test_a_hard_decline_stops_it(desk: PaymentDesk) -> None:
    tenant = await Tenant.rich(desk.database, DOLLAR)
    await desk.connect(tenant.id, "pm_card_stolen")
    await _automatic(desk, tenant)
    await desk.work()
    assert ((await _only(desk, tenant)).state, (await _only(desk, tenant)).code) == ("declined", "stolen_card")
    auto = await desk.auto.get(tenant.id)
    assert auto is not None
    assert (auto.state, auto.reason) == ("paused", "the card was declined: stolen_card")
    assert await desk.open_tasks() == {"top_up_paused"}
    assert await _available(desk, tenant) == DOLLAR


async def test_soft_declines_are_tried_again_after_1_3_and_7_days(desk: PaymentDesk) -> None:
    tenant = await Tenant.rich(desk.database, DOLLAR)
    await desk.connect(tenant.id, "pm_card_insufficient")
    await _automatic(desk, tenant)
    start = await desk.database.now()
    for day, tries in ((0, 1), (0.9, 1), (1.1, 2), (3.9, 2), (4.3, 3), (11.0, 3), (11.5, 4), (30, 4)):
        desk.database.clock = literal(start + int(day * DAY_US), Count())
        await desk.work()
        assert len(await desk.top_ups.list(tenant.id, limit=10)) == tries, day
    auto = await desk.auto.get(tenant.id)
    assert auto is not None
    assert (auto.state, auto.failures) == ("paused", 4)
    assert len({one.id for one in await desk.top_ups.list(tenant.id, limit=10)}) == 4


@pytest.mark.parametrize("fault", ["drop", "drop_after", "conflict", "rate_limit", "error", "error_after"])
async def test_a_fault_charges_once(desk: PaymentDesk, fault: str) -> None:
    tenant = await Tenant.rich(desk.database, DOLLAR)
    await desk.connect(tenant.id)
    await _automatic(desk, tenant)
    desk.fake.faults.script("POST", "/v1/payment_intents", fault)  # type: ignore[arg-type]
    await desk.worker.run()
    await desk.work()
    assert ((await _only(desk, tenant)).state, await _available(desk, tenant)) == ("granted", 51 * DOLLAR)
    assert len(desk.account.every("payment_intent")) == 1


async def test_money_that_is_not_what_was_asked_for_is_suspended(desk: PaymentDesk) -> None:
    tenant, other = await Tenant.rich(desk.database, 0), await Tenant.rich(desk.database, 0)
    await desk.connect(tenant.id, card=None)
    customer = await desk.connect(other.id, card=None)
    sent = await _on_page(desk, tenant)
    for changes in ({"amount": 2400}, {"currency": "eur"}, {"customer": customer}, {"metadata": {"top_up": "no"}}):
        _, own = await desk.customers.get(tenant.id)
        values = {"amount": 2500, "currency": "usd", "customer": own, "metadata": {"top_up": str(sent.id)}}
        take_money(desk.account, new_intent(desk.account, **(values | changes)))
    await desk.work()
    assert (await desk.top_ups.get(tenant.id, sent.id)).state == "sent"
    assert await _available(desk, tenant) == await _available(desk, other) == 0
    receipts = await desk.cash.list(limit=10, state="unapplied")
    assert len(receipts) == 4
    assert await desk.open_tasks() == {"unmatched_money"}
    (euros,) = [one for one in receipts if one.currency == "EUR"]
    dollars = next(one for one in receipts if (one.currency, one.amount) == ("USD", 2500))
    applied = await desk.cash.apply(dollars.id, tenant.id, None, "the tenant says so")
    assert (applied.state, await _available(desk, tenant)) == ("applied", 25 * DOLLAR)
    assert (await desk.cash.give_up(euros.id, "sent back")).state == "returned"
    assert await audit_money(desk.database) == []


async def test_a_refund_takes_the_credit_and_gives_the_money_back(desk: PaymentDesk) -> None:
    tenant = await Tenant.rich(desk.database, 0)
    await desk.connect(tenant.id, card=None)
    sent = await _on_page(desk, tenant)
    assert sent.session_id is not None
    complete_checkout(desk.account, sent.session_id)
    await desk.work()
    refund = await desk.refunds.create(tenant.id, sent.id, 1000, "asked for")
    assert await _available(desk, tenant) == 15 * DOLLAR
    desk.fake.faults.script("POST", "/v1/refunds", "error_after")
    await desk.work()
    assert (await desk.refunds.get(tenant.id, refund.id)).state == "succeeded"
    assert [one["amount"] for one in desk.account.every("refund")] == [1000]
    assert await audit_money(desk.database) == []


async def test_a_refund_that_fails_puts_the_credit_back(desk: PaymentDesk) -> None:
    tenant = await Tenant.rich(desk.database, 0)
    await desk.connect(tenant.id, card=None)
    sent = await _on_page(desk, tenant)
    assert sent.session_id is not None
    complete_checkout(desk.account, sent.session_id)
    await desk.work()
    made = await desk.top_ups.get(tenant.id, sent.id)
    charge = desk.account.every("charge", payment_intent=made.payment_id)[0]
    charge["amount_refunded"] = 2500  # somebody did so by hand, and no event of it came
    refund = await desk.refunds.create(tenant.id, sent.id, None, "asked for")
    await desk.work()
    assert (await desk.refunds.get(tenant.id, refund.id)).state == "failed"
    assert await _available(desk, tenant) == 25 * DOLLAR
    assert await desk.open_tasks() == {"refund_failed"}
    assert await audit_money(desk.database) == []


async def test_what_is_owed_is_paid_first(database: Database, desk: PaymentDesk) -> None:
    customer = await Customer.make(database)
    await customer.use("2026-10-03", Usage(output=10_000_000))  # 16.00
    await desk.connect(customer.id, card=None)
    sent = await _on_page(desk, customer.tenant)
    assert sent.session_id is not None
    complete_checkout(desk.account, sent.session_id)
    await desk.work()
    balance = await Balances(database).get(customer.id)
    assert balance is not None
    assert (balance.receivable, balance.prepaid) == (0, 9 * DOLLAR)
    assert await audit_money(database) == []
