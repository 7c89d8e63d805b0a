"""Settling a month of usage, and what its largest tenant's invoice then takes."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any
from uuid import UUID

from sqlalchemy import func, select, text

from benchmarks.traffic import PERIOD, Traffic
from billing.audit.checks import check
from billing.balances import Balances
from billing.prices import PriceBook
from billing.rating.usage_lines import Source, usage_lines
from billing.rollups import LIMB
from billing.settlement import Settled, settle
from billing.tables.money import balance, ledger_entry, rollup_hour, usage_event
from billing.usage import UsageEvent
from storage import migrate
from storage.database import Database

_MADE_AHEAD = 20  # batches; making events is not counted
_REPEATED = 50  # of so many batches one comes twice, as after a crash
_NO_HOLDS = "a tenant's holds did not each end once"  # these events never had any
_AUDITED = 1_000_000  # up to so many events are audited one by one, more by their sums


async def settle_month(url: str, count: int, batch: int, settlers: int) -> dict[str, Any]:
    """Events per second through `billing.settlement.settle`, by so many settlers at once, each as a gateway has one."""
    await migrate.upgrade(url)
    database = await Database.open(url)
    book = PriceBook(database)
    traffic = await Traffic.of(book, count)
    for tenant in traffic.tenants:
        await Balances(database).grant(tenant, 10**18, "USD")
    batches = traffic.batches(batch)
    done, spent, number = Settled(), 0, 0
    while made := list(islice(batches, _MADE_AHEAD)):
        given = []
        for events in made:
            given += [events, events] if number % _REPEATED == 0 else [events]
            number += 1
        began = time.perf_counter_ns()
        results = await asyncio.gather(*(_settler(database, book, iter(given), n, settlers) for n in range(settlers)))
        took = time.perf_counter_ns() - began
        spent += took
        done = sum(results, done)
        events_here = sum(map(len, made))
        _progress(f"{done.written:,} of {count:,} events, {events_here * 10**9 // took:,}/s")
    findings = await _findings(database, count)
    await database.close()
    return {
        "events": done.written,
        "repeated": done.repeated,
        "batch": batch,
        "settlers": settlers,
        "settled_per_s": done.written * 10**9 // spent,
        "findings": findings,
        "drained": done.written == count,
    }


async def _settler(
    database: Database, book: PriceBook, batches: Iterator[list[UsageEvent]], number: int, settlers: int
) -> Settled:
    done = Settled()
    for events in islice(batches, number, None, settlers):
        done += await settle(database, book, events)
    return done


async def invoice_month(url: str) -> dict[str, Any]:
    """Seconds to rate the largest tenant's month, from events and from rollups: the median of three."""
    database = await Database.open(url)
    book = PriceBook(database)
    tenant, requests = await _largest(database)
    figures: dict[str, Any] = {"events_of_tenant": requests}
    answers: dict[Source, Any] = {}
    sources: tuple[Source, ...] = ("events", "rollups")
    for source in sources:
        times = []
        for _ in range(3):
            began = time.perf_counter()
            answers[source] = await usage_lines(database, book, tenant, PERIOD, source=source)
            times.append(time.perf_counter() - began)
            _progress(f"invoice of {requests:,} events from {source}: {times[-1]:.3f} s")
        figures[f"invoice_from_{source}_s"] = round(statistics.median(times), 3)
    figures["lines"] = len(answers["events"])
    figures["equal"] = answers["events"] == answers["rollups"]
    await database.close()
    return {**figures, "drained": figures["equal"], "findings": 0}


async def analyze(url: str) -> None:
    """What autovacuum does within minutes, done at once."""
    database = await Database.open(url)
    async with database.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        await connection.execute(text("VACUUM ANALYZE" if database.dialect == "postgresql" else "ANALYZE"))
    await database.close()


async def _largest(database: Database) -> tuple[UUID, int]:
    requests = func.sum(rollup_hour.c.requests)
    query = select(rollup_hour.c.tenant_id, requests).group_by(rollup_hour.c.tenant_id)
    async with database.reading() as session:
        row = (await session.execute(query.order_by(requests.desc()).limit(1))).one()
    return row[0], int(row[1])


async def _findings(database: Database, count: int) -> int:
    if count <= _AUDITED:
        return sum(finding.what != _NO_HOLDS for finding in await check(database))
    cost = rollup_hour.c.cost_high, rollup_hour.c.cost_low
    async with database.reading() as session:
        events = (await session.execute(select(func.count(), func.sum(usage_event.c.cost_pico)))).one()
        rolled = (await session.execute(select(func.sum(rollup_hour.c.requests), *map(func.sum, cost)))).one()
        posted = await session.scalar(
            select(func.sum(ledger_entry.c.amount_pico)).where(ledger_entry.c.credit == "revenue")
        )
        debited = await session.scalar(select(func.sum(balance.c.debit)))
    sums = {int(events[1]), int(rolled[1]) * LIMB + int(rolled[2]), int(posted or 0), int(debited or 0)}
    return (events[0] != rolled[0]) + len(sums) - 1


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
