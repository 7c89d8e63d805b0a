"""Holds in a money transaction: taking them, finding them, ending them. Each database says how rows are read and
written; what becomes of them is the same on both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TypeAlias
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.holds.batches import HoldBatch, HoldEntry, NewBatch, group_into_batches
from billing.holds.records import NO_SOURCES, Hold, HoldRequest, HoldSources
from billing.ledger.wallet import ModelCost, Wallet
from billing.tables.money import hold_batch
from billing.usage import UsageEvent
from storage.database.base import new_id

Paid = dict[str, dict[UUID, int]]
"""What grants pay: billing period → grant → pico-units."""
CostKey = tuple[UUID, str, int]
"""Project, model and, if a grant had expired then, the instant of admission; else 0."""
Costs = dict[str, dict[CostKey, int]]
"""What was used: billing period → its key → pico-units."""
BatchHints: TypeAlias = Mapping[UUID, UUID | None]
"""Request → the batch of its hold, or None where the caller does not know it: then finding it takes longer."""

BATCH_COLUMNS = [hold_batch.c[name] for name in HoldBatch.__struct_fields__]
_number = attrgetter("int")


class EndedHolds(msgspec.Struct, frozen=True):
    """Holds of one tenant, from the same sources, that ended now: how many, and of what amount together. `ids` are
    their requests, where they have sources beside the balance."""

    tenant_id: UUID
    requests: int
    amount_pico: int
    sources: HoldSources = NO_SOURCES
    ids: Collection[UUID] = ()

    @property
    def of_balance(self) -> int:
        """What they held together of the balance."""
        return self.amount_pico - self.requests * self.sources.granted_pico


class UnusedHold(msgspec.Struct, frozen=True):
    """A hold that ended without usage, with its request: what a row of `ended_hold` says."""

    hold: Hold
    request: HoldRequest


def release_holds(
    wallet: Wallet,
    ended: Iterable[EndedHolds],
    events: Mapping[UUID, UsageEvent] = {},
    costs: Costs | None = None,
    *,
    dated: bool = False,
) -> Paid:
    """End a tenant's holds. `events` are those with usage that counted on grants; what these pay for is taken off
    `costs`, and returned, for `Wallet.use` to book. `dated`: the keys of `costs` have the instants of admission."""
    paid: Paid = defaultdict(dict)
    for group in ended:
        wallet.balance = wallet.balance.holding(-group.of_balance)
        if not group.sources.grants:
            continue
        for request in group.ids:
            event = events.get(request)
            parts = wallet.end_hold(group.sources.grants, event.cost_pico if event is not None else 0)
            if event is not None and parts and costs is not None:
                costs[event.period][cost_key(event, dated=dated)] -= sum(parts.values())
                paid_in_period = paid[event.period]
                for grant, pico in parts.items():
                    paid_in_period[grant] = paid_in_period.get(grant, 0) + pico
    return paid


def cost_key(event: UsageEvent, *, dated: bool) -> CostKey:
    """Where the event's cost stands in `Costs`."""
    return event.project_id, event.model, event.admitted_at if dated else 0


async def open_hold(session: AsyncSession, request_id: UUID) -> Hold | None:
    """The hold of this request, if it is open."""
    # all tenants: a journal knows requests alone
    query = select(*BATCH_COLUMNS).where(hold_batch.c.first <= request_id, hold_batch.c.last >= request_id)
    for row in await session.execute(query):
        for hold in HoldBatch(*row).holds():
            if hold.request_id == request_id:
                return hold
    return None


