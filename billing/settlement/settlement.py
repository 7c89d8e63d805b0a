"""From the spool into the database: each event once, with its hold closed, its cost posted and rolled up, in one
transaction a batch."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from uuid import UUID

import msgspec
from sqlalchemy import select

from billing.events import columns as dimensions
from billing.events import partitions
from billing.events.columns import EventColumns, EventDimensions
from billing.events.rollups import RollupDelta, roll_up
from billing.events.rows import EventRows
from billing.holds.store import EndedHolds, release_holds
from billing.integrity.hash_chain import batches
from billing.ledger.entries import Balance, Transaction
from billing.ledger.wallet import ModelCost, OpenGrant, Wallet
from billing.money import format_pico
from billing.periods.periods import book_late
from billing.prices import PriceCatalog, PriceVersion, UnknownPriceVersion
from billing.settlement.event_validation import find_invalid_events
from billing.settlement.lost_attempt_events import attempt_id, lost_attempt_of
from billing.tables.money import usage_fact
from billing.transaction.budget_charges import BudgetCharges, charge_budgets
from billing.transaction.money_transaction import (
    EventsAlreadyWritten,
    MoneyTransaction,
    OutboxMessage,
    RefusedSettlement,
)
from billing.transaction.opening import money_transaction
from billing.usage import Release, Settlement, UsageEvent
from storage.database.base import new_id
from storage.database.database import Database

OVERDRAWN = "balance.overdrawn"
"""The outbox topic of a tenant who came to owe more than was promised to be covered."""


class Settled(msgspec.Struct, frozen=True):
    """What became of a batch: events written, events that were there already, holds given back, records refused."""

    written: int = 0
    repeated: int = 0
    released: int = 0
    refused: int = 0

    def __add__(self, other: Settled) -> Settled:
        return Settled(*(a + b for a, b in zip(_numbers(self), _numbers(other), strict=True)))


def _numbers(settled: Settled) -> tuple[int, ...]:
    return msgspec.structs.astuple(settled)


async def settle(database: Database, book: PriceCatalog, records: Sequence[Settlement]) -> Settled:
    """Settle the records in one transaction. Any of them may come again, late or in any order, and counts once; what
    comes after its period closed is booked in the one that is open. Of several attempts of a request the one that comes
    first is billed, the others are recorded as lost.

    A record that cannot be true (its cost does not recompute, its price version or its tenant's balance does not
    exist, its currency is another) is kept in `refused_settlement`, and its hold is given back: nothing else would end
    it. Raises DatabaseUnavailable, and then nothing is written.
    """
    given = [record for record in records if isinstance(record, UsageEvent)]
    given_back = [record for record in records if isinstance(record, Release)] if len(given) < len(records) else []
    releases = {release.request_id: release.hold_batch for release in given_back}
    columns = EventColumns(_once_a_request(given))
    versions = await _versions(book, set(columns.numbers["price_version"].tolist()))
    await partitions.ensure_partitions(database, columns.ids)
    numbers = await dimensions.numbers(database, columns.kinds)
    while True:
        try:
            async with money_transaction(database) as books:
                kept, in_vain = await _once_an_attempt(books, columns.events)
                if len(kept) < len(columns):
                    columns = EventColumns(kept)
                    releases |= {event.id: event.hold_batch for event in in_vain}
                done = await _settle(books, versions, numbers, columns, releases)
        except EventsAlreadyWritten:
            async with money_transaction(database) as books:
                there = await books.existing_attempts([event.id for event in columns.events])
            columns = EventColumns(_not_there(columns.events, there))
            if columns.events:
                numbers = await dimensions.numbers(database, columns.kinds)
        else:
            return done + Settled(repeated=len(given) - len(columns))


def _once_a_request(events: list[UsageEvent]) -> list[UsageEvent]:
    """Of several attempts of a request that come together, the first as the request's event, the others as lost."""
    attempts: dict[UUID, int] = {}
    for event in events:
        attempts.setdefault(event.id, event.attempt)
    if len(attempts) == len(events):
        return events
    return [
        lost_attempt_of(event)
        if event.corrects is None and event.sequence and event.attempt != attempts[event.id]
        else event
        for event in events
    ]


