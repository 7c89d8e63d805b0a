"""Allowances: money set aside for busy tenants, out of which requests are admitted without asking the database.

An allowance is a hold that a gateway worker has for a tenant and not for a request. While it is open, the worker takes
the holds of that tenant's requests out of it, in memory: what the database reserved cannot be spent twice, so the
bound of overspending stays 0. A usage event takes its cost out of the allowance in the transaction that debits the
balance; what the request did not need is free for the next. Requests carry their holds with them (`Hold.claim`), since
no row has them. An allowance whose worker dies ends as the worker's holds do.

Nothing is taken from an allowance after two seconds, or after the month: later requests are subject to the prices,
budgets and credit lines of their time. A tenant gets one only while many of its requests wait at once, or come within a
second, and much is available.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from uuid import UUID

import structlog

from billing.calendar import period_bounds
from billing.holds.records import Hold, HoldRequest
from billing.reservation.decisions import InsufficientFunds
from billing.reservation.hold_service import ALLOWANCE_OPEN_US, HoldService
from billing.spool.spool import Spool, SpoolUnavailable
from billing.usage import Release
from storage.database.base import new_id
from storage.database.database import DatabaseUnavailable

log = structlog.get_logger(__name__)

BUSY = 8
"""A tenant with so many requests that wait for their holds at once is busy."""
_STEADY = 4
"""So is one with so many times as many within a second: each would write to the database, and wait for who writes."""
_SECOND_NS = 1_000_000_000
_OPEN_NS = ALLOWANCE_OPEN_US * 1000
_IDLE_NS = 1_000_000_000
_AHEAD_NS = 500_000_000
"""An allowance is as large as what is taken in so much time."""
_FEW = 4
"""An allowance is for at least so many requests; the first is so many times what waits."""
_WORTH = 8
_AGAIN_NS = 1_000_000_000
"""After a tenant was given none, the next is asked for after so long."""
_SETTLE_S = 1
"""How long a request that money is short for waits for what is settled."""
_MOST_ENDED = 10_000
_TICK = timedelta(milliseconds=250)
_SURE_AFTER = 4
"""Once the database has answered for so many ticks, what it did late is done."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _now_ns() -> int:
    """Nanoseconds of a clock that runs on while the machine sleeps."""
    return time.clock_gettime_ns(_CLOCK)


class Allowance:
    """One allowance, and how much of it is free. `heard_ns`: our clock when the database answered with `held`."""

    def __init__(self, held: Hold, currency: str, heard_ns: int) -> None:
        self.id = held.request_id
        self.tenant_id = held.tenant_id
        self.currency = currency
        self.free = held.amount_pico
        self.worth = held.amount_pico // _WORTH
        """Free money of less than this is not returned before the allowance ends."""
        self.closed = False
        """Whether nothing more is taken from it."""
        self._low = held.amount_pico // 2
        self._taken: dict[UUID, int] = {}
        self._admitted_at = held.admitted_at
        self._heard_ns = heard_ns
        month_ns = (period_bounds(held.period)[1] - held.admitted_at) * 1000
        self._until_ns = heard_ns + min(_OPEN_NS, month_ns)
        self._short_ns = self._until_ns - _AHEAD_NS

    @property
    def unused(self) -> bool:
        """Whether every request that took from it has ended."""
        return not self._taken

    def is_over(self, now_ns: int) -> bool:
        """Whether its time has passed."""
        return now_ns >= self._until_ns

    def is_short(self, now_ns: int) -> bool:
        """Whether it is time to have another."""
        return self.free < self._low or now_ns >= self._short_ns

    def take(self, request: HoldRequest, now_ns: int) -> Hold | None:
        """The request's hold, admitted now by the database's clock; None if it does not fit."""
        amount = request.amount_pico
        if amount > self.free or now_ns >= self._until_ns:
            return None
        self.free -= amount
        self._taken[request.request_id] = amount
        admitted_at = self._admitted_at + (now_ns - self._heard_ns) // 1000
        return Hold.of(request, admitted_at, allowance=self.id)

    def end(self, request_id: UUID, cost: int) -> None:
        """Note that the request has ended and its cost is recorded; 0 if nothing was done for it."""
        amount = self._taken.pop(request_id, None)
        if amount is not None:
            self.free = max(0, self.free + amount - cost)


class _Owner:
    """A busy tenant's allowances, the oldest first, and how fast it takes from them."""

    def __init__(self, now_ns: int, taken: int, since_ns: int) -> None:
        self.allowances: list[Allowance] = []
        self.taken = taken
        """What its requests took since `since_ns`."""
        self.since_ns = since_ns
        self.used_ns = now_ns
        self.not_before_ns = 0
        self.asking: asyncio.Task[None] | None = None


