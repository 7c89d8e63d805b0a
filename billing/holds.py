"""Money reserved at admission: all that is queued in one transaction, and no tenant can pass its balance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import select

from billing.balances import CurrencyMismatch
from billing.ledger import Balance
from billing.money import MAX_PICO, InvalidMoney, format_pico
from billing.open_books import opened
from billing.prices import UnknownPriceVersion
from billing.tables import hold, price_version
from billing.usage import period_of
from storage.batcher import MicroBatcher
from storage.bulk import one_of
from storage.database import Database

State = Literal["open", "settled", "released", "expired"]

_MAX_BATCH = 500
_SWEEP = 1000


class InsufficientFunds(Exception):
    """The hold does not fit: `scope` says whose money is short (the tenant's), amounts are in pico-units."""

    def __init__(self, scope: str, needed_pico: int, affordable_pico: int, currency: str) -> None:
        super().__init__(
            f"the request may cost {format_pico(needed_pico)} {currency}, "
            f"and the {scope} has {format_pico(affordable_pico)} {currency} left"
        )
        self.scope = scope
        self.needed_pico = needed_pico
        self.affordable_pico = affordable_pico
        self.currency = currency


class DuplicateRequest(ValueError):
    """A request of this id was admitted before, as another request or one that has ended."""

    def __init__(self, request_id: UUID) -> None:
        super().__init__(f"request {request_id} was admitted before")
        self.request_id = request_id


class HoldRequest(msgspec.Struct, frozen=True):
    """Reserve `amount_pico` for a request, for at most `lifetime_s`. Raises InvalidMoney.

    `gateway` is the name of the gateway worker that runs the request. `terms` is for the gateway alone: what it needs
    to make usage of a journal's counts later.
    """

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    model: str
    lane: str
    price_version: int
    amount_pico: int
    lifetime_s: int
    gateway: str
    terms: bytes

    def __post_init__(self) -> None:
        if not 0 <= self.amount_pico <= MAX_PICO:
            raise InvalidMoney(f"a hold of {self.amount_pico} pico-units")
        if self.lifetime_s <= 0:
            raise InvalidMoney(f"a hold for {self.lifetime_s} seconds")


class Hold(msgspec.Struct, frozen=True):
    """A reservation as the database has it. Its billing period was fixed by the database's clock at admission."""

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    model: str
    lane: str
    price_version: int
    amount_pico: int
    gateway: str
    terms: bytes
    admitted_at: int
    period: str
    expires_at: int
    state: State


class Holds:
    """Reserving and expiring. Settling and releasing are the settler's."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._batcher: MicroBatcher[HoldRequest, Hold] = MicroBatcher(self._reserve, _MAX_BATCH)
        self._currencies: dict[int, str] = {}

    async def reserve(self, request: HoldRequest) -> Hold:
        """Reserve the amount, whole or not at all. A repeated request gets the hold that it has.

        Raises InsufficientFunds, CurrencyMismatch, UnknownPriceVersion, DuplicateRequest, DatabaseUnavailable; after
        the last, or when the caller is cancelled, the hold may exist: release it or let it expire.
        """
        return await self._batcher.submit(request)

    async def get(self, request_id: UUID) -> Hold | None:
        """The hold of a request, in whatever state."""
        async with self._database.reading() as session:
            row = (await session.execute(select(hold).where(hold.c.request_id == request_id))).one_or_none()
        return None if row is None else Hold(*row)

    async def open_of(self, gateway: str) -> list[UUID]:
        """The requests, of all tenants, whose holds this gateway took and that are still open."""
        query = select(hold.c.request_id).where(hold.c.state == "open", hold.c.gateway == gateway)
        async with self._database.reading() as session:
            return list(await session.scalars(query))

    async def sweep(self, now: int | None = None) -> int:
        """Expire open holds whose time had passed at `now` (the database's clock if absent); return how many."""
        instant = await self._database.now() if now is None else now
        expired = 0
        while ended := await self._sweep_some(instant):
            expired += ended
        return expired

    async def close(self) -> None:
        """Wait for what is being reserved; take nothing more."""
        await self._batcher.close()

    async def _reserve(self, requests: list[HoldRequest]) -> list[Hold | Exception]:
        await self._learn_currencies({request.price_version for request in requests})
        async with opened(self._database) as books:
            owners = await books.lock({request.tenant_id for request in requests})
            now, rows = await books.holds({request.request_id for request in requests})
            known = {row[0]: Hold(*row) for row in rows}
            answers, made, held = self._decide(requests, owners, known, now)
            if made:
                await books.hold_back(held, made)
        return answers

    def _decide(
        self, requests: Sequence[HoldRequest], owners: dict[UUID, Balance], known: dict[UUID, Hold], now: int
    ) -> tuple[list[Hold | Exception], list[Hold], dict[UUID, int]]:
        """Who gets a hold, in the order of the queue: the answers, the new holds, and what they hold of whom."""
        left = {tenant: owner.available for tenant, owner in owners.items()}
        known = dict(known)
        answers: list[Hold | Exception] = []
        made: list[Hold] = []
        held: dict[UUID, int] = defaultdict(int)
        period = period_of(now)
        for request in requests:
            tenant, amount = request.tenant_id, request.amount_pico
            owner = owners.get(tenant)
            currency = self._currencies.get(request.price_version)
            earlier = known.get(request.request_id)
            if currency is None:
                answers.append(UnknownPriceVersion(request.price_version))
            elif earlier is not None:
                same = earlier.state == "open" and (earlier.tenant_id, earlier.amount_pico) == (tenant, amount)
                answers.append(earlier if same else DuplicateRequest(request.request_id))
            elif owner is None:
                answers.append(InsufficientFunds("tenant", amount, 0, currency))
            elif owner.currency != currency:
                answers.append(CurrencyMismatch(owner.currency, currency))
            elif amount > left[tenant]:
                answers.append(InsufficientFunds("tenant", amount, max(0, left[tenant]), currency))
            else:
                fields: dict[str, Any] = msgspec.structs.asdict(request)
                lifetime = fields.pop("lifetime_s") * 1_000_000
                new = Hold(**fields, admitted_at=now, period=period, expires_at=now + lifetime, state="open")
                known[new.request_id] = new
                left[tenant] -= amount
                held[tenant] += amount
                made.append(new)
                answers.append(new)
        return answers, made, held

    async def _learn_currencies(self, versions: set[int]) -> None:
        unknown = versions - self._currencies.keys()
        if unknown:
            query = select(price_version.c.id, price_version.c.currency)
            async with self._database.reading() as session:
                rows = await session.execute(query.where(one_of(self._database, price_version.c.id, unknown)))
            self._currencies |= {row.id: row.currency for row in rows}

    async def _sweep_some(self, now: int) -> int:
        async with opened(self._database) as books:
            ended = await books.expire_holds(now, _SWEEP)
            given_back = {some.tenant_id: some.amount_pico for some in ended}
            found = await books.lock(given_back.keys())
            await books.save([found[tenant].holding(-pico) for tenant, pico in given_back.items() if tenant in found])
        return sum(some.requests for some in ended)
