"""Reserving money at admission, all queued requests in one transaction: no tenant can overspend its balance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec
from sqlalchemy import select

from billing.budgets.windows import BudgetLimit, BudgetWindow
from billing.holds.batches import open_ids
from billing.holds.records import Hold, HoldRequest, TopUp, unpack
from billing.holds.store import BatchHints, EndedHolds, open_hold, release_holds
from billing.holds.store_postgresql import take_at_once
from billing.ledger.entries import Balance
from billing.ledger.wallet import OpenGrant, Wallet
from billing.prices import UnknownPriceVersion
from billing.reservation.decisions import HoldDecider, HoldEnded
from billing.reservation.hold_hooks import HoldHook, HookInput
from billing.tables.money import ended_hold, hold_batch, price_version
from billing.transaction.budget_charges import BudgetCharges, charge_budgets
from billing.transaction.money_transaction import MoneyTransaction
from billing.transaction.opening import money_transaction, money_transaction_in
from storage.database.batcher import MicroBatcher
from storage.database.database import Database, retried_after_conflict
from storage.database.sql_arrays import one_of

_MAX_BATCH = 500
_SWEEP = 1000
ALLOWANCE_OPEN_US = 2_000_000
"""For how many microseconds requests may take from an allowance."""
_ALLOWANCE_PART = 64
"""An allowance is at most the 64th part of what is available, so that little money lies idle in allowances; when little
is available, a tenant gets none."""


class HoldService:
    """Reserving, topping up and expiring. Settling and releasing are the settler's."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._batcher: MicroBatcher[HoldRequest, Hold] = MicroBatcher(self._reserve, _MAX_BATCH)
        self._top_ups: MicroBatcher[TopUp, Hold] = MicroBatcher(self._raise, _MAX_BATCH)
        self.currencies: dict[int, str] = {}
        """The currencies of the price versions that were asked for so far."""
        self._careful: set[UUID] = set()

    async def reserve(self, request: HoldRequest) -> Hold:
        """Reserve the amount, whole or not at all. The request's id must be new: nothing was ever reserved under it.

        Raises InsufficientFunds, CurrencyMismatch, UnknownPriceVersion, DatabaseUnavailable; after the last, or when
        the caller is cancelled, the hold may exist: release it or let it expire.
        """
        return await self._batcher.submit(request)

    async def top_up(self, held: Hold, amount_pico: int) -> Hold:
        """Raise an open hold to this amount, from the balance and all its budgets or not at all; one that is as high
        already stays. Returns it as it is now.

        Raises InsufficientFunds (of what is to be added), HoldEnded, InvalidMoney, DatabaseUnavailable; after the last,
        or when the caller is cancelled, it may have been raised: ask again, or let the hold end.
        """
        return await self._top_ups.submit(TopUp(held.request_id, amount_pico, held.batch))

    async def reserve_allowance(self, request: HoldRequest, currency: str, least_pico: int) -> Hold | None:
        """Hold an allowance (`HoldRequest.for_many`), at most a 64th of what is available. None if that is less than
        `least_pico`, or if the tenant has budgets, or grants for one model or project, or a grant that expires while
        requests may take from the allowance: then the balance alone does not say what a request may cost.

        Raises DatabaseUnavailable; then, or when the caller is cancelled, it may exist: release it or let it expire.
        """
        tenant = request.tenant_id
        async with money_transaction(self._database) as money:
            owner = (await money.lock({tenant})).get(tenant)
            if owner is None or owner.currency != currency or owner.budgets or owner.restricted:
                return None
            now, grants = await money.now(), await money.grants({tenant})
            if any(grant.expired(now + ALLOWANCE_OPEN_US) and not grant.expired(now) for grant in grants):
                return None
            amount = min(request.amount_pico, Wallet(owner, grants).available(now) // _ALLOWANCE_PART)
            if amount < least_pico:
                return None
            reduced = msgspec.structs.replace(request, amount_pico=amount)
            hold = Hold.of(reduced, now)
            await money.holds.take([(reduced, hold)], {tenant: amount})
        return hold

    async def return_allowance(self, tenant: UUID, allowance: UUID, pico: int) -> None:
        """Make so much of an allowance available again. Raises DatabaseUnavailable; then it may be done, or not."""
        async with money_transaction(self._database) as money:
            freed = await money.holds.spend({(tenant, allowance): pico})
            owners = await money.lock({group.tenant_id for group in freed})
            await money.save([owners[group.tenant_id].holding(-group.amount_pico) for group in freed])

    async def currency(self, version: int) -> str:
        """The currency of a price version. Raises UnknownPriceVersion, DatabaseUnavailable."""
        await self._learn_currencies({version})
        if version not in self.currencies:
            raise UnknownPriceVersion(version)
        return self.currencies[version]

    async def get(self, request_id: UUID) -> Hold | None:
        """The request's hold, if it is open or ended without usage; None if its usage is settled, or it had no hold."""
        of = ended_hold.c
        async with self._database.reading() as session:
            if (found := await open_hold(session, request_id)) is not None:
                return found
            # all tenants: a journal knows requests alone
            ended = select(of.request, of.admitted_at, of.amount_pico, of.state).where(of.request_id == request_id)
            if (kept := (await session.execute(ended)).one_or_none()) is not None:
                return Hold.of(unpack(kept[0]), *kept[1:])
        return None

    async def open_of(self, gateway_epoch: str) -> dict[UUID, UUID]:
        """The requests, of all tenants, with open holds that this gateway epoch took: request → batch."""
        async with self._database.reading() as session:
            query = select(hold_batch.c.id, hold_batch.c.entries).where(hold_batch.c.gateway == gateway_epoch)
            rows = await session.execute(query)
            return {UUID(bytes=request): batch for batch, entries in rows for request in open_ids(entries)}

    async def sweep(self, now: int | None = None) -> int:
        """Expire open holds whose time had passed at `now` (the database's clock if absent); return how many.

        Holds of a gateway epoch that lives, or of which a journal may have requests, do not expire.
        """
        instant = await self._database.now() if now is None else now
        expired = 0
        while ended := await self._sweep_some(instant):
            expired += ended
        return expired

    async def give_back(self, epoch: str) -> int:
        """Release all open holds of a gateway epoch of which no journal has anything any more; return how many.
        Raises DatabaseUnavailable."""
        left = list((await self.open_of(epoch)).items())
        given_back = 0
        for at in range(0, len(left), _SWEEP):
            async with money_transaction(self._database) as money:
                given_back += await self._end(money, dict(left[at : at + _SWEEP]), "released")
        return given_back

    async def ping(self) -> None:
        """Raise DatabaseUnavailable unless the database of the holds answers."""
        await self._database.ping()

    async def close(self) -> None:
        """Finish what is being reserved; take no more requests."""
        await self._batcher.close()
        await self._top_ups.close()

    async def _reserve(self, requests: list[HoldRequest]) -> list[Hold | Exception]:
        """All in one statement on PostgreSQL, unless that is refused; else one by one, with everything locked.

        Requests of tenants who were refused lately, or have budgets or restricted grants, go one by one: else each
        would make the statement fail for all.
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
        async with money_transaction(self._database) as money:
            owners = await money.lock({request.tenant_id for request in requests})
            decisions = await self._decisions(money, owners, requests)
            answers = [decisions.decide(request) for request in requests]
            batches: dict[UUID, UUID] = {}
            if decisions.made:
                batches = await money.holds.take(decisions.made, decisions.held)
                await money.budgets.save(decisions.windows)
                await money.save((), grants=decisions.grants)
        self._careful = (
            (self._careful - owners.keys()) | decisions.short | decisions.expiring | _with_conditions(owners)
        )
        return _in_batches(answers, batches)

    @retried_after_conflict
    async def take_with(
        self, asked: Sequence[tuple[HoldRequest, HookInput]], hook: HoldHook[HookInput]
    ) -> list[Hold | Exception]:
        """Take holds in one transaction with a hook (`billing.reservation.hold_hooks`); each request has an input for
        it. Raises DatabaseUnavailable."""
        requests = [request for request, _ in asked]
        await self._learn_currencies({request.price_version for request in requests})
        async with self._database.transaction() as session:
            await session.execute(select(1))  # begins the transaction on the driver's connection
            money = await money_transaction_in(self._database, session)
            owners = await money.lock({request.tenant_id for request in requests})
            decisions = await self._decisions(money, owners, requests)
            hook_decisions = await hook.begin(session, decisions.now, [hook_input for _, hook_input in asked])
            answers: list[Hold | Exception] = []
            for request, hook_input in asked:
                changed = hook_decisions.decide(request, hook_input)
                answer = changed if isinstance(changed, Exception) else decisions.decide(changed)
                if isinstance(answer, Hold):
                    hook_decisions.took(hook_input)
                answers.append(answer)
            batches: dict[UUID, UUID] = {}
            if decisions.made:
                batches = await money.holds.take(decisions.made, decisions.held)
                await money.budgets.save(decisions.windows)
                await money.save((), grants=decisions.grants)
                await hook_decisions.save()
        return _in_batches(answers, batches)

    @retried_after_conflict
    async def decide_again(
        self, asked: Sequence[tuple[Hold, HookInput]], hook: HoldHook[HookInput]
    ) -> list[Hold | Exception]:
        """Let the hook decide the terms of open holds anew, all in one transaction. The amounts stay. Raises
        DatabaseUnavailable."""
        async with self._database.transaction() as session:
            await session.execute(select(1))  # begins the transaction on the driver's connection
            money = await money_transaction_in(self._database, session)
            locked = await money.holds.lock({hold.request_id: hold.batch for hold, _ in asked})
            holds = {hold.request_id: hold for hold in locked}
            await money.lock({hold.tenant_id for hold in holds.values()})
            hook_decisions = await hook.begin(session, await money.now(), [hook_input for _, hook_input in asked])
            answers: list[Hold | Exception] = []
            changed: dict[UUID, Hold] = {}
            for asking, hook_input in asked:
                hold = holds.get(asking.request_id)
                answer = HoldEnded(asking.request_id) if hold is None else hook_decisions.decide_again(hold, hook_input)
                if isinstance(answer, Hold):
                    hook_decisions.took(hook_input)
                    changed[answer.request_id] = answer
                answers.append(answer)
            reworded = {hold.request_id: hold for hold in await money.holds.reword(changed.values())}
            await hook_decisions.save()
        return [reworded[answer.request_id] if isinstance(answer, Hold) else answer for answer in answers]

    async def _raise(self, top_ups: list[TopUp]) -> list[Hold | Exception]:
        """All in one transaction. Whoever ends one of the holds at the same time does so before it, or after it."""
        async with money_transaction(self._database) as money:
            hints = {top_up.request_id: top_up.batch for top_up in top_ups}
            holds = {hold.request_id: hold for hold in await money.holds.lock(hints)}
            if not holds:
                return [HoldEnded(top_up.request_id) for top_up in top_ups]
            owners = await money.lock({hold.tenant_id for hold in holds.values()})
            windows = {window for hold in holds.values() for window in hold.budgets}
            budgets = await money.budgets.windows(windows) if windows else []
            now = await money.now()
            grants = await _deciding_grants(money, owners, now)
            decisions = HoldDecider(now, owners, (), budgets, self.currencies, grants=grants)
            answers: list[Hold | Exception] = []
            for top_up in top_ups:
                answer = decisions.top_up(top_up, holds.get(top_up.request_id))
                if isinstance(answer, Hold):
                    holds[top_up.request_id] = answer
                answers.append(answer)
            raised: dict[UUID, Hold] = {}
            if decisions.raised:
                raised = {hold.request_id: hold for hold in await money.holds.amend(decisions.raised.values())}
                await money.budgets.save(decisions.windows)
                balances = [owners[tenant].holding(more) for tenant, more in decisions.held.items()]
                await money.save(balances, grants=decisions.grants)
        return [
            msgspec.structs.replace(answer, batch=raised[answer.request_id].batch)
            if isinstance(answer, Hold) and answer.request_id in raised
            else answer
            for answer in answers
        ]

    async def _decisions(
        self, money: MoneyTransaction, owners: Mapping[UUID, Balance], requests: Sequence[HoldRequest]
    ) -> HoldDecider:
        """A decider with what tenants have whose balances are locked: budgets and grants included."""
        now = await money.now()
        limits: list[BudgetLimit] = []
        windows: list[BudgetWindow] = []
        if tenants := _with_budgets(owners):
            in_force = await money.budgets.in_force(tenants)
            limits = [limit for limit in in_force if any(map(limit.is_for, requests))]
            if limits:
                windows = await money.budgets.opened([(limit, limit.starts_at(now)) for limit in limits])
        return HoldDecider(
            now, owners, limits, windows, self.currencies, grants=await _deciding_grants(money, owners, now)
        )

    async def _learn_currencies(self, versions: set[int]) -> None:
        unknown = versions - self.currencies.keys()
        if unknown:
            query = select(price_version.c.id, price_version.c.currency)
            async with self._database.reading() as session:
                rows = await session.execute(query.where(one_of(self._database, price_version.c.id, unknown)))
            self.currencies |= {row.id: row.currency for row in rows}

    async def _sweep_some(self, now: int) -> int:
        async with money_transaction(self._database) as money:
            return await self._end(money, await money.holds.overdue(now, _SWEEP), "expired")

    async def _end(self, money: MoneyTransaction, hints: BatchHints, state: str) -> int:
        """End holds without usage, and make what they reserved available; return how many were open."""
        ended = await money.holds.end(hints, state)
        owners = await money.lock({group.tenant_id for group in ended})
        by_tenant: dict[UUID, list[EndedHolds]] = defaultdict(list)
        for group in ended:
            if group.tenant_id in owners:
                by_tenant[group.tenant_id].append(group)
        grants = await money.grants({group.tenant_id for group in ended if group.sources.grants})
        balances: list[Balance] = []
        freed: list[OpenGrant] = []
        for tenant, groups in by_tenant.items():
            wallet = Wallet(owners[tenant], [grant for grant in grants if grant.tenant_id == tenant])
            release_holds(wallet, groups)
            balances.append(wallet.balance)
            freed += wallet.changed.values()
        await charge_budgets(money, BudgetCharges(ended))
        await money.save(balances, grants=freed)
        return sum(group.requests for group in ended)


def _in_batches(answers: Sequence[Hold | Exception], batches: Mapping[UUID, UUID]) -> list[Hold | Exception]:
    return [
        msgspec.structs.replace(answer, batch=batches[answer.request_id]) if isinstance(answer, Hold) else answer
        for answer in answers
    ]


def _with_budgets(owners: Mapping[UUID, Balance]) -> set[UUID]:
    return {tenant for tenant, owner in owners.items() if owner.budgets}


def _with_conditions(owners: Mapping[UUID, Balance]) -> set[UUID]:
    """The tenants whose balance alone does not say what is affordable."""
    return {tenant for tenant, owner in owners.items() if owner.budgets or owner.restricted}


async def _deciding_grants(money: MoneyTransaction, owners: Mapping[UUID, Balance], now: int) -> list[OpenGrant]:
    """The grants of tenants whose balances are locked that decide what may be reserved, beside the balance: those for
    one model or project, and those whose time has passed."""
    return [grant for grant in await money.grants(owners.keys()) if grant.restricted or grant.expired(now)]
