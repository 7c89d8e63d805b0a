"""Settling: a batch of events becomes durable in one transaction, which also ends their holds, posts their costs to the
ledger, and adds them to rollups and hash chains. Each event counts once."""

from __future__ import annotations

import hashlib
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from uuid import UUID

import msgspec
import structlog
from sqlalchemy import select

from billing.events import partitions
from billing.events.columns import EventColumns, EventDimensions, dimension_ids
from billing.events.rollups import RollupDelta, roll_up
from billing.events.rows import EventRows
from billing.holds.store import Costs, EndedHolds, cost_key, open_hold, release_holds
from billing.integrity.hash_chain import chain_batches
from billing.ledger.entries import Balance, Transaction
from billing.ledger.wallet import ModelCost, OpenGrant, Wallet
from billing.money import format_pico
from billing.periods.periods import book_late
from billing.prices import PriceCatalog, PriceVersion, UnknownPriceVersion
from billing.settlement.event_validation import find_invalid_events
from billing.settlement.lost_attempt_events import attempt_id, lost_attempt_of
from billing.tables.money import usage_event, usage_fact
from billing.transaction.budget_charges import BudgetCharges, charge_budgets
from billing.transaction.money_transaction import (
    EventsAlreadyWritten,
    MoneyTransaction,
    OutboxMessage,
    RefusedSettlement,
)
from billing.transaction.opening import money_transaction
from billing.usage import Release, SpoolRecord, UsageEvent
from storage.database.base import new_id
from storage.database.database import Database, DatabaseUnavailable

log = structlog.get_logger(__name__)

OVERDRAWN = "balance.overdrawn"
"""The outbox topic of a tenant whose balance does not cover its usage and holds any more."""


