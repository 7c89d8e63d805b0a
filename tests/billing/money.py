"""What the tests of billing share: a tenant with money, a price, requests and their events."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from billing.accounts.balances import Balances
from billing.holds.records import Hold, HoldRequest
from billing.money import parse_price
from billing.prices import PriceCatalog, PriceVersion, in_every_lane
from billing.prices.approval import PriceSheets
from billing.prices.price_books import PriceBooks
from billing.prices.sheets import PriceProposal
from billing.usage import Counts, Usage, UsageEvent
from storage.database.base import new_id
from storage.database.database import Database

PRICES = {
    "uncached": "0.40",
    "read_automatic": "0.04",
    "read_5m": "0.04",
    "write_5m": "0.50",
    "read_1h": "0.04",
    "write_1h": "0.80",
    "output": "1.60",
}


async def priced_in(database: Database, currency: str, model: str) -> PriceVersion:
    """The version of a model's prices in a base book of another currency."""
    made = await PriceBooks(database).create(f"in {currency}", currency)
    rows = in_every_lane({meter: parse_price(text) for meter, text in PRICES.items()})
    await PriceSheets(database).put(PriceProposal(model=model, rows=rows, book=made.name), by="ann")
    return await PriceCatalog(database).in_book(made, model)


async def give_euros(database: Database, tenant_id: UUID, pico: int) -> None:
    """Money in euros, for a tenant with a price book in euros."""
    await PriceBooks(database).create("in euros", "EUR")
    await PriceBooks(database).create_for(tenant_id, "its own", "in euros")
    await Balances(database).grant(tenant_id, pico, "EUR")


class Tenant(msgspec.Struct):
    """A tenant with a project, a key and a price to pay."""

    database: Database
    version: PriceVersion
    id: UUID
    project_id: UUID
    key_id: UUID

    @classmethod
    async def rich(
        cls, database: Database, pico: int, model: str = "stdlib-qa", prices: Mapping[str, str] = PRICES
    ) -> Tenant:
        """A tenant who has this much; 0 for one without a balance."""
        version = await PriceCatalog(database).set(model, "USD", dict(prices))
        tenant = cls(database, version, new_id(), new_id(), new_id())
        if pico:
            await Balances(database).grant(tenant.id, pico, "USD")
        return tenant

    def request(self, pico: int, request_id: UUID | None = None, lifetime_s: int = 600) -> HoldRequest:
        return HoldRequest(
            request_id=request_id or new_id(),
            tenant_id=self.id,
            project_id=self.project_id,
            key_id=self.key_id,
            model=self.version.model,
            lane="standard",
            price_version=self.version.id,
            amount_pico=pico,
            lifetime_s=lifetime_s,
            gateway_epoch="g1",
            terms=b"terms",
        )

    def event(self, hold: Hold | HoldRequest, usage: Usage | None = None, sequence: int = 0) -> UsageEvent:
        return event(hold, self.version, usage or Usage(uncached=100, output=10), sequence)


def event(hold: Hold | HoldRequest, version: PriceVersion, usage: Usage, sequence: int = 0) -> UsageEvent:
    admitted_at = hold.admitted_at if isinstance(hold, Hold) else 1_795_000_000_000_000
    return UsageEvent(
        id=hold.request_id,
        tenant_id=hold.tenant_id,
        project_id=hold.project_id,
        key_id=hold.key_id,
        model=version.model,
        model_digest="d1",
        lane=hold.lane,
        price_version=version.id,
        admitted_at=admitted_at,
        finished_at=admitted_at + 1_000_000,
        period=hold.period if isinstance(hold, Hold) else "2026-11",
        status="ok",
        reason="stop",
        delivery="confirmed",
        source="gateway",
        replica="r1",
        sequence=sequence,
        attempt=1,
        counts=Counts(prompt=usage.prompt, computed=usage.prompt, output=usage.output),
        usage=usage,
        cost_pico=version.cost(usage, hold.lane),
        context_from=version.context_from(usage.prompt, hold.lane),
        hold_batch=hold.batch if isinstance(hold, Hold) else None,
        allowance=hold.allowance if isinstance(hold, Hold) else None,
    )


def loose_request(request_id: UUID, amount: int = 0) -> HoldRequest:
    """A request of nobody in particular."""
    owner = UUID(int=1)
    return HoldRequest(
        request_id=request_id,
        tenant_id=owner,
        project_id=owner,
        key_id=owner,
        model="m",
        lane="standard",
        price_version=1,
        amount_pico=amount,
        lifetime_s=1,
        gateway_epoch="g1",
        terms=b"",
    )
