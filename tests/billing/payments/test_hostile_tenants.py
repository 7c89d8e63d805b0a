"""What one tenant does to its own profile, card or settings stops nobody else's payments."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import literal

from billing.accounts.balances import Balances
from billing.invoices.parties.store import Parties
from billing.payments.auto_top_ups import MOST_A_DAY, AutoTopUp
from billing.payments.errors import InvalidTopUp, PaymentRefused
from billing.payments.provider import PaymentFact
from billing.payments.stripe_api.calls import StripeCalls
from billing.payments.stripe_api.stripe_provider import StripeProvider
from billing.payments.top_ups import TopUp
from billing.payments.worker import PaymentWorker
from billing.verification.audit import audit_money
from fake_stripe.payments import complete_checkout, new_intent, take_money
from storage.bus import LocalBus
from storage.database.base import Count
from tenancy.administration.suspension import Suspensions
from tenancy.keys import Peppers
from tenancy.repositories import Tenancy
from tests.billing.invoices.customers import USD, Customer
from tests.billing.invoices.documents import BUYER
from tests.billing.money import Tenant
from tests.billing.payments.desk import PaymentDesk

DOLLAR = 10**12
DAY_US = 86_400_000_000
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


async def _moved_before_it_paid(desk: PaymentDesk) -> tuple[Customer, TopUp]:
    """A tenant that has paid a page, and whose VAT is unknown since it was asked to."""
    customer = await Customer.make(desk.database, seller=ADVANCE, buyer=GERMAN)
    await desk.connect(customer.id, card=None)
    made = await desk.top_ups.create(customer.id, "stripe", 11900, "USD")
    await desk.work()
    sent = await desk.top_ups.get(customer.id, made.id)
    assert sent.session_id is not None
    await Parties(desk.database).set_buyer(customer.id, ITALIAN, reason="moved")
    complete_checkout(desk.account, sent.session_id)
    return customer, sent


async def test_money_whose_vat_is_unknown_waits_for_finance(desk: PaymentDesk) -> None:
    customer, _ = await _moved_before_it_paid(desk)
    other = await Tenant.rich(desk.database, 0)
    await desk.connect(other.id)
    (receipt,) = await desk.cash.list(limit=10)
    assert (receipt.state, receipt.tenant_id, receipt.amount) == ("unapplied", customer.id, 11900)
    assert await desk.open_tasks() == {"unmatched_money"}
    with pytest.raises(PaymentRefused, match="cannot be put in"):
        await desk.cash.apply(receipt.id, customer.id, None, "too early")
    await Parties(desk.database).set_buyer(customer.id, GERMAN, reason="back")
    assert (await desk.cash.apply(receipt.id, customer.id, None, "its VAT is known")).state == "applied"
    assert await audit_money(desk.database) == []


async def test_a_reconciliation_goes_on_behind_money_that_cannot_be_put_in(desk: PaymentDesk) -> None:
    await _moved_before_it_paid(desk)
    desk.deliveries.waiting.clear()
    now = await desk.database.now() // 1_000_000
    run = await desk.reconciler.run(desk.provider, now - 86_400, now + 100)
    assert (run.payments, run.differences) == (1, [])
    assert await desk.open_tasks() == {"unmatched_money"}


class _Broken(StripeProvider):
    """A provider that answers about payments what nobody has thought of."""

    async def payment(self, identity: str) -> PaymentFact:
        raise KeyError(identity)


async def test_an_error_of_one_job_is_a_task_and_no_other_job_waits(desk: PaymentDesk) -> None:
    tenant, other = [await Tenant.rich(desk.database, 0) for _ in range(2)]
    customer = await desk.connect(tenant.id, card=None)
    take_money(desk.account, new_intent(desk.account, amount=100, currency="usd", customer=customer))
    await desk.customers.connect(other.id, "stripe")
    await desk.deliveries.deliver(all_of_them=True)
    provider = _Broken(desk.credentials, StripeCalls(desk.credentials, per_second=10_000))
    try:
        await PaymentWorker(desk.database, provider).run()
        now = await desk.database.now() // 1_000_000
        run = await desk.reconciler.run(provider, now - 86_400, now + 100)
    finally:
        await provider.close()
    assert (await desk.customers.get(other.id))[1]
    assert [kind for kind, _, _ in await desk.queued()] == ["event"]
    assert await desk.open_tasks() == {"payment_failed", "unreconciled"}
    assert [one.what for one in run.differences] == ["what was left out fails", "a payment that is not booked"]
    await desk.work()
    assert len(await desk.cash.list(limit=10, state="unapplied")) == 1


async def test_a_day_has_a_bound_of_automatic_top_ups(desk: PaymentDesk) -> None:
    tenant = await Tenant.rich(desk.database, 0)
    await desk.connect(tenant.id)
    with pytest.raises(InvalidTopUp) as refused:
        await desk.auto.put(tenant.id, currency="USD", threshold_pico=10 * DOLLAR + 1, amount=100, enabled=True)
    assert refused.value.field == "threshold"
    await desk.auto.put(tenant.id, currency="USD", threshold_pico=10 * DOLLAR, amount=100, enabled=True)
    start = await desk.database.now()
    for day, charged in ((0.0, MOST_A_DAY), (0.9, MOST_A_DAY), (1.1, MOST_A_DAY + 2)):
        desk.database.clock = literal(start + int(day * DAY_US), Count())
        await desk.work()
        assert len(await desk.top_ups.list(tenant.id, limit=100)) == charged
        if charged == MOST_A_DAY:  # more is wanted
            await desk.auto.put(tenant.id, currency="USD", threshold_pico=12 * DOLLAR, amount=120, enabled=True)


async def test_a_suspended_tenant_is_not_charged(desk: PaymentDesk) -> None:
    bus = LocalBus()
    tenant = await Tenancy(desk.database, Peppers({1: b"p" * 32}, 1), bus).create_tenant("suspended")
    await Balances(desk.database).grant(tenant.id, DOLLAR, "USD")
    await desk.connect(tenant.id)
    await desk.auto.put(tenant.id, currency="USD", threshold_pico=10 * DOLLAR, amount=5000, enabled=True)
    suspensions = Suspensions(desk.database, bus)
    assert await desk.top_ups.charge_due("stripe") == 1
    await suspensions.suspend(tenant.id, reason="abuse")
    await desk.work()
    (top_up,) = await desk.top_ups.list(tenant.id, limit=10)
    assert (top_up.state, top_up.code, desk.account.every("payment_intent")) == ("canceled", "suspended", [])
    await suspensions.resume(tenant.id, reason="it was none")
    await desk.work()
    assert [one.state for one in await desk.top_ups.list(tenant.id, limit=10)] == ["granted", "canceled"]
    await bus.close()