class Settled(msgspec.Struct, frozen=True):
    """What became of a batch: events written, events that existed already, holds released, records refused."""

    written: int = 0
    repeated: int = 0
    released: int = 0
    refused: int = 0

    def __add__(self, other: Settled) -> Settled:
        return Settled(*map(operator.add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


async def settle(database: Database, catalog: PriceCatalog, records: Sequence[SpoolRecord]) -> Settled:
    """Settle the records in one transaction. A record may be repeated, late or out of order; it counts once. A record
    that comes after its period closed is booked in the open period. Of several attempts of a request the first to come
    is billed; the others are recorded as lost.

    A record that cannot be true (its cost does not recompute, its price version or its tenant's balance does not
    exist, its currency differs) is kept in `refused_settlement`, and its hold is released: nothing else would end it.
    Raises DatabaseUnavailable, and then nothing is written.
    """
    events = [record for record in records if isinstance(record, UsageEvent)]
    releases = {record.request_id: record.hold_batch for record in records if isinstance(record, Release)}
    columns = EventColumns(_one_attempt_per_request(events))
    versions = await _versions(catalog, set(columns.numbers["price_version"].tolist()))
    await partitions.ensure_partitions(database, columns.ids)
    ids = await dimension_ids(database, columns.kinds)
    while True:
        try:
            async with money_transaction(database) as money:
                kept, repeated = await _without_repeated_attempts(money, columns.events)
                if len(kept) < len(columns):
                    columns = EventColumns(kept)
                    releases |= {event.id: event.hold_batch for event in repeated}
                settled = await _settle(money, versions, ids, columns, releases)
        except EventsAlreadyWritten:
            async with money_transaction(database) as money:
                existing = await money.existing_attempts([event.id for event in columns.events])
            columns = EventColumns(_new_events(columns.events, existing))
            if columns.events:
                ids = await dimension_ids(database, columns.kinds)
        else:
            return settled + Settled(repeated=len(events) - len(columns))


def _one_attempt_per_request(events: list[UsageEvent]) -> list[UsageEvent]:
    """The events; of several attempts of a request the first stays the request's event, the others become lost ones."""
    attempts: dict[UUID, int] = {}
    for event in events:
        attempts.setdefault(event.id, event.attempt)
    if len(attempts) == len(events):
        return events
    return [
        lost_attempt_of(event) if event.is_request and event.sequence and event.attempt != attempts[event.id] else event
        for event in events
    ]


async def _without_repeated_attempts(
    money: MoneyTransaction, events: Sequence[UsageEvent]
) -> tuple[Sequence[UsageEvent], Sequence[UsageEvent]]:
    """The events to write, and those that repeat an attempt under another id and whose holds end all the same.

    One attempt can be recorded twice: as a lost attempt by whoever tried the request again, and as the request's end by
    whoever heard of it from the journal. The two events have different ids, so that no key keeps the second one out:
    who settles either holds a lock (`lock_attempts`) until the transaction ends.
    """
    other_ids = {
        event.id: event.corrects or attempt_id(event.id, event.attempt)
        for event in events
        if event.sequence and (not event.is_request or (event.source == "journal" and not event.cost_pico))
    }
    if not other_ids:
        return events, []
    await money.lock_attempts()
    attempts = await money.existing_attempts(set(other_ids.values()))
    repeated: dict[UUID, UsageEvent] = {}
    for event in events:
        if event.id in other_ids and attempts.get(other_ids[event.id]) == event.attempt:
            repeated[event.id] = event
        else:
            attempts.setdefault(event.id, event.attempt)
    return (
        [event for event in events if event.id not in repeated],
        [event for event in repeated.values() if event.is_request],
    )


def _new_events(events: Iterable[UsageEvent], existing: Mapping[UUID, int]) -> Iterator[UsageEvent]:
    """The events that are not in the database. One of another attempt than the existing event is yielded as a lost
    attempt: whoever recorded it did not know that the request was tried again."""
    for event in events:
        if event.id not in existing:
            yield event
        elif event.is_request and event.sequence and event.attempt != existing[event.id]:
            yield lost_attempt_of(event)


async def _settle(
    money: MoneyTransaction,
    versions: dict[int, PriceVersion],
    ids: Mapping[EventDimensions, int],
    columns: EventColumns,
    releases: Mapping[UUID, UUID | None],
) -> Settled:
    """Settle new events. Raises EventsAlreadyWritten if one exists."""
    currencies = await money.currencies([UUID(int=tenant) for tenant in {tenant for tenant, *_ in columns.owners}])
    causes = find_invalid_events(columns, versions, currencies)
    refused = [_refusal(columns.events[place], cause) for place, cause in causes.items()]
    of_refused = _holds_of([columns.events[place] for place in causes])
    if causes:
        columns = EventColumns(event for place, event in enumerate(columns.events) if place not in causes)
    columns = await book_late(money, columns)
    rows = EventRows(columns, ids)
    rolled, chained = await money.write_events(rows, lambda: (roll_up(columns), chain_batches(rows)))
    used = {event.id: event.hold_batch for event in columns.events if event.allowance is None}
    settled = await money.holds.end(used, "settled")
    unused = {request: batch for request, batch in {**of_refused, **releases}.items() if request not in used}
    allowances = _AllowanceUse(columns.events if len(used) < len(columns) else ())
    spent = await money.holds.spend(allowances.costs) if allowances.costs else []
    released = await money.holds.end(unused, "released")
    await money.roll_up(rolled)
    await money.chain(chained)
    unheld = len(used) > sum(group.requests for group in settled)
    ended = [*settled, *spent, *released]
    await _post(money, rolled, ended, columns.events, currencies, from_allowances=allowances.requests, unheld=unheld)
    await money.refuse(refused)
    return Settled(written=len(columns), released=sum(group.requests for group in released), refused=len(refused))


async def has_event(database: Database, request_id: UUID) -> bool:
    """Whether the usage of a request is settled. Raises DatabaseUnavailable."""
    async with database.reading() as session:
        # all tenants: a journal knows requests alone
        query = select(usage_fact.c.id).where(usage_fact.c.id == request_id)
        return (await session.execute(query)).scalar_one_or_none() is not None


class RequestTrace(msgspec.Struct, frozen=True):
    """What the books say of a request. `held`: its hold is open, so that its usage may still come. `billed`: it ended
    well, or something of it was paid for. Without either it came to nothing."""

    held: bool
    billed: bool


async def trace_of(database: Database, request_id: UUID) -> RequestTrace:
    """The trace of a request whose hold is a row of its own, none of an allowance. Raises DatabaseUnavailable."""
    # all tenants: the request's id says whose it is
    async with database.reading() as session:
        held = await open_hold(session, request_id) is not None
    async with database.reading() as session:  # only after that: usage is written by what ends the hold
        query = select(usage_event.c.status, usage_event.c.cost_pico).where(usage_event.c.id == request_id)
        row = (await session.execute(query)).one_or_none()
    return RequestTrace(held, row is not None and (row.status == "ok" or row.cost_pico > 0))


class _AllowanceUse:
    """What events take out of allowances: `costs` by tenant and allowance, and the number of `requests` by tenant."""

    def __init__(self, events: Iterable[UsageEvent]) -> None:
        self.costs: dict[tuple[UUID, UUID], int] = defaultdict(int)
        self.requests: dict[UUID, int] = defaultdict(int)
        for event in events:
            if event.allowance is not None:
                self.costs[event.tenant_id, event.allowance] += event.cost_pico
                self.requests[event.tenant_id] += 1


async def refuse_record(database: Database, record: SpoolRecord, cause: str) -> None:
    """Keep a record that cannot be settled, whole and once, and release its hold: nothing else would end it. Raises
    DatabaseUnavailable."""
    refusal = _refusal(record, cause)
    try:
        await _refuse(database, refusal, _holds_of([record]))
    except DatabaseUnavailable:
        raise
    except Exception:
        log.exception("the hold of a refused record cannot be released", request_id=str(refusal.request_id))
        await _refuse(database, refusal, {})


def _refusal(record: SpoolRecord, cause: str) -> RefusedSettlement:
    """The refusal, with the same id for each repetition of the record."""
    if isinstance(record, UsageEvent):
        kind, request, attempt = "event", record.id, record.attempt
    else:
        kind, request, attempt = "release", record.request_id, 0
    return RefusedSettlement(_id_of(f"{kind}/{request}/{attempt}"), request, cause, msgspec.msgpack.encode(record))


def _holds_of(refused: Sequence[SpoolRecord]) -> dict[UUID, UUID | None]:
    """The holds that these records would have ended: request → batch, if known."""
    holds: dict[UUID, UUID | None] = {}
    for record in refused:
        if isinstance(record, Release):
            holds[record.request_id] = record.hold_batch
        elif record.is_request and record.allowance is None:
            holds[record.id] = record.hold_batch
    return holds


def _id_of(name: str) -> UUID:
    return UUID(bytes=hashlib.sha256(name.encode()).digest()[:16], version=5)


class JournalEntry(msgspec.Struct, frozen=True, tag="journal_entry"):
    """An entry of a replica's journal about a request, under the journal's number. `said` is the whole entry, as it
    came."""

    replica: str
    sequence: int
    request: str
    said: bytes

    @property
    def request_id(self) -> UUID:
        """The request's id; all zeros for what is no UUID."""
        try:
            return UUID(self.request)
        except ValueError:
            return UUID(int=0)

    @property
    def id(self) -> UUID:
        """The id of the refused record: the same for each repetition of the entry."""
        return _id_of(f"{self.replica}/{self.sequence}/{self.request}")


async def refuse_entry(
    database: Database, entry: JournalEntry, cause: str, holds: Mapping[UUID, UUID | None] = {}
) -> None:
    """Keep a journal's entry from which nothing can be billed, whole and once, and release these holds (request →
    batch, if known): the journal may forget the entry after that. Raises DatabaseUnavailable."""
    cause = f"{entry.replica}'s journal, entry {entry.sequence} of request {entry.request[:64]!r}: {cause}"
    refusal = RefusedSettlement(entry.id, entry.request_id, cause, msgspec.msgpack.encode(entry))
    await _refuse(database, refusal, holds)


async def _refuse(database: Database, refusal: RefusedSettlement, holds: Mapping[UUID, UUID | None]) -> None:
    async with money_transaction(database) as money:
        released = await money.holds.end(holds, "released")
        await _post(money, [], released, [], {}, from_allowances={}, unheld=False)
        await money.refuse([refusal])


async def _post(
    money: MoneyTransaction,
    rolled: Sequence[RollupDelta],
    holds: Sequence[EndedHolds],
    new: Sequence[UsageEvent],
    currencies: Mapping[UUID, str],
    *,
    from_allowances: Mapping[UUID, int],
    unheld: bool,
) -> None:
    """Release what was held, debit what was used, and write the ledger's entries: all that needs locked balances.

    `from_allowances`: how many of each tenant's new events were held out of an allowance. `unheld`: some of the others
    come after their hold has ended.
    """
    ended: dict[UUID, list[EndedHolds]] = defaultdict(list)
    on_grants: set[UUID] = set()
    for group in holds:
        ended[group.tenant_id].append(group)
        if group.sources.grants:
            on_grants.update(group.ids)
    used: dict[UUID, Costs] = defaultdict(_no_costs)
    for row in rolled:
        used[row.tenant_id][row.period][row.project_id, row.model, 0] += row.cost_pico
    balances: list[Balance] = []
    transactions: list[Transaction] = []
    notices: list[OutboxMessage] = []
    owners = await money.lock(sorted(ended.keys() | used.keys()))
    grants: dict[UUID, list[OpenGrant]] = defaultdict(list)
    with_grants = used.keys() | {group.tenant_id for group in holds if group.sources.grants}
    for grant in await money.grants(with_grants & owners.keys()):
        grants[grant.tenant_id].append(grant)
    dated = _with_expired(grants, new)
    for tenant in dated:
        used[tenant] = _no_costs()
    for event in new if dated else ():
        if event.tenant_id in dated:
            used[event.tenant_id][event.period][cost_key(event, dated=True)] += event.cost_pico
    events = {event.id: event for event in new if event.id in on_grants} if on_grants else {}
    changed: list[OpenGrant] = []
    for tenant, before in owners.items():
        wallet = Wallet(before, grants[tenant])
        paid = release_holds(wallet, ended[tenant], events, used[tenant], dated=tenant in dated)
        for period, costs in sorted(used[tenant].items()):
            by_model = [ModelCost(project, model, pico, at) for (project, model, at), pico in costs.items()]
            entries = wallet.use(by_model, paid.get(period, {}))
            if entries:
                transactions.append(Transaction(new_id(), tenant, currencies[tenant], "usage", period, entries))
        after = wallet.balance.changed(holds=from_allowances.get(tenant, 0))
        balances.append(after)
        changed += wallet.changed.values()
        if after.overdraft and not before.overdraft:
            notices.append(OutboxMessage(new_id(), tenant, OVERDRAWN, _overdraft(after)))
    late = await _windows_of_late(money, owners, new) if unheld else {}
    notices += await charge_budgets(money, BudgetCharges(holds, new, late, currencies))
    await money.save(balances, transactions, notices, changed)


def _no_costs() -> Costs:
    return defaultdict(lambda: defaultdict(int))


def _with_expired(grants: Mapping[UUID, Sequence[OpenGrant]], new: Sequence[UsageEvent]) -> set[UUID]:
    """The tenants with grants that may have expired before some of these events were admitted."""
    expiring = [grant for of_tenant in grants.values() for grant in of_tenant if grant.expires_at is not None]
    latest = max((event.admitted_at for event in new), default=0) if expiring else 0
    return {grant.tenant_id for grant in expiring if grant.expired(latest)}


async def _windows_of_late(
    money: MoneyTransaction, owners: Mapping[UUID, Balance], new: Sequence[UsageEvent]
) -> dict[UUID, tuple[UUID, ...]]:
    """The windows of budgets of those of these events that come after their hold has ended."""
    limited = {tenant for tenant, owner in owners.items() if owner.budgets}
    ids = [event.id for event in new if event.tenant_id in limited] if limited else []
    return await money.holds.windows_of_ended(ids) if ids else {}


def _overdraft(balance: Balance) -> str:
    payload = {"available": format_pico(balance.available), "currency": balance.currency}
    return msgspec.json.encode(payload).decode()


async def _versions(catalog: PriceCatalog, ids: set[int]) -> dict[int, PriceVersion]:
    found = {}
    for identity in ids:
        try:
            found[identity] = await catalog.version(identity)
        except UnknownPriceVersion:
            continue
    return found
