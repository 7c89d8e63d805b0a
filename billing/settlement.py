"""From the spool into the database: each event once, with its hold closed, its cost posted and rolled up, in one
transaction a batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from uuid import UUID

import msgspec

from billing import months
from billing.books import Books, Notice, Refusal, Written
from billing.hold_books import Ended
from billing.ledger import Balance, Transaction
from billing.money import format_pico
from billing.months import is_ordered_by_time
from billing.open_books import opened
from billing.periods import book_late
from billing.prices import PriceBook, PriceMissing, PriceVersion, UnknownPriceVersion
from billing.usage import Settlement, UsageEvent
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
    exist, its currency is another, its journal sequence belongs to another request) is kept in `refused_settlement`.
    Raises DatabaseUnavailable, and then nothing is written.
    """
    events: dict[UUID, UsageEvent] = {}
    releases = set()
    for record in records:
        if isinstance(record, UsageEvent):
            events.setdefault(record.id, record)
        else:
            releases.add(record.request_id)
    versions = await _versions(book, {event.price_version for event in events.values()})
    await months.ensure_for(database, filter(is_ordered_by_time, events))
    async with opened(database) as books:
        currencies = await books.currencies({event.tenant_id for event in events.values()})
        refused = {event.id: cause for event in events.values() if (cause := _untrue(event, versions, currencies))}
        true = [event for event in events.values() if event.id not in refused] if refused else list(events.values())
        new = await books.write_events(await book_late(books, true))
        written = {identity for some in new for identity in some.ids}
        if len(written) < len(true):
            refused |= await _not_there(books, {event.id for event in true} - written)
        settled = await books.holds.end(written, "settled")
        released = await books.holds.end(releases - written, "released")
        await _post(books, new, [*settled, *released], currencies)
        await refuse(books, [(events[identity], cause) for identity, cause in refused.items()])
    repeated = sum(isinstance(record, UsageEvent) for record in records) - len(written) - len(refused)
    return Settled(len(written), repeated, sum(ended.requests for ended in released), len(refused))


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


async def _post(books: Books, new: Sequence[Written], ended: Sequence[Ended], currencies: dict[UUID, str]) -> None:
    """Give back what was held, debit what was used, and write the entries: all that needs the balances."""
    given_back: dict[UUID, int] = defaultdict(int)
    for some in ended:
        given_back[some.tenant_id] += some.amount_pico
    used: dict[UUID, list[Written]] = defaultdict(list)
    for written in sorted(new, key=lambda written: written.period):
        used[written.tenant_id].append(written)
    balances: list[Balance] = []
    transactions: list[Transaction] = []
    notices: list[Notice] = []
    for tenant, before in (await books.lock(sorted(given_back.keys() | used.keys()))).items():
        after = before.holding(-given_back[tenant])
        for written in used[tenant]:
            after, entries = after.using(written.cost_pico)
            if entries:
                currency = currencies[tenant]
                transactions.append(Transaction(new_id(), tenant, currency, "usage", written.period, entries))
        balances.append(after)
        if after.overdraft and not before.overdraft:
            notices.append(Notice(new_id(), tenant, OVERDRAWN, _overdraft(after)))
    await books.save(balances, transactions, notices)


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


def _untrue(event: UsageEvent, versions: dict[int, PriceVersion], currencies: dict[UUID, str]) -> str | None:
    version, currency = versions.get(event.price_version), currencies.get(event.tenant_id)
    if version is None:
        return f"price version {event.price_version} does not exist"
    if currency is None:
        return "the tenant has no balance"
    if currency != version.currency:
        return f"the price is in {version.currency}, the balance in {currency}"
    if not is_ordered_by_time(event.id):
        return "its id is not a UUIDv7 of our time"
    return _mispriced(event, version)


def _mispriced(event: UsageEvent, version: PriceVersion) -> str | None:
    try:
        tier = version.context_from(event.usage.prompt, event.lane)
        cost = version.cost(event.usage, event.lane)
    except PriceMissing as error:
        return str(error)
    if (tier, cost) == (event.context_from, event.cost_pico):
        return None
    recorded = f"the cost is {event.cost_pico} in the context tier from {event.context_from}"
    return f"{recorded}, and recomputes to {cost} from {tier}"


async def _not_there(books: Books, identities: set[UUID]) -> dict[UUID, str]:
    """Of events that were not inserted, those that are not there either: their journal sequence was."""
    there = await books.events_there(identities)
    return dict.fromkeys(identities - there, "its replica and journal sequence belong to another request")
