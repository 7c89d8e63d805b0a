"""Money reserved at admission: all that is queued in one transaction, and no tenant can pass its balance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import literal, select

from billing.balances import CurrencyMismatch
from billing.hold_books_postgresql import take_at_once
from billing.hold_records import Hold, HoldRequest, unpack
from billing.ledger import Balance
from billing.money import format_pico
from billing.open_books import opened
from billing.prices import UnknownPriceVersion
from billing.tables import ended_hold, hold, price_version
from storage.batcher import MicroBatcher
from storage.bulk import one_of
from storage.database import Database

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


class Holds:
    """Reserving and expiring. Settling and releasing are the settler's."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._batcher: MicroBatcher[HoldRequest, Hold] = MicroBatcher(self._reserve, _MAX_BATCH)
        self._currencies: dict[int, str] = {}
        self._short: set[UUID] = set()

    async def reserve(self, request: HoldRequest) -> Hold:
        """Reserve the amount, whole or not at all. A repeated request gets the hold that it has.

        Raises InsufficientFunds, CurrencyMismatch, UnknownPriceVersion, DuplicateRequest, DatabaseUnavailable; after
        the last, or when the caller is cancelled, the hold may exist: release it or let it expire.
        """
        return await self._batcher.submit(request)

    async def get(self, request_id: UUID) -> Hold | None:
        """The hold of a request that is open, or ended without usage; None if its usage is settled, or it had none."""
        async with self._database.reading() as session:
            for table, state in ((hold, literal("open")), (ended_hold, ended_hold.c.state)):
                # all tenants: a journal knows requests alone
                query = select(table.c.request, table.c.admitted_at, table.c.amount_pico, state)
                row = (await session.execute(query.where(table.c.request_id == request_id))).one_or_none()
                if row is not None:
                    return Hold.of(unpack(row[0]), row[1], row[2], row[3])
        return None

    async def open_of(self, gateway: str) -> list[UUID]:
        """The requests, of all tenants, whose holds this gateway took and that are still open."""
        async with self._database.reading() as session:
            return list(await session.scalars(select(hold.c.request_id).where(hold.c.gateway == gateway)))

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
        """All at once where the database can do that and has no objection; else one by one, with everything locked.

        Who was refused lately is no reason to make the others wait for that: it is asked for apart.
        """
        await self._learn_currencies({request.price_version for request in requests})
        if self._database.dialect != "postgresql":
            return await self._one_by_one(requests)
        short = self._short
        likely = [request for request in requests if request.tenant_id not in short] if short else requests
        taken = await self._at_once(likely) if likely else []
        if len(likely) == len(requests):
            return [*taken] if taken is not None else await self._one_by_one(requests)
        if taken is None:
            return await self._one_by_one(requests)
        rest = await self._one_by_one([request for request in requests if request.tenant_id in short])
        taken_ones, others = iter(taken), iter(rest)
        return [next(others if request.tenant_id in short else taken_ones) for request in requests]

    async def _at_once(self, requests: list[HoldRequest]) -> list[Hold] | None:
        async with self._database.direct(transaction=False) as connection:
            now = await take_at_once(connection, self._database.clock_sql, requests, self._currencies)
        return None if now is None else [Hold.of(request, now) for request in requests]

    async def _one_by_one(self, requests: list[HoldRequest]) -> list[Hold | Exception]:
        async with opened(self._database) as books:
            owners = await books.lock({request.tenant_id for request in requests})
            ids = {request.request_id for request in requests}
            known = {found.request_id: found for found in await books.holds.open_now(ids)}
            ended = await books.holds.ended(ids)
            answers, made, held = self._decide(requests, owners, known, ended, await books.now())
            if made:
                await books.holds.take(made, held)
        return answers

    def _decide(
        self,
        requests: Sequence[HoldRequest],
        owners: dict[UUID, Balance],
        known: dict[UUID, Hold],
        ended: set[UUID],
        now: int,
    ) -> tuple[list[Hold | Exception], list[tuple[HoldRequest, Hold]], dict[UUID, int]]:
        """Who gets a hold, in the order of the queue: the answers, the new holds, and what they hold of whom."""
        left = {tenant: owner.available for tenant, owner in owners.items()}
        answers: list[Hold | Exception] = []
        made: list[tuple[HoldRequest, Hold]] = []
        held: dict[UUID, int] = defaultdict(int)
        refused: set[UUID] = set()
        for request in requests:
            tenant, amount = request.tenant_id, request.amount_pico
            owner = owners.get(tenant)
            currency = self._currencies.get(request.price_version)
            earlier = known.get(request.request_id)
            if currency is None:
                answers.append(UnknownPriceVersion(request.price_version))
            elif earlier is not None:
                same = (earlier.tenant_id, earlier.amount_pico) == (tenant, amount)
                answers.append(earlier if same else DuplicateRequest(request.request_id))
            elif request.request_id in ended:
                answers.append(DuplicateRequest(request.request_id))
            elif owner is not None and owner.currency != currency:
                answers.append(CurrencyMismatch(owner.currency, currency))
            elif owner is None or amount > left[tenant]:
                refused.add(tenant)
                answers.append(InsufficientFunds("tenant", amount, max(0, left.get(tenant, 0)), currency))
            else:
                new = known[request.request_id] = Hold.of(request, now)
                left[tenant] -= amount
                held[tenant] += amount
                made.append((request, new))
                answers.append(new)
        self._short = self._short - owners.keys() | refused
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
            ended = await books.holds.end(await books.holds.overdue(now, _SWEEP), "expired")
            given_back = {some.tenant_id: some.amount_pico for some in ended}
            found = await books.lock(given_back.keys())
            await books.save([found[tenant].holding(-pico) for tenant, pico in given_back.items() if tenant in found])
        return sum(some.requests for some in ended)
