"""Settling a month of usage events, and rating its largest tenant's invoice."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any
from uuid import UUID

import msgspec
import uvloop
from sqlalchemy import func, literal, select, text

from benchmarks.processes import Processes, server_cpu_s
from benchmarks.traffic import PERIOD, Traffic
from billing.accounts.balances import Balances
from billing.calendar import period_bounds
from billing.events.rollups import LIMB
from billing.prices import PriceCatalog
from billing.rating.usage_lines import SumSource, usage_lines
from billing.receipts.day_files import close_days
from billing.settlement.settlement import Settled, settle
from billing.tables.books import usage_chain
from billing.tables.money import balance, ledger_entry, rollup_hour, usage_event
from billing.usage import UsageEvent
from billing.verification.audit import audit_money
from storage.database import migrate
from storage.database.base import Count
from storage.database.database import Database
from turnpike.processes import gateway

_MADE_AHEAD = 10  # batches of each settler; making events is not counted
_MAKE, _SETTLE = "make", "settle"
_REPEATED = 50  # of so many batches one comes twice, as after a crash
_NO_HOLDS = "a tenant's holds did not each end once"  # these events never had any
_AUDITED = 1_000_000  # up to so many events are audited one by one, more by their sums


class Share(msgspec.Struct, frozen=True):
    """What one settler does: of the traffic, in batches of this size, every so manyth."""

    url: str
    traffic: Traffic
    batch: int
    number: int
    settlers: int


class Done(msgspec.Struct, frozen=True):
    """What came of the batches that a settler was given last."""

    settled: Settled
    cpu_s: float


def settle_month(url: str, count: int, batch: int, settlers: int, server: int) -> dict[str, Any]:
    """Events per second through `billing.settlement.settlement.settle`, by so many processes at once, as gateway
    workers do.

    `server` is the database server's process. Beside the rate stand the CPU seconds that an event cost, which other
    load on the machine changes less.
    """
    traffic = asyncio.run(_prepare(url, count))
    crew = Processes(settlers, _process)
    crew.ask([Share(url, traffic, batch, number, settlers) for number in range(settlers)])
    done, spent, cpu_s, server_s = Settled(), 0, 0.0, 0.0
    while made := sum(crew.ask([_MAKE] * settlers)):
        began, before = time.perf_counter_ns(), server_cpu_s(server)
        answers = crew.ask([_SETTLE] * settlers)
        took = time.perf_counter_ns() - began
        server_s += server_cpu_s(server) - before
        cpu_s += sum(answer.cpu_s for answer in answers)
        done = sum((answer.settled for answer in answers), done)
        spent += took
        _progress(f"{done.written:,} of {count:,} events, {made * 10**9 // took:,}/s")
    return {
        "events": done.written,
        "repeated": done.repeated,
        "batch": batch,
        "settlers": settlers,
        "settled_per_s": done.written * 10**9 // spent,
        "cpu_us_per_event": {
            "settlers": round(cpu_s / done.written * 1e6, 1),
            "database": round(server_s / done.written * 1e6, 1),
        },
        "findings": asyncio.run(_findings(url, count)),
        "drained": done.written == count,
    }


async def _prepare(url: str, count: int) -> Traffic:
    await migrate.upgrade(url)
    database = await Database.open(url)
    traffic = await Traffic.of(PriceCatalog(database), count)
    for tenant in traffic.tenants:
        await Balances(database).grant(tenant, 10**18, "USD")
    await database.close()
    return traffic


def _process(pipe: Connection) -> None:
    uvloop.run(_settler(pipe))


async def _settler(pipe: Connection) -> None:
    """Make events when asked to, then settle them."""
    share: Share = pipe.recv()
    database = await Database.open(share.url)
    catalog = PriceCatalog(database)
    batches = share.traffic.batches(share.batch, share.number, share.settlers)
    gateway.tune_garbage_collector()
    pipe.send(None)
    given: list[list[UsageEvent]] = []
    number = 0
    while True:
        if pipe.recv() == _MAKE:
            made = list(islice(batches, _MADE_AHEAD))
            given = []
            for events in made:
                given += [events, events] if number % _REPEATED == 0 else [events]
                number += 1
            pipe.send(sum(map(len, made)))
        else:
            before = time.process_time()
            settled = sum([await settle(database, catalog, events) for events in given], Settled())
            pipe.send(Done(settled, time.process_time() - before))


async def invoice_month(url: str) -> dict[str, Any]:
    """Seconds to rate the largest tenant's month, from events and from rollups: the median of three."""
    database = await Database.open(url)
    catalog = PriceCatalog(database)
    tenant, requests = await _largest(database)
    figures: dict[str, Any] = {"events_of_tenant": requests}
    answers: dict[SumSource, Any] = {}
    sources: tuple[SumSource, ...] = ("events", "rollups")
    for source in sources:
        times = []
        for _ in range(3):
            began = time.perf_counter()
            answers[source] = await usage_lines(database, catalog, tenant, PERIOD, source=source)
            times.append(time.perf_counter() - began)
            _progress(f"invoice of {requests:,} events from {source}: {times[-1]:.3f} s")
        figures[f"invoice_from_{source}_s"] = round(statistics.median(times), 3)
    figures["lines"] = len(answers["events"])
    figures["equal"] = answers["events"] == answers["rollups"]
    await database.close()
    return {**figures, "drained": figures["equal"], "findings": 0}


def close_days_after(url: str) -> dict[str, Any]:
    """What the files of all tenants' days cost once their month is over, for each event."""
    return uvloop.run(_close_all_days(url))


async def _close_all_days(url: str) -> dict[str, Any]:
    database = await Database.open(url)
    async with database.reading() as session:
        tenants = list(await session.scalars(select(usage_chain.c.tenant_id).where(usage_chain.c.period == PERIOD)))
        events = await session.scalar(select(func.sum(usage_chain.c.events)).where(usage_chain.c.period == PERIOD))
    database.clock = literal(period_bounds(PERIOD)[1], Count())
    began, cpu = time.perf_counter(), time.process_time()
    for tenant in tenants:
        await close_days(database, tenant, PERIOD)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    await database.close()
    return {
        "filed": int(events or 0),
        "file_us_per_event": round(took / int(events or 1) * 1e6, 1),
        "file_cpu_us_per_event": round(cpu / int(events or 1) * 1e6, 1),
    }


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


async def _findings(url: str, count: int) -> int:
    database = await Database.open(url)
    found = await _checked(database) if count <= _AUDITED else await _summed(database)
    await database.close()
    return found


async def _checked(database: Database) -> int:
    return sum(finding.what != _NO_HOLDS for finding in await audit_money(database))


async def _summed(database: Database) -> int:
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
