"""What tenants do, at the fake and, where the environment has a key of one, at a real sandbox of Stripe.

`STRIPE_SANDBOX_KEY` is a restricted test key, `STRIPE_SANDBOX_ACCOUNT` its account. What is made there stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from uuid import UUID

import pytest

from billing.accounts.balances import Balances
from billing.payments.auto_top_ups import AutoTopUps
from billing.payments.customers import Customers
from billing.payments.events import EventEffects
from billing.payments.inbox import PaymentInbox
from billing.payments.refunds import Refunds
from billing.payments.stripe_api.calls import StripeCalls
from billing.payments.stripe_api.credentials import StripeCredentials
from billing.payments.stripe_api.stripe_provider import StripeProvider
from billing.payments.top_ups import TopUp, TopUps
from billing.payments.worker import PaymentWorker
from fake_stripe.customers import attach, keep_method
from fake_stripe.server import FakeStripe
from storage.database.database import Database
from tests.billing.money import Tenant
from tests.billing.payments.desk import credentials_of

DOLLAR = 10**12
KEY, ACCOUNT = "STRIPE_SANDBOX_KEY", "STRIPE_SANDBOX_ACCOUNT"
_CARDS = {"pm_card_visa": "pm_card_visa", "pm_card_insufficient": "pm_card_visa_chargeDeclinedInsufficientFunds"}
"""The fake's cards → the sandbox's."""


class Counter:
    """A tenant before a provider: the fake, or a sandbox. No webhook reaches us: events are taken from the list."""

    def __init__(self, database: Database, provider: StripeProvider, fake: FakeStripe | None) -> None:
        self.database, self.provider, self._fake = database, provider, fake
        self.customers, self.top_ups, self.auto = Customers(database), TopUps(database), AutoTopUps(database)
        self.refunds = Refunds(database)
        self._worker, self._events, self._inbox = (
            PaymentWorker(database, provider),
            EventEffects(database),
            PaymentInbox(database),
        )
        self._since = int(time.time()) - 5

    async def work(self) -> None:
        """Do what is due, and follow what happened at the provider."""
        for _ in range(3):
            await self._worker.run()
            for event in reversed(await self.provider.events_since(self._since, int(time.time()) + 60)):
                if await self._inbox.take(self.provider.name, event, "list"):
                    await self._events.follow(self.provider, event.id)

    async def connect(self, tenant_id: UUID, card: str) -> str:
        """A connected tenant with a card; its customer's id."""
        await self.customers.connect(tenant_id, self.provider.name)
        await self.work()
        _, customer = await self.customers.get(tenant_id)
        await self.give_card(customer, card)
        connected = await self.customers.find(tenant_id)
        assert connected is not None
        await self.customers.refresh_method(self.provider, connected)
        return customer

    async def give_card(self, customer: str, card: str) -> None:
        """Let the customer have a card, as if it had been left on a page."""
        if self._fake is not None:
            keep_method(self._fake.account, customer, attach(self._fake.account, customer, card))
            return
        calls = self.provider._calls  # a page cannot be filled in from here
        params = {"customer": customer}
        made = await calls.call(calls.client.v1.payment_methods.attach_async, _CARDS[card], params=params)
        await self.provider.keep_method(customer, str(made["id"]), f"card:{customer}:{card}")

    async def charged(self, tenant_id: UUID, amount: int) -> TopUp:
        """What became of an automatic top-up."""
        await self.auto.put(tenant_id, currency="USD", threshold_pico=10 * DOLLAR, amount=amount, enabled=True)
        await self.work()
        (only,) = await self.top_ups.list(tenant_id, limit=10)
        return only


@pytest.fixture(params=["fake", pytest.param("sandbox", marks=pytest.mark.stripe_sandbox)])
async def counter(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[Counter]:
    async with AsyncExitStack() as stack:
        fake: FakeStripe | None = None
        if request.param == "fake":
            fake = await stack.enter_async_context(FakeStripe())
            credentials = credentials_of(fake)
        else:
            if not (os.environ.get(KEY) and os.environ.get(ACCOUNT)):
                pytest.skip(f"{KEY} and {ACCOUNT} name no sandbox of Stripe")
            credentials = StripeCredentials(
                account=os.environ[ACCOUNT],
                key=os.environ[KEY],
                webhook_secrets=["whsec_no_webhook_comes_here"],
                return_url="https://console.example/",
                any_key=True,
            )
            assert not credentials.livemode, "a live key moves money"
        provider = StripeProvider(credentials, StripeCalls(credentials))
        stack.push_async_callback(provider.close)
        yield Counter(database, provider, fake)


async def test_the_key_is_of_the_account(counter: Counter) -> None:
    assert await counter.provider.check() == counter.provider.account
    assert not counter.provider.livemode


async def test_a_page_can_be_paid_on_and_nothing_is_put_in_before(counter: Counter) -> None:
    tenant = await Tenant.rich(counter.database, 0)
    await counter.customers.connect(tenant.id, counter.provider.name)
    await counter.work()
    made = await counter.top_ups.create(tenant.id, counter.provider.name, 2500, "USD")
    await counter.work()
    sent = await counter.top_ups.get(tenant.id, made.id)
    assert (sent.state, sent.url.startswith("https://")) == ("sent", True)
    balance = await Balances(counter.database).get(tenant.id)
    assert balance is None or balance.available == 0


async def test_a_saved_card_is_charged_once_and_paid_back(counter: Counter) -> None:
    tenant = await Tenant.rich(counter.database, 0)
    await counter.connect(tenant.id, "pm_card_visa")
    granted = await counter.charged(tenant.id, 5000)
    assert (granted.state, granted.credit_pico) == ("granted", 50 * DOLLAR)
    await counter.work()
    balance = await Balances(counter.database).get(tenant.id)
    assert balance is not None
    assert balance.available == 50 * DOLLAR
    made = await counter.refunds.create(tenant.id, granted.id, 2000, "a test")
    await counter.work()
    assert granted.payment_id is not None
    there = await counter.provider.find_refund(granted.payment_id, str(made.id))
    assert there is not None
    assert there.amount == 2000


async def test_a_card_without_money_is_tried_again_later(counter: Counter) -> None:
    tenant = await Tenant.rich(counter.database, 0)
    await counter.connect(tenant.id, "pm_card_insufficient")
    declined = await counter.charged(tenant.id, 5000)
    assert (declined.state, declined.code) == ("declined", "insufficient_funds")
    auto = await counter.auto.get(tenant.id)
    assert auto is not None
    assert (auto.state, auto.failures) == ("on", 1)