class Allowances:
    """Holds for the requests of one gateway worker: out of allowances where there are any, else of `HoldService`."""

    def __init__(
        self,
        holds: HoldService,
        spool: Spool,
        gateway_epoch: str,
        *,
        busy: int = BUSY,
        settle: Callable[[int, int], Awaitable[bool]] | None = None,
        clock: Callable[[], int] = _now_ns,
    ) -> None:
        """`spool` is the worker's own, so that an allowance is released after the usage that was taken from it is
        settled. `busy`: how many requests of a tenant must wait for their holds at once before it gets an allowance, or
        how many times four must come within a second; 0: none ever does. `settle`: `Settler.settle_first` of this
        worker. `clock` is in nanoseconds."""
        self._holds = holds
        self._spool = spool
        self._gateway_epoch = gateway_epoch
        self._busy = busy
        self._settle = settle
        self._clock = clock
        self._ended: dict[UUID, int] = {}
        """How many records the spool had when the last request of each tenant was recorded."""
        self._owners: dict[UUID, _Owner] = {}
        self._open: dict[UUID, Allowance] = {}
        """Those that are not released yet, by id."""
        self._returning: dict[UUID, asyncio.Task[None]] = {}
        """What is being returned of each tenant's whose money is short."""
        self._returned: dict[UUID, int] = {}
        """How many allowances were returned so far of each of these tenants."""
        self._unsure: list[UUID] = []
        """Those of which nobody knows whether they were set aside."""
        self._waiting: dict[UUID, int] = {}
        self._second: dict[UUID, list[int]] = {}
        """How many holds each tenant asked the database for in this second, and what they hold together."""
        self._second_ns = 0
        self._watching: asyncio.Task[None] | None = None
        self._stopping = False

    def __len__(self) -> int:
        """How many allowances there are."""
        return len(self._open)

    async def reserve(self, request: HoldRequest) -> Hold:
        """As `HoldService.reserve`."""
        if (hold := self._take(request)) is not None:
            return hold
        tenant = request.tenant_id
        waiting = self._waiting[tenant] = self._waiting.get(tenant, 0) + 1
        try:
            if self._busy and (self._is_steady(request) or waiting >= self._busy):
                self._ask(request)
            return await self.reserve_beside(tenant, lambda: self._holds.reserve(request))
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]

    async def reserve_beside(self, tenant: UUID, reserve: Callable[[], Awaitable[Hold]]) -> Hold:
        """Reserve by `reserve`, not out of an allowance. If money is short, get back what lies in the tenant's
        allowances, settle its requests that have ended, and try once more."""
        unsettled, returned = self._unsettled(tenant), self._returned.get(tenant, 0)
        try:
            return await reserve()
        except InsufficientFunds:
            given_back = await self._give_back(tenant, returned)
            settled = await self._settle_ended(tenant, unsettled)
            if not (given_back or settled):
                raise
            return await reserve()

    def ended(self, hold: Hold, cost: int = 0) -> None:
        """Note that the request has ended: usage of this cost is in the spool, or nothing was done for it."""
        if hold.allowance is None:
            if len(self._ended) >= _MOST_ENDED:
                self._ended = {tenant: count for tenant, count in self._ended.items() if self._unsettled(tenant)}
            self._ended[hold.tenant_id] = self._spool.count
        elif (allowance := self._open.get(hold.allowance)) is not None:
            allowance.end(hold.request_id, cost)

    async def close(self) -> None:
        """Release the allowances that no request uses any more; the others end as holds do."""
        self._stopping = True
        asking = [owner.asking for owner in self._owners.values() if owner.asking is not None]
        await asyncio.gather(*asking, *self._returning.values(), return_exceptions=True)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for allowance in self._open.values():
            allowance.closed = True
        self._owners.clear()
        await self._tidy()

    # ------------------------------------------------ taking

    def _take(self, request: HoldRequest) -> Hold | None:
        owner = self._owners.get(request.tenant_id)
        if owner is None or not owner.allowances:
            return None
        now_ns = owner.used_ns = self._clock()
        owner.taken += request.amount_pico
        currency = self._holds.currencies.get(request.price_version)
        for allowance in owner.allowances:
            if allowance.currency == currency and (hold := allowance.take(request, now_ns)) is not None:
                if allowance is owner.allowances[-1] and allowance.is_short(now_ns):
                    self._ask(request)
                return hold
        self._ask(request)
        return None

    # ------------------------------------------------ setting aside

    def _is_steady(self, request: HoldRequest) -> bool:
        """Whether with this request so many of its tenant's come within a second that it is busy."""
        now_ns = self._clock()
        if now_ns - self._second_ns >= _SECOND_NS:
            self._second, self._second_ns = {}, now_ns
        asked = self._second.setdefault(request.tenant_id, [0, 0])
        asked[0] += 1
        asked[1] += request.amount_pico
        return asked[0] >= _STEADY * self._busy

    def _ask(self, request: HoldRequest) -> None:
        """Begin to reserve an allowance in the background; at most one at a time for a tenant."""
        owner, now_ns = self._owners.get(request.tenant_id), self._clock()
        if owner is None:
            _, taken = self._second.get(request.tenant_id, (0, 0))
            owner = self._owners[request.tenant_id] = _Owner(now_ns, taken, now_ns - _SECOND_NS)
        if owner.asking is not None or now_ns < owner.not_before_ns or self._stopping:
            return
        owner.not_before_ns = now_ns + _AGAIN_NS
        owner.asking = asyncio.create_task(self._set_aside(owner, request))
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    async def _set_aside(self, owner: _Owner, request: HoldRequest) -> None:
        least = _FEW * request.amount_pico
        soon = owner.taken * _AHEAD_NS // max(1, self._clock() - owner.since_ns)
        pico = max(least, soon, least * self._waiting.get(request.tenant_id, 0))
        lifetime_s = request.lifetime_s + _OPEN_NS // 10**9 + 1
        asked = HoldRequest.for_many(new_id(), request.tenant_id, pico, lifetime_s, self._gateway_epoch)
        try:
            currency = await self._holds.currency(request.price_version)
            held = await self._holds.reserve_allowance(asked, currency, least)
        except DatabaseUnavailable:  # it may be set aside all the same, and that as late as the database answers
            self._unsure.append(asked.request_id)
            return
        except Exception:
            log.exception("no money could be set aside", tenant=str(request.tenant_id))
            return
        finally:
            owner.asking = None
        if held is None:
            return
        now_ns = self._clock()
        allowance = self._open[held.request_id] = Allowance(held, currency, now_ns)
        owner.allowances.append(allowance)
        owner.not_before_ns = owner.taken = 0
        owner.since_ns = now_ns

    # ------------------------------------------------ giving back

    async def _watch(self) -> None:
        """As long as there are allowances, close those that are old or idle, and return what nobody needs."""
        answered = 0
        while self._open or self._owners or self._unsure:
            await asyncio.sleep(_TICK.total_seconds())
            now_ns = self._clock()
            answered = answered + 1 if self._unsure and await self._database_answers() else 0
            for tenant, owner in list(self._owners.items()):
                idle = now_ns - owner.used_ns > _IDLE_NS
                self._close(owner, [allowance for allowance in owner.allowances if idle or allowance.is_over(now_ns)])
                if not owner.allowances and owner.asking is None and now_ns >= owner.not_before_ns:
                    del self._owners[tenant]
            try:
                await self._tidy()
                if answered >= _SURE_AFTER:
                    await self._release_unsure()
            except Exception:
                log.exception("allowances could not be given back, trying again")

    def _close(self, owner: _Owner, allowances: Sequence[Allowance]) -> None:
        for allowance in allowances:
            allowance.closed = True
            owner.allowances.remove(allowance)

    async def _give_back(self, tenant: UUID, before: int) -> bool:
        """Return what is free in a tenant's allowances, since its money is short; whether there was anything, now or
        since `before` of them had been returned. All requests that were refused meanwhile wait for the same return."""
        returning = self._returning.get(tenant)
        if returning is None and self._returned.get(tenant, 0) == before:
            owner = self._owners.get(tenant)
            if owner is not None and owner.allowances:
                owner.not_before_ns = self._clock() + _AGAIN_NS
                self._close(owner, list(owner.allowances))
            allowances = [one for one in self._open.values() if one.tenant_id == tenant and one.free]
            if not allowances:
                return False
            returning = self._returning[tenant] = asyncio.create_task(self._return(tenant, allowances))
        if returning is not None:
            await asyncio.shield(returning)
        return self._returned.get(tenant, 0) != before

    async def _return(self, tenant: UUID, allowances: Sequence[Allowance]) -> None:
        try:
            for allowance in allowances:
                if await self._free(allowance):
                    self._returned[tenant] = self._returned.get(tenant, 0) + 1
        finally:
            del self._returning[tenant]

    def _unsettled(self, tenant: UUID) -> bool:
        """Whether a request of the tenant has ended and holds its money still, until it is settled."""
        return self._ended.get(tenant, 0) > self._spool.dealt_with

    async def _settle_ended(self, tenant: UUID, before: bool) -> bool:
        """Settle the tenant's requests that have ended; whether there were any, now or `before`."""
        if self._settle is None or not self._unsettled(tenant):
            return before
        return await self._settle(self._ended[tenant], _SETTLE_S)

    async def _tidy(self) -> None:
        """Return what is free in closed allowances, and release those that no request uses any more."""
        for allowance in [allowance for allowance in self._open.values() if allowance.closed]:
            if allowance.unused:
                try:
                    await self._spool.append(Release(allowance.id, "not needed any more", allowance.id))
                except SpoolUnavailable:
                    return  # again with the next tick
                del self._open[allowance.id]
            elif allowance.free >= allowance.worth:
                await self._free(allowance)

    async def _database_answers(self) -> bool:
        try:
            await self._holds.ping()
        except DatabaseUnavailable:
            return False
        return True

    async def _release_unsure(self) -> None:
        """Release what may have been set aside while the database did not answer. Nothing else would: these are holds
        of an epoch that lives."""
        while self._unsure:
            try:
                await self._spool.append(Release(self._unsure[0], "nobody knows whether it was set aside"))
            except SpoolUnavailable:
                return  # again with the next tick
            del self._unsure[0]

    async def _free(self, allowance: Allowance) -> bool:
        pico, allowance.free = allowance.free, 0
        if not pico:
            return False
        try:
            await self._holds.return_allowance(allowance.tenant_id, allowance.id, pico)
        except DatabaseUnavailable:  # it may be done: not twice; the rest comes back with the allowance's end
            return False
        return True