class HoldStore(ABC):
    """The holds of a money transaction (`billing.transaction.money_transaction` states the order of locks)."""

    async def lock(self, hints: BatchHints) -> list[Hold]:
        """Those of the requests' holds that are open, locked until the end: before their balances, as whoever ends them
        does."""
        found = await self._lock_batches(hints, whole=True)
        return [hold for batch, ids in found for hold in batch.holds() if hold.request_id.bytes in ids]

    async def take(self, made: Sequence[tuple[HoldRequest, Hold]], held: Mapping[UUID, int]) -> dict[UUID, UUID]:
        """Write new holds, all of one instant, and add to what is `held` of locked balances: the database refuses what
        is not covered. Returns the batch of each request."""
        if not made:
            return {}
        new = group_into_batches(HoldEntry(request, hold.amount_pico, hold.sources) for request, hold in made)
        await self._write(new, made[0][1].admitted_at)
        count: dict[UUID, int] = {}
        for request, _ in made:
            count[request.tenant_id] = count.get(request.tenant_id, 0) + 1
        await self._hold_back([(tenant, pico, count[tenant]) for tenant, pico in held.items()])
        return {request: batch.id for batch in new for request in batch.ids}

    async def amend(self, changed: Collection[Hold]) -> list[Hold]:
        """Write locked holds with the amounts and sources that they have now; balances and grants are saved apart.
        Returns them: one from other sources than before has another batch."""
        amended: list[Hold] = []
        after: list[HoldBatch] = []
        wanted = {hold.request_id.bytes: hold for hold in changed}
        for batch in await self._read({hold.batch for hold in changed if hold.batch is not None}, whole=True):
            changes: dict[bytes, int | None] = {}
            requests = batch.open_requests()
            for id in batch.ids() & wanted.keys():
                hold = wanted[id]
                if hold.sources.encode() == batch.sources:
                    changes[id] = hold.amount_pico
                else:
                    changes[id] = None
                    entry = HoldEntry(requests[hold.request_id], hold.amount_pico, hold.sources)
                    (moved,) = group_into_batches([entry])
                    moved = msgspec.structs.replace(moved, id=new_id())  # the row that it leaves may have its own
                    await self._write([moved], batch.admitted_at)
                    hold = msgspec.structs.replace(hold, batch=moved.id)
                amended.append(hold)
            after.append(batch.amended(changes))
        await self._save(after)
        return amended

    async def reword(self, changed: Collection[Hold]) -> list[Hold]:
        """Write locked holds with the terms that they have now. Returns them: each is in a batch of its own, since
        those whom it was taken with keep their requests as they are."""
        reworded: list[Hold] = []
        after: list[HoldBatch] = []
        wanted = {hold.request_id.bytes: hold for hold in changed}
        for batch in await self._read({hold.batch for hold in changed if hold.batch is not None}, whole=True):
            requests = batch.open_requests()
            gone = batch.ids() & wanted.keys()
            for id in gone:
                hold = wanted[id]
                request = msgspec.structs.replace(requests[hold.request_id], terms=hold.terms)
                (moved,) = group_into_batches([HoldEntry(request, hold.amount_pico, hold.sources)])
                moved = msgspec.structs.replace(moved, id=new_id())  # the row that it leaves may have its own
                await self._write([moved], batch.admitted_at)
                reworded.append(msgspec.structs.replace(hold, batch=moved.id))
            after.append(batch.without(gone))
        await self._save(after)
        return reworded

    async def end(self, hints: BatchHints, state: str) -> list[EndedHolds]:
        """Close those of the requests' holds that are open, as `settled`, `released` or `expired`: each ends once."""
        if not hints:
            return []
        unused: list[UnusedHold] = []
        after: list[HoldBatch] = []
        totals: dict[tuple[UUID, str], tuple[int, int]] = {}
        ids_by_group: dict[tuple[UUID, str], list[UUID]] = {}
        for batch, ids in await self._lock_batches(hints, whole=state != "settled"):
            if state != "settled":
                requests = batch.open_requests()
                holds = [hold for hold in batch.holds() if hold.request_id.bytes in ids]
                unused += [UnusedHold(hold, requests[hold.request_id]) for hold in holds]
            rest = batch.without(ids)
            after.append(rest)
            group = (batch.tenant_id, batch.sources)
            count, amount = totals.get(group, (0, 0))
            totals[group] = count + len(ids), amount + batch.amount_pico - rest.amount_pico
            if batch.sources:
                ids_by_group.setdefault(group, []).extend(UUID(bytes=id) for id in ids)
        await self._save(after)
        if unused:
            await self._keep_unused(unused, state)
        return [
            EndedHolds(group[0], *total, HoldSources.decode(group[1]), ids_by_group.get(group, ()))
            for group, total in totals.items()
        ]

    async def _keep_unused(self, unused: Sequence[UnusedHold], state: str) -> None:
        """Keep what became of holds that ended without usage.

        A line of a batch is run again under the id of a request that had ended: its hold was no further one, and is
        counted among those that were taken no more.
        """
        again = await self._ended_before([one.hold.request_id for one in unused])
        if new := [one for one in unused if one.hold.request_id not in again]:
            await self._keep(new, state)
        count = Counter(one.hold.tenant_id for one in unused if one.hold.request_id in again)
        if count:
            await self._hold_back([(tenant, 0, -count[tenant]) for tenant in sorted(count)])

    async def spend(self, costs: Mapping[tuple[UUID, UUID], int]) -> list[EndedHolds]:
        """Take costs out of allowances, by tenant and allowance, as far as there is so much left. What is taken counts
        as ended, of no request: those that take from an allowance have no holds here."""
        after: list[HoldBatch] = []
        spent: list[EndedHolds] = []
        for batch in await self._read({allowance for _, allowance in costs}, whole=False):
            cost = costs.get((batch.tenant_id, batch.id), 0)
            rest = batch.amended({id: max(0, amount - cost) for id, amount in batch.amounts().items()})
            after.append(rest)
            spent.append(EndedHolds(batch.tenant_id, 0, batch.amount_pico - rest.amount_pico))
        await self._save(after)
        return spent

    async def overdue(self, now: int, most: int) -> dict[UUID, UUID]:
        """Open holds that had expired at `now`, each with its batch, of at most `most` batches. Holds that another
        transaction is ending are left out."""
        due: dict[UUID, UUID] = {}
        while not due and (batches := await self._overdue(now, most)):
            later: list[HoldBatch] = []
            for batch in batches:
                ends = {hold.request_id: hold.expires_at for hold in batch.holds()}
                due |= {request: batch.id for request, end in ends.items() if end <= now}
                if left := [end for end in ends.values() if end > now]:
                    later.append(msgspec.structs.replace(batch, expires_at=min(left)))
            await self._postpone(later)
        return due

    async def reserved(self, tenant: UUID) -> list[ModelCost]:
        """What each open hold of a tenant, whose balance is locked, counts on in the balance."""
        return [
            ModelCost(hold.project_id, hold.model, hold.amount_pico - hold.sources.granted_pico, hold.admitted_at)
            for batch in await self._open_of(tenant)
            for hold in batch.holds()
        ]

    async def windows_of_ended(self, requests: Collection[UUID]) -> dict[UUID, tuple[UUID, ...]]:
        """The windows of budgets of those of the requests whose holds were released or expired and had any."""
        texts = await self._sources_of_ended(requests)
        return {request: windows for request, text in texts if (windows := HoldSources.decode(text).windows)}

    @abstractmethod
    async def _open_of(self, tenant: UUID) -> list[HoldBatch]:
        """The tenant's whole batches, not locked."""

    @abstractmethod
    async def _sources_of_ended(self, requests: Collection[UUID]) -> list[tuple[UUID, str]]:
        """The sources of those of the requests' holds that were released or expired and had any."""

    @abstractmethod
    async def _ended_before(self, requests: Collection[UUID]) -> set[UUID]:
        """Those of the requests that have usage, or whose holds were released or expired."""

    async def _lock_batches(self, hints: BatchHints, *, whole: bool) -> list[tuple[HoldBatch, set[bytes]]]:
        """The batches of these holds, locked, each with those of the holds that are open there."""
        wanted = {request.bytes for request in hints}
        named = {batch for batch in hints.values() if batch is not None}
        around = await self._batches_around([request for request, batch in hints.items() if batch is None])
        batches = await self._read(named | around, whole=whole)
        found = _found(batches, wanted)
        # ended by now, or raised from other sources by someone whose answer was lost
        if moved := [request for request, batch in hints.items() if batch is not None and request.bytes in wanted]:
            others = await self._batches_around(moved) - {batch.id for batch in batches}
            found += _found(await self._read(others, whole=whole), wanted)
        return found

    async def _batches_around(self, requests: Sequence[UUID]) -> set[UUID]:
        """The batches that may have the holds of these requests."""
        if not requests:
            return set()
        numbers = sorted(map(_number, requests))
        found = await self._between(UUID(int=numbers[0]), UUID(int=numbers[-1]))
        return {id for id, first, last in found if _any_within(numbers, first.int, last.int)}

    async def _save(self, after: Iterable[HoldBatch]) -> None:
        after = list(after)
        if after:
            await self._change(
                [batch for batch in after if batch.open], [batch.id for batch in after if not batch.open]
            )

    @abstractmethod
    async def _between(self, least: UUID, greatest: UUID) -> list[tuple[UUID, UUID, UUID]]:
        """Id, first and last of the batches that may have ids between these."""

    @abstractmethod
    async def _read(self, batches: Collection[UUID], *, whole: bool) -> list[HoldBatch]:
        """These batches, locked in the order of their ids; with their requests, if `whole`."""

    @abstractmethod
    async def _overdue(self, now: int, most: int) -> list[HoldBatch]:
        """At most so many whole batches in which a hold may have expired, locked, but for those that others have."""

    @abstractmethod
    async def _write(self, new: Sequence[NewBatch], admitted_at: int) -> None:
        """Add these rows."""

    @abstractmethod
    async def _change(self, changed: Sequence[HoldBatch], gone: Sequence[UUID]) -> None:
        """Save what is open in some rows, and delete others."""

    @abstractmethod
    async def _postpone(self, batches: Sequence[HoldBatch]) -> None:
        """Save when these rows expire."""

    @abstractmethod
    async def _hold_back(self, held: Sequence[tuple[UUID, int, int]]) -> None:
        """Add an amount, and a number of holds, to what is held of each of these tenants' balances."""

    @abstractmethod
    async def _keep(self, ended: Sequence[UnusedHold], state: str) -> None:
        """Write holds that ended now, as rows of `ended_hold`."""


def _found(batches: Iterable[HoldBatch], wanted: set[bytes]) -> list[tuple[HoldBatch, set[bytes]]]:
    """Which of the wanted holds each batch has; they are wanted no more."""
    found = []
    for batch in batches:
        if ids := batch.ids() & wanted:
            wanted -= ids
            found.append((batch, ids))
    return found


def _any_within(numbers: Sequence[int], first: int, last: int) -> bool:
    """Whether any of the sorted numbers is one of these."""
    at = bisect_left(numbers, first)
    return at < len(numbers) and numbers[at] <= last
