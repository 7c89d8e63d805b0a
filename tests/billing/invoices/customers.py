"""What the tests of invoices share: a tenant whose months are used, closed and invoiced on a clock that tests set."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from uuid import UUID

import msgspec
from sqlalchemy import literal, select

from billing.accounts.balances import Balances
from billing.calendar import following_period
from billing.invoices.drafting import draft
from billing.invoices.finalizing import finalize
from billing.invoices.parties.parties import Buyer, Seller
from billing.invoices.parties.store import Parties
from billing.invoices.store import InvoiceRecord, Invoices
from billing.periods.periods import Periods
from billing.prices import PriceCatalog
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.tables.money import ledger_entry
from billing.usage import Usage, UsageEvent
from storage.database.base import Count, to_instant
from storage.database.database import Database
from tests.billing.invoices.documents import BUYER, SELLER
from tests.billing.money import Tenant

USD = msgspec.structs.replace(SELLER, currency="USD")


def set_clock(database: Database, moment: str) -> None:
    """Set the database's clock to a moment in UTC, such as 2026-10-03T12:00."""
    database.clock = literal(to_instant(datetime.fromisoformat(moment).replace(tzinfo=UTC)), Count())


class Customer(msgspec.Struct):
    """A tenant with a billing profile."""

    tenant: Tenant
    invoices: Invoices

    @classmethod
    async def make(
        cls, database: Database, pico: int = 0, *, seller: Seller = USD, buyer: Buyer = BUYER, model: str = "stdlib-qa"
    ) -> Customer:
        set_clock(database, "2026-09-15")
        tenant = await Tenant.rich(database, pico, model)
        balances = Balances(database)
        balance = await balances.get(tenant.id)
        currency = seller.currency if balance is None else balance.currency
        await balances.set_credit_line(tenant.id, 10**15, currency)  # it may pay afterwards
        parties = Parties(database)
        await parties.set_seller(seller)
        await parties.set_buyer(tenant.id, buyer)
        return cls(tenant, Invoices(database))

    @property
    def id(self) -> UUID:
        return self.tenant.id

    @property
    def database(self) -> Database:
        return self.tenant.database

    async def use(self, moment: str, *usages: Usage) -> list[UsageEvent]:
        """Requests admitted and ended at this moment, and settled."""
        events = await self.requests(moment, *usages)
        await self.settle(events)
        return events

    async def requests(self, moment: str, *usages: Usage) -> list[UsageEvent]:
        """The events of requests admitted at this moment, not settled yet."""
        set_clock(self.database, moment)
        holds = HoldService(self.database)
        return [self.tenant.event(await holds.reserve(self.tenant.request(0)), usage) for usage in usages]

    async def settle(self, events: list[UsageEvent]) -> None:
        settled = await settle(self.database, PriceCatalog(self.database), events)
        assert settled.refused == 0

    async def close(self, period: str) -> None:
        """Close a period; it is the second day of the next one then."""
        set_clock(self.database, f"{following_period(period)}-02")
        await Periods(self.database).close(period)

    async def draft(self, period: str) -> InvoiceRecord:
        record, document = await draft(self.database, PriceCatalog(self.database), self.id, period)
        assert record is not None
        assert document is not None
        return record

    async def invoice(self, period: str) -> InvoiceRecord:
        """Close a period if need be, and send its invoice."""
        if (await Periods(self.database).get(period)).state != "closed":
            await self.close(period)
        await self.draft(period)
        return await finalize(self.database, PriceCatalog(self.database), self.id, period)

    async def accounts(self) -> dict[str, int]:
        """The balances of the tenant's accounts that are not 0, in pico-units: credits less debits."""
        sums: dict[str, int] = defaultdict(int)
        query = select(ledger_entry).where(ledger_entry.c.tenant_id == self.id)
        async with self.database.reading() as session:
            for row in await session.execute(query):
                sums[row.debit] -= row.amount_pico
                sums[row.credit] += row.amount_pico
        return {account: amount for account, amount in sums.items() if amount}
