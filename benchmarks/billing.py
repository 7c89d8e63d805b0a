"""How fast money is reserved and settled: `python -m benchmarks.billing hot-tenant|settle|invoice --json OUT`.

`hot-tenant`: many clients of one tenant, each reserving, spooling (fsync) and going on, on a PostgreSQL of its own or
on SQLite; the settler works beside them. At the end everything is settled and `billing.audit` finds nothing wrong.

`settle`: events of 200 tenants in batches, with the dedup, indexes, rollups and ledger that every event gets, through
`billing.settlement.settle` itself (the events' making is not counted).

`invoice`: the same events, then the largest tenant's month summed from events and from rollups, which must be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import uvloop
from sqlalchemy import text

from billing.audit import check
from billing.balances import Balances
from billing.hold_records import HoldRequest
from billing.holds import Holds
from billing.prices import PriceBook, PriceVersion
from billing.reports import Source, usage_by_project_and_model
from billing.settlement import settle
from billing.settler import Settler
from billing.spool import Spool
from billing.usage import Counts, Usage, UsageEvent
from storage import migrate
from storage.base import new_id
from storage.database import Database
from tests.servers import postgres_server

PRICES = {"uncached": "0.40", "read_automatic": "0.04", "output": "1.60"}
TENANT, PROJECT, KEY = new_id(), new_id(), new_id()
USAGE = Usage(uncached=900, read={"automatic": 100}, output=50)


def _request(version: PriceVersion) -> HoldRequest:
    return HoldRequest(
        request_id=new_id(),
        tenant_id=TENANT,
        project_id=PROJECT,
        key_id=KEY,
        model=version.model,
        lane="standard",
        price_version=version.id,
        amount_pico=version.bound(1000, 200, lane="standard"),
        lifetime_s=600,
        gateway="bench",
        terms=b"x" * 100,
    )


def _percentile(sorted_ns: list[int], percent: int) -> float:
    return sorted_ns[min(len(sorted_ns) - 1, len(sorted_ns) * percent // 100)] / 1e6


async def hot_tenant(url: str, clients: int, seconds: float) -> dict[str, Any]:
    """Requests per second from the first reserve until the last is settled."""
    await migrate.upgrade(url)
    database = await Database.open(url)
    version = await PriceBook(database).set("bench", "USD", PRICES)
    await Balances(database).grant(TENANT, 10**18, "USD")
    holds = Holds(database)
    reserve_ns: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder), "bench")
        settler = Settler(database, spool)
        await settler.start()
        began = time.perf_counter()

        async def client() -> None:
            while time.perf_counter() - began < seconds:
                request = _request(version)
                asked = time.perf_counter_ns()
                hold = await holds.reserve(request)
                reserve_ns.append(time.perf_counter_ns() - asked)
                event = UsageEvent(
                    id=hold.request_id,
                    tenant_id=TENANT,
                    project_id=PROJECT,
                    key_id=KEY,
                    model=hold.model,
                    model_digest="digest",
                    lane=hold.lane,
                    price_version=version.id,
                    admitted_at=hold.admitted_at,
                    finished_at=hold.admitted_at,
                    period=hold.period,
                    status="ok",
                    reason="stop",
                    delivery="confirmed",
                    source="gateway",
                    replica="r",
                    sequence=0,
                    attempt=1,
                    counts=Counts(prompt=1000, computed=900, read_hbm=100, output=50),
                    usage=USAGE,
                    cost_pico=version.cost(USAGE, "standard"),
                )
                await spool.append(event)

        await asyncio.gather(*(client() for _ in range(clients)))
        drained = await settler.drain(600)
        elapsed = time.perf_counter() - began
        await settler.stop()
        await spool.close()
    findings = await check(database)
    await database.close()
    reserve_ns.sort()
    return {
        "clients": clients,
        "requests": len(reserve_ns),
        "reserve_and_settle_per_s": round(len(reserve_ns) / elapsed),
        "reserve_p50_ms": _percentile(reserve_ns, 50),
        "reserve_p99_ms": _percentile(reserve_ns, 99),
        "settled": settler.total.written,
        "drained": drained,
        "findings": len(findings),
        "cores": os.cpu_count(),
    }


def _events(version: PriceVersion, tenants: list[UUID], count: int, admitted_at: int, rng: random.Random) -> list[Any]:
    """Finished requests of some tenants, the first with the most, spread over the month before."""
    usages = [Usage(uncached=100 + n, read={"automatic": 64 * n}, output=10 + n) for n in range(50)]
    costs = [version.cost(usage, "standard") for usage in usages]
    counts = [Counts(prompt=u.prompt, computed=u.prompt, output=u.output) for u in usages]
    made = []
    for _ in range(count):
        tenant = tenants[min(int(rng.paretovariate(0.4)) - 1, len(tenants) - 1)]
        n = rng.randrange(len(usages))
        at = admitted_at + rng.randrange(27 * 24) * 3_600_000_000 + rng.randrange(3_600_000_000)
        made.append(
            UsageEvent(
                id=new_id(), tenant_id=tenant, project_id=tenant, key_id=tenant, model="bench", model_digest="digest",
                lane="standard", price_version=version.id, admitted_at=at, finished_at=at, period="2026-11",
                status="ok", reason="stop", delivery="confirmed", source="gateway", replica="r", sequence=0, attempt=1,
                counts=counts[n], usage=usages[n], cost_pico=costs[n],
            )
        )  # fmt: skip
    return made


async def settle_many(url: str, count: int, batch: int, *, invoice: bool) -> dict[str, Any]:
    """Events per second while settling; and if asked, how long a month's sums take."""
    await migrate.upgrade(url)
    database = await Database.open(url)
    book = PriceBook(database)
    version = await book.set("bench", "USD", PRICES)
    tenants = [new_id() for _ in range(200)]
    for tenant in tenants:
        await Balances(database).grant(tenant, 10**18, "USD")
    rng = random.Random(7)
    spent, written = 0, 0
    for start in range(0, count, batch):
        events = _events(version, tenants, min(batch, count - start), 1_793_500_000_000_000, rng)
        began = time.perf_counter_ns()
        written += (await settle(database, book, events)).written
        spent += time.perf_counter_ns() - began
    figures: dict[str, Any] = {"events": written, "batch": batch, "settled_per_s": round(written * 10**9 / spent)}
    if invoice:
        async with database.transaction() as session:
            await session.execute(text("ANALYZE"))
        answers: dict[Source, Any] = {}
        for source in ("events", "rollups"):
            times = []
            for _ in range(3):
                began = time.perf_counter()
                answers[source] = await usage_by_project_and_model(database, "2026-11", tenants[0], source=source)
                times.append(time.perf_counter() - began)
            figures[f"invoice_from_{source}_s"] = sorted(times)[1]
        figures["events_of_tenant"] = answers["events"][0].requests
        figures["equal"] = answers["events"] == answers["rollups"]
    unheld = "a tenant's holds did not each end once"  # none of the events had a hold
    findings = [f for f in await check(database) if f.what != unheld]
    await database.close()
    return {**figures, "findings": len(findings), "drained": written == count, "cores": os.cpu_count()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.billing", description=__doc__)
    parser.add_argument("what", choices=["hot-tenant", "settle", "invoice"])
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=10_000)
    options = parser.parse_args()

    def work(url: str) -> Coroutine[Any, Any, dict[str, Any]]:
        if options.what == "hot-tenant":
            return hot_tenant(url, options.clients, options.seconds)
        return settle_many(url, options.events, options.batch, invoice=options.what == "invoice")

    if options.database == "postgresql":
        with postgres_server() as server:
            figures = uvloop.run(work(server.url))
    else:
        with tempfile.TemporaryDirectory() as folder:
            figures = uvloop.run(work(f"sqlite:///{folder}/bench.sqlite"))
    figures = {
        "benchmark": f"billing {options.what}",
        "database": options.database,
        "load_average": os.getloadavg()[0],
        **figures,
    }
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if figures["drained"] and not figures["findings"] else 1


if __name__ == "__main__":
    sys.exit(main())
