"""What is paid in the demonstration's months: by cards at the fake Stripe, and by bank transfer.

The provider's own code does all of it, as a worker does. One customer's invoice is pushed and its card charged; another
pays in advance on a page and by itself, and disputes a payment; the visitor's card has no money, and is tried again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.message import EmailMessage
from pathlib import Path
from uuid import UUID

from audit_log.actors import Actor, acting_as
from billing.invoices.store import Invoices
from billing.money import PICO, format_minor
from billing.payments.auto_top_ups import AutoTopUps
from billing.payments.bank.importing import import_statement
from billing.payments.customers import Customers
from billing.payments.dunning.due import DEFAULT_DAYS
from billing.payments.dunning.letters import load_letters
from billing.payments.dunning.sending import DunningWorker
from billing.payments.inbox import PaymentInbox
from billing.payments.reconciliation import Reconciler
from billing.payments.stripe_api.calls import StripeCalls
from billing.payments.stripe_api.credentials import load_credentials
from billing.payments.stripe_api.stripe_provider import StripeProvider
from billing.payments.top_ups import TopUps
from billing.payments.worker import PaymentWorker
from fake_stripe.customers import attach, keep_method
from fake_stripe.disputes import open_dispute
from fake_stripe.payments import complete_checkout
from fake_stripe.server import FakeStripe
from fake_stripe.webhooks import Deliveries
from storage.database import clock
from turnpike.admin_services import AdminServices
from turnpike.demonstration.cast import NORDLICHT, OPERATORS, QUILLSTONE, TIDEWATER, VISITOR, Customer
from turnpike.demonstration.past import SECOND, Past
from turnpike.demonstration.people import Population
from turnpike.demonstration.stand_in import ACCOUNT_FILE, new_secret, page_address, write_credentials

_WORKER = Actor("system", "worker/payments", "turnpike worker")
_ROUNDS = 100
"""The most rounds of events and jobs after one act."""
BEN = OPERATORS[2].email
OMAR, PAULA = QUILLSTONE.people[1].email, TIDEWATER.people[0].email


class PastMail:
    """A mail server of the past: it keeps the messages as files."""

    sender = "Demonstration <billing@turnpike.example>"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def send(self, message: EmailMessage, recipient: str) -> None:
        """Keep a message."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        name = f"{message['Message-ID'].strip('<>').partition('@')[0]}.eml"
        (self._folder / name).write_bytes(message.as_bytes())


