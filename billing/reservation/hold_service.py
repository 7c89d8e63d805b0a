"""Money reserved at admission: all that is queued in one transaction, and no tenant can pass its balance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec
from sqlalchemy import select

from billing.budgets.windows import BudgetLimit, BudgetWindow
from billing.holds.batches import open_ids
from billing.holds.records import Hold, HoldRequest, TopUp, unpack
from billing.holds.store import EndedHolds, Places, open_hold, release_holds
from billing.holds.store_postgresql import take_at_once
from billing.ledger.entries import Balance
from billing.ledger.wallet import OpenGrant, Wallet
from billing.prices import UnknownPriceVersion
from billing.reservation.decisions import HoldDecider, HoldEnded
from billing.tables.money import ended_hold, hold_batch, price_version
from billing.transaction.budget_charges import BudgetCharges, charge_budgets
from billing.transaction.money_transaction import MoneyTransaction
from billing.transaction.opening import money_transaction
from storage.batcher import MicroBatcher
from storage.database.database import Database
from storage.database.sql_arrays import one_of

_MAX_BATCH = 500
_SWEEP = 1000
_ALLOWANCE_PART = 64
"""An allowance is at most the 64th part of what is available: what lies idle in one is missed by nobody until little is
left, and then there are none."""


class HoldService:
    """Reserving, topping up and expiring. Settling and releasing are the settler's."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._batcher: MicroBatcher[HoldRequest, Hold] = MicroBatcher(self._reserve, _MAX_BATCH)
        self._top_ups: MicroBatcher[TopUp, Hold] = MicroBatcher(self._raise, _MAX_BATCH)
        self.currencies: dict[int, str] = {}
        """Of the price versions that were asked for so far."""
        self._careful: set[UUID] = set()

    async def reserve(self, request: HoldRequest) -> Hold:
        """Reserve the amount, whole or not at all, for a request whose id was made for it: nothing was ever reserved
        for another of that id.

        Raises InsufficientFunds, CurrencyMismatch, UnknownPriceVersion, DatabaseUnavailable; after the last, or when
        the caller is cancelled, the hold may exist: release it or let it expire.
        """
        return await self._batcher.submit(request)

    async def top_up(self, held: Hold, amount_pico: int) -> Hold:
        """Raise an open hold to this amount, from the balance and all its budgets or not at all; one that is as high
        already stays. Returns it is now.

        Raises InsufficientFunds (of what is to be added), HoldEnded, InvalidMoney, DatabaseUnavailable; after the last,
        or when the caller is cancelled, it may have been raised: ask again, or let the hold end.
        """
        return await self._top_ups.submit(TopUp(held.request_id, amount_pico, held.batch))

    async def reserve_allowance(self, request: HoldRequest, currency: str, least_pico: int) -> Hold | None:
        """Hold an allowance (`HoldRequest.for_many`), or as much of it as one may be of what is available.
        None if that is less than `least_pico`, or where the balance alone does not say what a request may cost: with
        budgets, or with grants for one model or project.

        Raises DatabaseUnavailable, or the caller is cancelled: then it may exist; release it or let it expire.
        """
        tenant = request.tenant_id
        async with money_transaction(self._database) as books:
            owner = (await books.lock({tenant})).get(tenant)
            if owner is None or owner.currency != currency or owner.budgets or owner.restricted:
                return None
            amount = min(request.amount_pico, owner.available // _ALLOWANCE_PART)
            if amount < least_pico:
                return None
            asked = msgspec.structs.replace(request, amount_pico=amount)
            hold = Hold.of(asked, await books.now())
            await books.holds.take([(asked, hold)], {tenant: amount})
        return hold

    async def return_allowance(self, tenant: UUID, allowance: UUID, pico: int) -> None:
        """Let so much of an allowance be available again. Raises DatabaseUnavailable; then it may be so, or not."""
        async with money_transaction(self._database) as books:
            freed = await books.holds.spend({(tenant, allowance): pico})
            owners = await books.lock({some.tenant_id for some in freed})
            await books.save([owners[some.tenant_id].holding(-some.amount_pico) for some in freed])

    async def currency(self, version: int) -> str:
        """The currency of a price version. Raises UnknownPriceVersion, DatabaseUnavailable."""
        await self._learn_currencies({version})
        if version not in self.currencies:
            raise UnknownPriceVersion(version)
        return self.currencies[version]

    async def get(self, request_id: UUID) -> Hold | None:
        """The hold of a request that is open, or ended without usage; None if its usage is settled, or it had none."""
        of = ended_hold.c
        async with self._database.reading() as session:
            if (found := await open_hold(session, request_id)) is not None:
                return found
            # all tenants: a journal knows requests alone
            ended = select(of.request, of.admitted_at, of.amount_pico, of.state).where(of.request_id == request_id)
            if (kept := (await session.execute(ended)).one_or_none()) is not None:
                return Hold.of(unpack(kept[0]), *kept[1:])
        return None

    async def open_of(self, gateway: str) -> dict[UUID, UUID]:
        """The requests, of all tenants, whose holds this gateway epoch took and that are still open, with their
        batches."""
        async with self._database.reading() as session:
            query = select(hold_batch.c.id, hold_batch.c.entries).where(hold_batch.c.gateway == gateway)
            rows = await session.execute(query)
            return {UUID(bytes=request): batch for batch, entries in rows for request in open_ids(entries)}

    async def sweep(self, now: int | None = None) -> int:
        """Expire open holds whose time had passed at `now` (the database's clock if absent); return how many.

        Time alone ends no hold of a gateway epoch that lives, or of which a journal may still know something.
        """
        instant = await self._database.now() if now is None else now
        expired = 0
        while ended := await self._sweep_some(instant):
            expired += ended
        return expired

    async def give_back(self, epoch: str) -> int:
        """Release all open holds of a gateway epoch of which nobody knows anything any more; return how many. Raises
        DatabaseUnavailable."""
        left = list((await self.open_of(epoch)).items())
        given_back = 0
        for at in range(0, len(left), _SWEEP):
            async with money_transaction(self._database) as books:
                given_back += await self._end(books, dict(left[at : at + _SWEEP]), "released")
        return given_back

    async def ping(self) -> None:
        """Raise DatabaseUnavailable unless the database of the holds answers."""
        await self._database.ping()

    async def close(self) -> None:
        """Wait for what is being reserved; take nothing more."""
        await self._batcher.close()
        await self._top_ups.close()

    async def _reserve(self, requests: list[HoldRequest]) -> list[Hold | Exception]:
        """All at once where the database can do that and has no objection; else one by one, with everything locked.

        Who was refused lately, or has budgets or restricted grants, does not keep the others from the faster way.
        """
        await self._learn_currencies({request.price_version for request in requests})
        if self._database.dialect != "postgresql":
            return await self._one_by_one(requests)
        careful = self._careful
        likely = [request for request in requests if request.tenant_id not in careful] if careful else requests
        taken = await self._at_once(likely) if likely else []
        if len(likely) == len(requests):
            return [*taken] if taken is not None else await self._one_by_one(requests)
        if taken is None:
            return await self._one_by_one(requests)
        rest = await self._one_by_one([request for request in requests if request.tenant_id in careful])
        taken_ones, others = iter(taken), iter(rest)
        return [next(others if request.tenant_id in careful else taken_ones) for request in requests]

    async def _at_once(self, requests: list[HoldRequest]) -> list[Hold] | None:
        async with self._database.direct(transaction=False) as connection:
            taken = await take_at_once(connection, self._database.clock_sql, requests, self.currencies)
        if taken is None:
            return None
        now, batches = taken
        return [Hold.of(request, now, batch=batches[request.request_id]) for request in requests]

    async def _one_by_one(self, requests: list[HoldRequest]) -> list[Hold | Exception]:
        async with money_transaction(self._database) as books:
            owners = await books.lock({request.tenant_id for request in requests})
            decisions = await self._decisions(books, owners, requests)
            answers = [decisions.decide(request) for request in requests]
            batches: dict[UUID, UUID] = {}
            if decisions.made:
                batches = await books.holds.take(decisions.made, decisions.held)
                await books.budgets.save(decisions.windows)
                await books.save((), grants=decisions.grants)
        self._careful = (self._careful - owners.keys()) | decisions.short | _with_conditions(owners)
        return [
            msgspec.structs.replace(answer, batch=batches[answer.request_id]) if isinstance(answer, Hold) else answer
            for answer in answers
        ]

    async def _raise(self, asked: list[TopUp]) -> list[Hold | Exception]:
        """All in one transaction. Whoever ends one of the holds at the same time does so before it, or after it."""
        async with money_transaction(self._database) as books:
            places = {one.request_id: one.batch for one in asked}
            known = {found.request_id: found for found in await books.holds.locked(places)}
            if not known:
                return [HoldEnded(one.request_id) for one in asked]
            owners = await books.lock({found.tenant_id for found in known.values()})
            windows = {window for found in known.values() for window in found.budgets}
            budgets = await books.budgets.windows(windows) if windows else []
            grants = await _restricted(books, owners)
            now = await books.now() if grants else 0
            decisions = HoldDecider(now, owners, (), budgets, self.currencies, grants=grants)
            answers: list[Hold | Exception] = []
            for one in asked:
                answer = decisions.top_up(one, known.get(one.request_id))
                if isinstance(answer, Hold):
                    known[one.request_id] = answer
                answers.append(answer)
            raised: dict[UUID, Hold] = {}
            if decisions.raised:
                raised = {one.request_id: one for one in await books.holds.amend(decisions.raised.values())}
                await books.budgets.save(decisions.windows)
                balances = [owners[tenant].holding(more) for tenant, more in decisions.held.items()]
                await books.save(balances, grants=decisions.grants)
        return [
            msgspec.structs.replace(answer, batch=raised[answer.request_id].batch)
            if isinstance(answer, Hold) and answer.request_id in raised
            else answer
            for answer in answers
        ]

    async def _decisions(
        self, books: MoneyTransaction, owners: Mapping[UUID, Balance], requests: Sequence[HoldRequest]
    ) -> HoldDecider:
        """The database's clock and what there is, budgets and grants included, of tenants that are locked."""
        now = await books.now()
        terms: list[BudgetLimit] = []
        windows: list[BudgetWindow] = []
        if tenants := _with_budgets(owners):
            terms = [one for one in await books.budgets.in_force(tenants) if any(map(one.is_for, requests))]
            if terms:
                windows = await books.budgets.opened([(one, one.starts_at(now)) for one in terms])
        return HoldDecider(now, owners, terms, windows, self.currencies, grants=await _restricted(books, owners))

    async def _learn_currencies(self, versions: set[int]) -> None:
        unknown = versions - self.currencies.keys()
        if unknown:
            query = select(price_version.c.id, price_version.c.currency)
            async with self._database.reading() as session:
                rows = await session.execute(query.where(one_of(self._database, price_version.c.id, unknown)))
            self.currencies |= {row.id: row.currency for row in rows}

    async def _sweep_some(self, now: int) -> int:
        async with money_transaction(self._database) as books:
            return await self._end(books, await books.holds.overdue(now, _SWEEP), "expired")

    async def _end(self, books: MoneyTransaction, places: Places, state: str) -> int:
        """End holds without usage, and let what they were reserved from be available; how many were open."""
        ended = await books.holds.end(places, state)
        found = await books.lock({some.tenant_id for some in ended})
        by_tenant: dict[UUID, list[EndedHolds]] = defaultdict(list)
        for some in ended:
            if some.tenant_id in found:
                by_tenant[some.tenant_id].append(some)
        grants = await books.grants({some.tenant_id for some in ended if some.counts_on_grants})
        balances: list[Balance] = []
        freed: list[OpenGrant] = []
        for tenant, some_ended in by_tenant.items():
            wallet = Wallet(found[tenant], [one for one in grants if one.tenant_id == tenant])
            release_holds(wallet, some_ended)
            balances.append(wallet.balance)
            freed += wallet.changed.values()
        await charge_budgets(books, BudgetCharges(ended))
        await books.save(balances, grants=freed)
        return sum(some.requests for some in ended)


def _with_budgets(owners: Mapping[UUID, Balance]) -> set[UUID]:
    return {tenant for tenant, owner in owners.items() if owner.budgets}


def _with_conditions(owners: Mapping[UUID, Balance]) -> set[UUID]:
    """Those of whom the balance alone does not say what is affordable."""
    return {tenant for tenant, owner in owners.items() if owner.budgets or owner.restricted}


async def _restricted(books: MoneyTransaction, owners: Mapping[UUID, Balance]) -> list[OpenGrant]:
    """What tenants that are locked have for one model or project only."""
    tenants = {tenant for tenant, owner in owners.items() if owner.restricted}
    return [one for one in await books.grants(tenants) if one.restricted] if tenants else []
