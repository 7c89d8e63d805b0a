"""From the spool into the database: each event once, with its hold closed, its cost posted and rolled up, in one
transaction a batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import msgspec

from billing import months, traits
from billing.books import Books, EventsThere, Notice, Refusal
from billing.budgets.use import BudgetUse, use_budgets
from billing.chain import batches
from billing.event_columns import EventColumns
from billing.event_rows import EventRows
from billing.holds.books import Ended
from billing.holds.ending import end_holds
from billing.ledger import Balance, Transaction
from billing.money import format_pico
from billing.months import is_ordered_by_time
from billing.open_books import opened
from billing.periods import book_late
from billing.prices import PriceBook, PriceVersion, UnknownPriceVersion
from billing.recomputation import untrue
from billing.rollups import Rolled, roll_up
from billing.traits import Traits
from billing.usage import Release, Settlement, UsageEvent
from billing.wallet import Cost, OpenGrant, Wallet
from storage.base import new_id
from storage.database import Database

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


async def settle(database: Database, book: PriceBook, records: Sequence[Settlement]) -> Settled:
    """Settle the records in one transaction. Any of them may come again, late or in any order, and counts once; what
    comes after its period closed is booked in the one that is open.

    A record that cannot be true (its cost does not recompute, its price version or its tenant's balance does not
    exist, its currency is another) is kept in `refused_settlement`. Raises DatabaseUnavailable, and then nothing is
    written.
    """
    events: dict[UUID, UsageEvent] = {}
    releases = set()
    for record in records:
        if isinstance(record, Release):
            releases.add(record.request_id)
        else:
            events.setdefault(record.id, record)
    repeated = sum(isinstance(record, UsageEvent) for record in records) - len(events)
    versions = await _versions(book, {event.price_version for event in events.values()})
    await months.ensure_for(database, filter(is_ordered_by_time, events))
    numbers = await traits.numbers(database, events.values())
    while True:
        try:
            async with opened(database) as books:
                done = await _settle(books, versions, numbers, list(events.values()), releases)
        except EventsThere:
            async with opened(database) as books:
                there = await books.events_there(events.keys())
            for identity in there:
                del events[identity]
            repeated += len(there)
        else:
            return done + Settled(repeated=repeated)


async def _settle(
    books: Books,
    versions: dict[int, PriceVersion],
    numbers: Mapping[Traits, int],
    events: Sequence[UsageEvent],
    releases: set[UUID],
) -> Settled:
    """Settle events that are not there yet. Raises EventsThere if one is."""
    currencies = await books.currencies({event.tenant_id.int: event.tenant_id for event in events}.values())
    columns = EventColumns(events)
    causes = untrue(columns, versions, currencies)
    refused = [(columns.events[place], cause) for place, cause in causes.items()]
    true = [event for place, event in enumerate(columns.events) if place not in causes] if causes else columns.events
    new = await book_late(books, true)
    if new is not columns.events:
        columns = EventColumns(new)
    rows = EventRows(columns, numbers)
    rolled, chained = await books.write_events(rows, lambda: (roll_up(columns), batches(rows)))
    await books.roll_up(rolled)
    await books.chain(chained)
    ids = [event.id for event in new]
    settled = await books.holds.end(ids, "settled")
    released = await books.holds.end(releases - set(ids), "released") if releases else []
    held = sum(ended.requests for ended in settled)
    late = await books.holds.budgets_of_ended(ids) if held < len(ids) else {}
    await _post(books, rolled, BudgetUse([*settled, *released], new, late, currencies))
    await refuse(books, refused)
    return Settled(written=len(new), released=sum(ended.requests for ended in released), refused=len(refused))


async def refuse(books: Books, records: Iterable[tuple[Settlement, str]]) -> None:
    """Keep records that cannot be settled, whole, with the cause of each."""
    await books.refuse(
        [
            Refusal(
                new_id(),
                record.id if isinstance(record, UsageEvent) else record.request_id,
                cause,
                msgspec.msgpack.encode(record),
            )
            for record, cause in records
        ]
    )


async def _post(books: Books, rolled: Sequence[Rolled], use: BudgetUse) -> None:
    """Give back what was held, debit what was used, and write the entries: all that needs the balances."""
    ended: dict[UUID, list[Ended]] = defaultdict(list)
    counted_on: set[UUID] = set()
    for some in use.ended:
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
    notices: list[Notice] = []
    owners = await books.lock(sorted(ended.keys() | used.keys()))
    grants: dict[UUID, list[OpenGrant]] = defaultdict(list)
    with_grants = used.keys() | {some.tenant_id for some in use.ended if some.counts_on_grants}
    for grant in await books.grants(with_grants & owners.keys()):
        grants[grant.tenant_id].append(grant)
    events = {event.id: event for event in use.spent if event.id in counted_on} if counted_on else {}
    changed: list[OpenGrant] = []
    for tenant, before in owners.items():
        wallet = Wallet(before, grants[tenant])
        paid = end_holds(wallet, ended[tenant], events, used[tenant])
        for period, costs in sorted(used[tenant].items()):
            entries = wallet.use([Cost(*of, pico) for of, pico in costs.items()], paid.get(period, {}))
            if entries:
                transactions.append(Transaction(new_id(), tenant, use.currencies[tenant], "usage", period, entries))
        after = wallet.balance
        balances.append(after)
        changed += wallet.changed.values()
        if after.overdraft and not before.overdraft:
            notices.append(Notice(new_id(), tenant, OVERDRAWN, _overdraft(after)))
    notices += await use_budgets(books, use)
    await books.save(balances, transactions, notices, changed)


def _overdraft(balance: Balance) -> str:
    told = {"available": format_pico(balance.available), "currency": balance.currency}
    return msgspec.json.encode(told).decode()


async def _versions(book: PriceBook, ids: set[int]) -> dict[int, PriceVersion]:
    found = {}
    for identity in ids:
        try:
            found[identity] = await book.version(identity)
        except UnknownPriceVersion:
            continue
    return found
