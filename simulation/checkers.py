"""What must hold in every world, whatever happened in it. A checker returns sentences; none of them is good.

I1 to I8 by the product's own audit, from the books alone. Beside it what only the outside knows: what clients saw, what
replicas computed, and what tenants were granted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator
from typing import Any
from uuid import UUID

from sqlalchemy import func, select

from billing.tables.money import balance, hold_batch, refused_settlement, usage_event
from billing.verification.audit import audit_money, counts_by_replica
from protocol.requests import Counts
from simulation.clients import Seen
from simulation.world import World
from storage.database.database import Database

_ENDS_WELL = ("stop", "length")


def request_of(seen: Seen) -> UUID | None:
    """The id of the request, by what the client was told."""
    _, _, number = seen.request.rpartition("-" if seen.request.startswith("chatcmpl") else "_")
    return UUID(number) if number else None


async def violations(world: World, database: Database) -> list[str]:
    """All that does not hold at the end of a world."""
    async with database.reading() as session:
        # all tenants: the world is theirs
        events = list((await session.execute(select(usage_event).order_by(usage_event.c.id))).all())
        held = (await session.execute(select(func.coalesce(func.sum(hold_batch.c.open), 0)))).scalar_one()
        balances = list((await session.execute(select(balance).order_by(balance.c.tenant_id))).all())
        refused = list((await session.execute(select(refused_settlement))).all())
    found = [f"audit: {finding.what}, {finding.subject}: {finding.detail}" for finding in await audit_money(database)]
    found += [f"a record was refused: {row.cause}" for row in refused]
    found += world.broken_rules
    found += [] if held == 0 else [f"{held} holds are open at the end"]
    found += _money(world, balances, events)
    found += _answers(world, events)
    found += _executions(world, events)
    unheard = {event.replica for event in events if not event.sequence}
    found += await _journals(world, database, world.powerless | unheard)
    return found


def _money(world: World, balances: Iterable[Any], events: Iterable[Any]) -> Iterator[str]:
    """No pico comes or goes: credit is what was granted, debit what events cost, nothing is held, nothing below 0."""
    cost: dict[Any, int] = defaultdict(int)
    for event in events:
        cost[event.tenant_id] += event.cost_pico
    granted = {account.tenant: account.granted for account in world.accounts}
    for row in balances:
        if row.credit != granted[row.tenant_id] or row.debit != cost[row.tenant_id] or row.held != 0:
            books = f"{row.credit}, {row.debit}, {row.held} held"
            yield f"{granted[row.tenant_id]} granted, {cost[row.tenant_id]} used; the balance is {books}"
        if row.credit - row.debit < 0:
            yield f"a prepaid balance is {row.credit - row.debit}"


def _answers(world: World, events: Iterable[Any]) -> Iterator[str]:
    """What a client saw the end of has one event that says the same; what it did not see, one at most."""
    by_id = {event.id: event for event in events if event.corrects is None}
    texts: dict[str, set[str]] = defaultdict(set)
    for seen in world.seen:
        if not seen.ended:
            yield f"a request never ended for its client: {seen}"
            continue
        request = request_of(seen)
        expected = world.expected_text(request, seen.most)
        if not expected.startswith(seen.text):
            yield f"a client read {seen.text!r} and not {expected!r}"
        event = by_id.get(request)
        if seen.ended == "whole":
            if seen.usage is None or event is None:
                yield f"a client was told its usage, and no event has it: {seen}"
            elif (seen.usage["prompt_tokens"], seen.usage["completion_tokens"]) != (
                event.uncached + event.read_automatic, event.output,
            ):  # fmt: skip
                yield f"a client was told {seen.usage}; its event says {event}"
            elif event.status != "ok" or seen.finish not in _ENDS_WELL:
                yield f"an answer was whole, its event says {event.status}, the client {seen.finish!r}"
            elif seen.text != world.expected_text(request, event.output):
                yield f"an answer is not what was billed: {seen.text!r}, {event.output} tokens of {expected!r}"
            if seen.key:
                texts[seen.key].add(f"{seen.request} {seen.text}")
        elif event is not None and not seen.key and event.output > seen.handed + 1:
            yield f"{event.output} tokens are billed, {seen.handed} were handed over: {seen}"
        elif seen.status >= 400 and event is not None and event.output:
            yield f"an error was answered and output billed: {seen} {event}"
    for seen in {seen.key: seen for seen in world.seen if seen.key and world.keeps_keys}.values():
        ran = [request for request, prompt in world.began.items() if world.reads(prompt, f"{seen.key}.")]
        well = [request for request in ran if (event := by_id.get(UUID(request))) and event.status == "ok"]
        if len(well) > 1:
            yield f"{len(well)} requests of one idempotency key ended well: {seen.key} {well}"
    for key, ends in texts.items():
        if len(ends) > 1 and world.keeps_keys:
            yield f"one idempotency key has several answers: {key} {sorted(ends)}"


def _executions(world: World, events: Iterable[Any]) -> Iterator[str]:
    """Each request that a replica began has one event, and nothing else has an event that says so. Each attempt whose
    end a journal has is in one event."""
    own: Counter[UUID] = Counter(event.id for event in events if event.corrects is None)
    for request, count in own.items():
        if count > 1:
            yield f"{count} events of request {request}"
    numbered = Counter((event.replica, event.sequence) for event in events if event.sequence)
    for sequence, count in numbered.items():
        if count > 1:
            yield f"{count} events have the sequence {sequence}"
    for event in events:
        if event.sequence and (str(event.id if event.corrects is None else event.corrects)) not in world.began:
            yield f"an event of what no replica began: {event.id}"
    for request in world.began:
        if UUID(request) not in own and request not in world.forgotten:
            yield f"a replica began {request}, and it has no event"


async def _journals(world: World, database: Database, without: Container[str]) -> list[str]:
    """The counts of all events of a replica are those of its journal, to the token. `without`: replicas whose journal
    was lost, or whose word on a request came too late: then its event has what the gateway saw."""
    found: list[str] = []
    books = {row.replica: row for row in await counts_by_replica(database)}
    for process in world.replicas:
        if process.replica is None or process.name in without:
            continue
        said = process.replica.journal.metrics()
        counts = {name: said[f"turnpike_engine_journal_{name}_tokens_total"] for name in Counts.__struct_fields__}
        requests = said["turnpike_engine_journal_requests_total"]
        row = books.get(process.name)
        if (requests, counts) != ((row.requests, row.counts) if row else (0, dict.fromkeys(counts, 0))):
            found.append(f"the journal of {process.name} has {requests} {counts}, the books have {row}")
    return found