class PastPayments:
    """Acts of those who pay. Each runs at the instant at which the process stands."""

    def __init__(
        self, admin: AdminServices, past: Past, population: Population, *, fake: FakeStripe, provider: StripeProvider
    ) -> None:
        database = admin.database
        self._database, self._past, self._all = database, past, population
        self._fake, self._account, self._provider = fake, fake.account, provider
        self._folder = admin.settings.data.absolute() / "mail"
        self._customers, self._top_ups, self._auto = Customers(database), TopUps(database), AutoTopUps(database)
        self._worker, self._inbox = PaymentWorker(database, provider), PaymentInbox(database)
        self._deliveries = Deliveries(fake.account, self._take, provider.credentials.webhook_secrets)

    async def connect(self) -> None:
        """Three customers are connected; two leave a card."""
        for customer, who in ((TIDEWATER, PAULA), (QUILLSTONE, OMAR), (VISITOR, BEN)):
            with self._all.acting(who):
                await self._customers.connect(self._tenant(customer), self._provider.name)
        await self.work()
        await self._give_card(TIDEWATER, "pm_card_visa")
        await self._give_card(VISITOR, "pm_card_insufficient")

    async def top_up(self) -> None:
        """A customer pays in advance on a page, and keeps its card; then the card is charged when money runs low."""
        tenant = self._tenant(QUILLSTONE)
        with self._all.acting(OMAR):
            made = await self._top_ups.create(tenant, self._provider.name, 10_000, "USD")
        await self.work()
        sent = await self._top_ups.get(tenant, made.id)
        assert sent.session_id is not None, "the page is there"
        complete_checkout(self._account, sent.session_id)
        await self.work()

    async def charge_by_itself(self) -> None:
        """A card that is charged by itself: less is left than the threshold."""
        with self._all.acting(OMAR):
            await self._auto.put(
                self._tenant(QUILLSTONE), currency="USD", threshold_pico=700 * PICO, amount=8_000, enabled=True
            )
        await self.work()

    async def be_declined(self) -> None:
        """The visitor's card has no money: it is tried again in a day."""
        with self._all.acting(BEN):
            await self._auto.put(
                self._tenant(VISITOR), currency="USD", threshold_pico=120 * PICO, amount=2_500, enabled=True
            )
        await self.work()

    async def dispute(self) -> None:
        """A cardholder objects to the payment on the page: the bank takes a part of it."""
        first = self._account.every("payment_intent", status="succeeded")[-1]
        open_dispute(self._account, first["id"], amount=4_000)
        await self.work()

    async def import_bank(self, period: str) -> None:
        """A bank's file: one entry names an invoice and pays a part of it, another names nothing."""
        record = await Invoices(self._database).of_period(self._tenant(NORDLICHT), period)
        if record is None or record.number is None:
            return
        day = datetime.fromtimestamp(self._past.now // SECOND, UTC).date()
        amount = format_minor(max(1, record.left // 4), "EUR")
        rows = [
            "date,amount,currency,payer,reference,id",
            f"{day},{amount},EUR,Nordlicht Verlag GmbH,{record.number} first part,2026-4811",
            f"{day},120.00,EUR,N. Verlag Zahlstelle,Rechnung Oktober,2026-4812",
        ]
        with self._all.acting(BEN):
            await import_statement(self._database, f"bank-{day}.csv", "\n".join(rows) + "\n", write=True)

    async def remind(self) -> None:
        """Reminders of what is overdue: no mail leaves the machine, the messages lie in the data folder."""
        mail = PastMail(self._folder)
        with acting_as(Actor("system", "worker/reminders", "turnpike worker")):
            worker = DunningWorker(
                self._database, mail, load_letters(), DEFAULT_DAYS, console="http://127.0.0.1:8080", names=self._name
            )
            await worker.run()

    async def _name(self, tenant_id: UUID) -> str:
        return next(name for name, known in self._all.tenants.items() if known == tenant_id)

    async def compare(self) -> None:
        """The nightly comparison with the provider."""
        self._follow_clock()
        with acting_as(_WORKER):
            await Reconciler(self._database).run_if_due(self._provider)
        await self.work()

    async def work(self) -> None:
        """What a worker does: events are taken, and jobs done that are due."""
        self._follow_clock()
        with acting_as(_WORKER):
            for _ in range(_ROUNDS):
                await self._deliveries.deliver(all_of_them=True)
                more = await self._worker.run()
                if not more and not self._deliveries.waiting:
                    return

    def _follow_clock(self) -> None:
        """Let it be the same time at the fake as here."""
        self._account.stand_at = clock.instant() // SECOND

    async def _give_card(self, customer: Customer, card: str) -> None:
        _, identity = await self._customers.get(self._tenant(customer))
        keep_method(self._account, identity, attach(self._account, identity, card))
        await self.work()

    def _tenant(self, customer: Customer) -> UUID:
        return self._all.tenants[customer.name]

    async def _take(self, body: bytes, headers: dict[str, str]) -> int:
        """What the route does with a webhook."""
        await self._inbox.take(self._provider.name, self._provider.read_event(body, headers))
        return 200


@asynccontextmanager
async def open_past_payments(admin: AdminServices, past: Past, population: Population) -> AsyncIterator[PastPayments]:
    """A fake Stripe for as long as a demonstration is made; its account is kept in the data folder at the end."""
    folder = admin.settings.data.absolute()
    async with FakeStripe() as fake:
        fake.account.pages = page_address(admin.settings)
        path = write_credentials(folder, fake.base, "http://127.0.0.1/console", new_secret())
        credentials = load_credentials(path)
        provider = StripeProvider(credentials, StripeCalls(credentials, per_second=10_000))
        try:
            yield PastPayments(admin, past, population, fake=fake, provider=provider)
        finally:
            await provider.close()
            path.unlink()
        fake.account.save(folder / ACCOUNT_FILE)