async def _once_an_attempt(
    books: MoneyTransaction, events: Sequence[UsageEvent]
) -> tuple[Sequence[UsageEvent], Sequence[UsageEvent]]:
    """Without those that say again what one attempt did: as a lost attempt, which who tried the request again
    recorded, and as the request's end, for which who was told of it by the journal took it. The latter of these apart:
    their holds end all the same. Whoever has some of these to settle does so alone until the transaction's end: they
    have two ids, so that no key would keep the second one out."""
    others = {
        event.id: attempt_id(event.id, event.attempt) if event.corrects is None else event.corrects
        for event in events
        if event.sequence and (event.corrects is not None or (event.source == "journal" and not event.cost_pico))
    }
    if not others:
        return events, []
    await books.lock_attempts()
    there = await books.existing_attempts(set(others.values()))
    again: dict[UUID, UsageEvent] = {}
    for event in events:
        if event.id in others and there.get(others[event.id]) == event.attempt:
            again[event.id] = event
        else:
            there.setdefault(event.id, event.attempt)
    return (
        [event for event in events if event.id not in again],
        [event for event in again.values() if event.corrects is None],
    )


def _not_there(events: Iterable[UsageEvent], there: Mapping[UUID, int]) -> Iterator[UsageEvent]:
    """The events that are not there yet. One of another attempt than the request's event is a lost attempt's: who has
    written it did not know that the request was tried again."""
    for event in events:
        if event.id not in there:
            yield event
        elif event.corrects is None and event.sequence and event.attempt != there[event.id]:
            yield lost_attempt_of(event)


async def _settle(
    books: MoneyTransaction,
    versions: dict[int, PriceVersion],
    numbers: Mapping[EventDimensions, int],
    columns: EventColumns,
    releases: Mapping[UUID, UUID | None],
) -> Settled:
    """Settle events that are not there yet. Raises EventsAlreadyWritten if one is."""
    currencies = await books.currencies([UUID(int=tenant) for tenant in {tenant for tenant, *_ in columns.owners}])
    causes = find_invalid_events(columns, versions, currencies)
    refused = [(columns.events[place], cause) for place, cause in causes.items()]
    if causes:
        columns = EventColumns(event for place, event in enumerate(columns.events) if place not in causes)
    columns = await book_late(books, columns)
    rows = EventRows(columns, numbers)
    rolled, chained = await books.write_events(rows, lambda: (roll_up(columns), batches(rows)))
    used = {event.id: event.hold_batch for event in columns.events if event.allowance is None}
    settled = await books.holds.end(used, "settled")
    in_vain = {event.id: event.hold_batch for event, _ in refused if event.corrects is None} if refused else {}
    unused = {request: batch for request, batch in {**in_vain, **releases}.items() if request not in used}
    drawn = _Drawn(columns.events if len(used) < len(columns) else ())
    spent = await books.holds.spend(drawn.costs) if drawn.costs else []
    released = await books.holds.end(unused, "released")
    await books.roll_up(rolled)
    await books.chain(chained)
    unheld = len(used) > sum(some.requests for some in settled)
    ended = [*settled, *spent, *released]
    await _post(books, rolled, ended, columns.events, currencies, drawn=drawn.requests, unheld=unheld)
    await refuse(books, refused)
    return Settled(written=len(columns), released=sum(some.requests for some in released), refused=len(refused))


async def has_event(database: Database, request_id: UUID) -> bool:
    """Whether the usage of a request is settled. Raises DatabaseUnavailable."""
    async with database.reading() as session:
        query = select(usage_fact.c.id).where(
            usage_fact.c.id == request_id
        )  # all tenants: a journal knows requests alone
        return (await session.execute(query)).scalar_one_or_none() is not None


class _Drawn:
    """Of events: what was held out of allowances. `costs` by tenant and allowance, `requests` by tenant."""

    def __init__(self, events: Iterable[UsageEvent]) -> None:
        self.costs: dict[tuple[UUID, UUID], int] = defaultdict(int)
        self.requests: dict[UUID, int] = defaultdict(int)
        for event in events:
            if event.allowance is not None:
                self.costs[event.tenant_id, event.allowance] += event.cost_pico
                self.requests[event.tenant_id] += 1


async def refuse(books: MoneyTransaction, records: Iterable[tuple[Settlement, str]]) -> None:
    """Keep records that cannot be settled, whole, with the cause of each."""
    await books.refuse(
        [
            RefusedSettlement(
                new_id(),
                record.id if isinstance(record, UsageEvent) else record.request_id,
                cause,
                msgspec.msgpack.encode(record),
            )
            for record, cause in records
        ]
    )


