"""Random work against a Stripe that fails, with a worker that is killed: every invoice is pushed once, every payment
granted once, nothing is granted for money that did not come, and the comparison comes to nothing.

PAYMENT_OPERATIONS says how many operations there are: 10,000 in a long run.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from sqlalchemy import func, literal, select

from billing.accounts.balances import RefundRefused
from billing.money import minor_to_pico
from billing.payments.auto_top_ups import MOST_TIMES
from billing.payments.errors import PaymentRefused, UnknownPayment
from billing.payments.provider import ProviderUnavailable
from billing.tables.invoices import invoice
from billing.tables.money import grant
from billing.tables.payments import cash_receipt, pushed_document, top_up
from billing.usage import Usage
from billing.verification.audit import audit_money
from fake_stripe.customers import CARDS
from fake_stripe.disputes import close_dispute, open_dispute
from fake_stripe.errors import StripeError
from fake_stripe.faults import FAULTS, Faults
from fake_stripe.invoices import pay_on_page
from fake_stripe.payments import complete_checkout, take_money
from fake_stripe.server import Answer, FakeStripe
from storage.database.base import Count, from_instant
from storage.database.database import Database
from tests.billing.invoices.customers import Customer
from tests.billing.payments.desk import PaymentDesk

OPERATIONS = int(os.environ.get("PAYMENT_OPERATIONS", "40"))
SEED = int(os.environ.get("PAYMENT_SEED", "1"))
_STEP_US = 400_000_000
"""Longer than a job is leased: what a worker that was killed has left is taken up in the next step."""


class DeadlyStripe(FakeStripe):
    """Kills a worker after so many more requests, when it has carried the last one out."""

    victim: asyncio.Task[bool] | None = None
    countdown = 0

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: str) -> Answer | None:
        answer = super().answer(method, target, headers, body)
        self.countdown -= 1
        if self.victim is not None and self.countdown == 0:
            self.victim.cancel()
        return answer


class World:
    """Some tenants and what is done with them."""

    def __init__(self, desk: PaymentDesk, fake: DeadlyStripe, customers: list[Customer], dice: random.Random) -> None:
        self.desk, self.fake, self.customers, self.dice = desk, fake, customers, dice
        self.done: Counter[str] = Counter()

    async def advance(self) -> None:
        """Let time pass."""
        now = await self.desk.database.now()
        self.desk.database.clock = literal(now + _STEP_US, Count())
        await self.desk.follow_clock()

    async def step(self) -> None:
        """One operation, some webhooks, and a worker that may be killed."""
        acts = (self.top_up, self.pay_page, self.change_card, self.refund, self.dispute, self.decide, self.pay_invoice,
                self.finish_slow)  # fmt: skip
        act = self.month if self.dice.random() < 0.04 else self.dice.choice(acts)
        with suppress(StripeError, PaymentRefused, RefundRefused, UnknownPayment, ProviderUnavailable):
            await act(self.dice.choice(self.customers))
            self.done[act.__name__] += 1
        await self.desk.deliveries.deliver()
        await self.work()
        await self.advance()

    async def work(self) -> None:
        task = asyncio.create_task(self.desk.worker.run())
        if self.dice.random() < 0.3:
            self.fake.victim, self.fake.countdown = task, self.dice.randrange(1, 8)
        with suppress(asyncio.CancelledError):
            await task
        self.done["killed"] += task.cancelled()
        self.fake.victim = None

    # ------------------------------------------------------------ operations

    async def top_up(self, customer: Customer) -> None:
        await self.desk.top_ups.create(customer.id, "stripe", self.dice.randrange(100, 9000), "USD")

    async def pay_page(self, customer: Customer) -> None:
        pages = [one for one in self.desk.account.every("checkout.session") if one["status"] == "open"]
        if pages:
            complete_checkout(self.desk.account, self.dice.choice(pages)["id"], self.dice.choice(list(CARDS)))

    async def change_card(self, customer: Customer) -> None:
        _, at_stripe = await self.desk.customers.get(customer.id)
        self.desk.give_card(at_stripe, self.dice.choice(list(CARDS)))
        amount, threshold = self.dice.randrange(100, 9000), self.dice.randrange(0, 50) * 10**12
        threshold = min(threshold, MOST_TIMES * amount * 10**10)
        await self.desk.auto.put(customer.id, currency="USD", threshold_pico=threshold, amount=amount, enabled=True)

    async def refund(self, customer: Customer) -> None:
        granted = [one for one in await self.desk.top_ups.list(customer.id, limit=50) if one.state == "granted"]
        if granted:
            amount = self.dice.choice([None, 50, 100])
            await self.desk.refunds.create(customer.id, self.dice.choice(granted).id, amount, "at random")

    async def dispute(self, customer: Customer) -> None:
        charges = [one for one in self.desk.account.every("charge") if not one["disputed"]]
        charges = [one for one in charges if one["amount"] > one["amount_refunded"]]
        if charges:
            open_dispute(
                self.desk.account, self.dice.choice(charges)["payment_intent"], withdraw=self.dice.random() < 0.8
            )

    async def decide(self, customer: Customer) -> None:
        waiting = [one for one in self.desk.account.every("dispute") if one["status"].endswith("needs_response")]
        if waiting:
            close_dispute(self.desk.account, self.dice.choice(waiting)["id"], won=self.dice.random() < 0.5)

    async def pay_invoice(self, customer: Customer) -> None:
        unpaid = [one for one in self.desk.account.every("invoice") if one["status"] == "open"]
        if unpaid:
            pay_on_page(self.desk.account, self.dice.choice(unpaid)["id"])

    async def finish_slow(self, customer: Customer) -> None:
        slow = [one for one in self.desk.account.every("payment_intent") if one["status"] == "processing"]
        if slow:
            take_money(self.desk.account, self.dice.choice(slow))

    async def month(self, customer: Customer) -> None:
        """Compare first, since events are listed for 30 days; then all tenants get their invoices."""
        with suppress(ProviderUnavailable):
            now = int(datetime.now(UTC).timestamp()) + self.desk.account.ahead_s
            await self.desk.reconciler.run(self.desk.provider, now - 29 * 86_400, now + 1)
        moment = from_instant(await self.desk.database.now())
        period = f"{moment:%Y-%m}"
        for one in self.customers:
            output = self.dice.randrange(1, 40) * 1_000_003
            await one.use(moment.replace(tzinfo=None).isoformat(), Usage(output=output, uncached=3))
        await self.customers[0].close(period)
        for one in self.customers:
            await one.invoice(period)
        await self.desk.follow_clock()

    # ------------------------------------------------------------ what must hold

    async def settle_down(self) -> None:
        """No more faults: all is delivered and done, and what was lost is taken from the list."""
        self.fake.faults.rates = {}
        await self.advance()
        await self.desk.work()
        now = int(datetime.now(UTC).timestamp()) + self.desk.account.ahead_s
        run = await self.desk.reconciler.run(self.desk.provider, now - 29 * 86_400, now + 1)
        self.done["missed"] += run.missed
        await self.desk.work()

    async def check(self) -> None:
        now = int(datetime.now(UTC).timestamp()) + self.desk.account.ahead_s
        run = await self.desk.reconciler.run(self.desk.provider, 0, now + 1)
        assert (run.missed, list(run.differences)) == (0, [])
        assert await self.desk.queued() == []
        assert await audit_money(self.desk.database) == []
        await self._check_invoices()
        await self._check_grants()

    async def _check_invoices(self) -> None:
        """Each document that was pushed is there once, and none is there that was not."""
        there = Counter(one["number"] for one in self.desk.account.every("invoice"))
        query = select(invoice.c.number).join(pushed_document, pushed_document.c.document_id == invoice.c.id)
        async with self.desk.database.reading() as session:
            pushed = set(await session.scalars(query.where(pushed_document.c.state == "pushed")))
            states = set(await session.scalars(select(pushed_document.c.state)))
        assert set(there.values()) <= {1}, "an invoice was pushed twice"
        assert there.keys() == pushed
        assert states <= {"pushed", "skipped"}

    async def _check_grants(self) -> None:
        """What was granted is what came in: of each top-up once, and of no other."""
        came = {
            one["metadata"]["top_up"]: one["amount_received"]
            for one in self.desk.account.every("payment_intent")
            if one["status"] == "succeeded" and "top_up" in one["metadata"]
        }
        async with self.desk.database.reading() as session:
            rows = await session.execute(
                select(top_up.c.id, grant.c.amount_pico).join(grant, grant.c.id == top_up.c.id)
            )
            granted = {str(row.id): int(row.amount_pico) for row in rows}
            suspended = await session.scalar(
                select(func.count()).select_from(cash_receipt).where(cash_receipt.c.purpose == "unmatched")
            )
        assert granted == {identity: minor_to_pico(amount, "USD") for identity, amount in came.items()}
        paid_twice = [one for one in self.desk.account.every("invoice_payment") if one["status"] == "paid"]
        assert (suspended or 0) <= len(paid_twice), "only what an invoice did not owe any more waits"


async def _world(database: Database, fake: DeadlyStripe, dice: random.Random) -> World:
    faults: dict[str, int] = {"doubled": 200, "delayed": 300, "lost": 100}
    desk = PaymentDesk(database, fake, **faults, shuffled=True, seed=SEED)
    customers = [await Customer.make(database) for _ in range(3)]
    for number, customer in enumerate(customers):
        await desk.connect(customer.id, "pm_card_visa" if number else None)
    return World(desk, fake, customers, dice)


@pytest.mark.slow
@pytest.mark.timeout(0)
async def test_a_stripe_that_fails_and_a_worker_that_is_killed(database: Database) -> None:
    dice = random.Random(SEED)
    async with DeadlyStripe(faults=Faults(seed=SEED)) as fake:
        world = await _world(database, fake, dice)
        fake.faults.rates = dict.fromkeys(FAULTS, 25)
        try:
            for number in range(1, OPERATIONS + 1):
                await world.step()
                if not number % 500:
                    await world.settle_down()
                    fake.faults.rates = dict.fromkeys(FAULTS, 25)
            await world.settle_down()
            await world.check()
        finally:
            await world.desk.provider.close()
    assert len(fake.requests) > OPERATIONS
