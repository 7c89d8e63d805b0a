"""What the tests of payments share: a fake Stripe, a provider that asks it, a worker, and connected tenants."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from sqlalchemy import select, update

from billing.payments.auto_top_ups import AutoTopUps
from billing.payments.cash import CashBook
from billing.payments.customers import Customers
from billing.payments.disputes import Dispute, Disputes
from billing.payments.inbox import PaymentInbox
from billing.payments.provider import EventRefused
from billing.payments.pushing import DocumentPusher
from billing.payments.reconciliation import Reconciler
from billing.payments.refunds import Refunds
from billing.payments.stripe_api.calls import StripeCalls
from billing.payments.stripe_api.credentials import StripeCredentials
from billing.payments.stripe_api.stripe_provider import StripeProvider
from billing.payments.tasks import FinanceTasks
from billing.payments.top_ups import TopUps
from billing.payments.worker import PaymentWorker
from billing.tables.payments import payment_job
from fake_stripe.account import Object
from fake_stripe.customers import attach, keep_method
from fake_stripe.faults import Faults
from fake_stripe.server import FakeStripe
from fake_stripe.webhooks import Deliveries
from storage.database.database import Database

SECRETS = ["whsec_newest000", "whsec_oldest000"]


class PaymentDesk:
    """A fake Stripe with our side of it."""

    def __init__(self, database: Database, fake: FakeStripe, **deliveries: Any) -> None:
        self.database, self.fake, self.account = database, fake, fake.account
        self.credentials = credentials_of(fake)
        self.provider = StripeProvider(self.credentials, StripeCalls(self.credentials, per_second=10_000))
        self.worker = PaymentWorker(database, self.provider)
        self.customers, self.top_ups, self.cash = Customers(database), TopUps(database), CashBook(database)
        self.auto, self.refunds, self.pusher = AutoTopUps(database), Refunds(database), DocumentPusher(database)
        self.inbox, self.tasks, self.reconciler = PaymentInbox(database), FinanceTasks(database), Reconciler(database)
        self.deliveries = Deliveries(fake.account, self.post, SECRETS[:1], **deliveries)

    async def post(self, body: bytes, headers: dict[str, str]) -> int:
        """What the route does with a webhook."""
        try:
            event = self.provider.read_event(body, headers)
        except EventRefused:
            return 400
        await self.inbox.take(self.provider.name, event)
        return 200

    async def work(self, rounds: int = 200) -> None:
        """Deliver webhooks and do jobs until nothing is left: what waits for another try is due at once."""
        await self.follow_clock()
        for _ in range(rounds):
            await self.deliveries.deliver(all_of_them=True)
            await self.make_due()
            if not await self.worker.run() and not await self.queued() and not self.deliveries.waiting:
                return
        raise AssertionError(f"the work does not end: {await self.queued()}")

    async def follow_clock(self) -> None:
        """Let it be the same time at Stripe as in the database."""
        self.account.ahead_s = await self.database.now() // 1_000_000 - int(time.time())

    async def make_due(self) -> None:
        """Let no job wait for another try, nor for a worker that is gone."""
        async with self.database.transaction() as session:
            await session.execute(update(payment_job).values(due_at=0, leased_until=0))

    async def queued(self) -> list[tuple[str, str, str]]:
        """The jobs that are queued."""
        job = payment_job.c
        async with self.database.reading() as session:
            rows = await session.execute(select(job.kind, job.subject, job.problem).where(job.state == "queued"))
            return [(row.kind, row.subject, row.problem) for row in rows]

    async def connect(self, tenant_id: UUID, card: str | None = "pm_card_visa") -> str:
        """A connected tenant, with a card; returns its customer's id."""
        await self.customers.connect(tenant_id, self.provider.name)
        await self.work()
        _, customer = await self.customers.get(tenant_id)
        if card is not None:
            self.give_card(customer, card)
            await self.work()
        return customer

    def give_card(self, customer: str, card: str) -> Object:
        """Let the customer have a card at Stripe."""
        method = attach(self.account, customer, card)
        keep_method(self.account, customer, method)
        return method

    async def open_tasks(self) -> set[str]:
        """The kinds of open tasks."""
        return {task.kind for task in await self.tasks.list(limit=100)}

    async def disputes(self) -> list[Dispute]:
        """All disputes."""
        return await Disputes(self.database).list(limit=100)


def credentials_of(fake: FakeStripe) -> StripeCredentials:
    """Credentials of the fake's account."""
    return StripeCredentials(
        account=fake.account.id,
        key=fake.key,
        webhook_secrets=SECRETS,
        return_url="http://127.0.0.1/console",
        api=fake.base,
    )


@asynccontextmanager
async def collecting_by(fake: FakeStripe) -> AsyncIterator[StripeProvider]:
    """A provider that asks the fake."""
    credentials = credentials_of(fake)
    provider = StripeProvider(credentials, StripeCalls(credentials, per_second=10_000))
    try:
        yield provider
    finally:
        await provider.close()


@asynccontextmanager
async def payment_desk(
    database: Database, faults: Faults | None = None, **deliveries: Any
) -> AsyncIterator[PaymentDesk]:
    async with FakeStripe(faults=faults) as fake:
        desk = PaymentDesk(database, fake, **deliveries)
        try:
            yield desk
        finally:
            await desk.provider.close()