class JournalEntry(msgspec.Struct, frozen=True, tag="journal_entry"):
    """What a replica's journal says of a request: whose journal, under which number, the id, and `said`, all of it as
    it came."""

    replica: str
    sequence: int
    request: str
    said: bytes

    @property
    def request_id(self) -> UUID:
        """The request's id; 0 for what is no id."""
        try:
            return UUID(self.request)
        except ValueError:
            return UUID(int=0)

    @property
    def id(self) -> UUID:
        """The same however often the journal repeats the entry."""
        digest = hashlib.sha256(f"{self.replica}/{self.sequence}/{self.request}".encode()).digest()
        return UUID(bytes=digest[:16], version=5)


async def refuse_entry(
    database: Database, entry: JournalEntry, cause: str, holds: Mapping[UUID, UUID | None] = {}
) -> None:
    """Keep a journal's entry that nothing can be billed from, whole and once, and give back these holds (the batch of
    each, where that is known): the journal may forget it after that. Raises DatabaseUnavailable."""
    cause = f"{entry.replica}'s journal, entry {entry.sequence} of request {entry.request[:64]!r}: {cause}"
    async with money_transaction(database) as books:
        released = await books.holds.end(holds, "released")
        await _post(books, [], released, [], {}, drawn={}, unheld=False)
        await books.refuse([RefusedSettlement(entry.id, entry.request_id, cause, msgspec.msgpack.encode(entry))])


async def _post(
    books: MoneyTransaction,
    rolled: Sequence[RollupDelta],
    holds: Sequence[EndedHolds],
    new: Sequence[UsageEvent],
    currencies: Mapping[UUID, str],
    *,
    drawn: Mapping[UUID, int],
    unheld: bool,
) -> None:
    """Give back what was held, debit what was used, and write the entries: all that needs the balances.

    `drawn`: how many of each tenant's new events were held out of an allowance. `unheld`: some of the others come after
    their hold has ended.
    """
    ended: dict[UUID, list[EndedHolds]] = defaultdict(list)
    counted_on: set[UUID] = set()
    for some in holds:
        ended[some.tenant_id].append(some)
        if some.counts_on_grants:
            counted_on.update(some.ids)
    used: dict[UUID, dict[str, dict[tuple[UUID, str], int]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(int))
    )
    for row in rolled:
        used[row.tenant_id][row.period][row.project_id, row.model] += row.cost_pico
    balances: list[Balance] = []
    transactions: list[Transaction] = []
    notices: list[OutboxMessage] = []
    owners = await books.lock(sorted(ended.keys() | used.keys()))
    grants: dict[UUID, list[OpenGrant]] = defaultdict(list)
    with_grants = used.keys() | {some.tenant_id for some in holds if some.counts_on_grants}
    for grant in await books.grants(with_grants & owners.keys()):
        grants[grant.tenant_id].append(grant)
    events = {event.id: event for event in new if event.id in counted_on} if counted_on else {}
    changed: list[OpenGrant] = []
    for tenant, before in owners.items():
        wallet = Wallet(before, grants[tenant])
        paid = release_holds(wallet, ended[tenant], events, used[tenant])
        for period, costs in sorted(used[tenant].items()):
            entries = wallet.use([ModelCost(*of, pico) for of, pico in costs.items()], paid.get(period, {}))
            if entries:
                transactions.append(Transaction(new_id(), tenant, currencies[tenant], "usage", period, entries))
        after = wallet.balance.changed(holds=drawn.get(tenant, 0))
        balances.append(after)
        changed += wallet.changed.values()
        if after.overdraft and not before.overdraft:
            notices.append(OutboxMessage(new_id(), tenant, OVERDRAWN, _overdraft(after)))
    late = await _late(books, owners, new) if unheld else {}
    notices += await charge_budgets(books, BudgetCharges(holds, new, late, currencies))
    await books.save(balances, transactions, notices, changed)


async def _late(books: MoneyTransaction, owners: Mapping[UUID, Balance], new: Sequence[UsageEvent]) -> dict[UUID, str]:
    """The budgets of those of these events that come after their hold has ended."""
    limited = {tenant for tenant, owner in owners.items() if owner.budgets}
    ids = [event.id for event in new if event.tenant_id in limited] if limited else []
    return await books.holds.budgets_of_ended(ids) if ids else {}


def _overdraft(balance: Balance) -> str:
    told = {"available": format_pico(balance.available), "currency": balance.currency}
    return msgspec.json.encode(told).decode()


async def _versions(book: PriceCatalog, ids: set[int]) -> dict[int, PriceVersion]:
    found = {}
    for identity in ids:
        try:
            found[identity] = await book.version(identity)
        except UnknownPriceVersion:
            continue
    return found
