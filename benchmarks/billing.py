"""How fast money is reserved and settled: `python -m benchmarks.billing hot-tenant|settle|invoice --json OUT`.

`hot-tenant`: many clients of one tenant, each reserving, spooling (fsync) and going on, on a PostgreSQL of its own or
on SQLite; the settler works beside them. At the end everything is settled and `billing.audit` finds nothing wrong.

`settle`: a month of 200 tenants' events in the order of time, with the dedup, indexes, rollups and ledger that every
event gets, through `billing.settlement.settle` itself (the events' making is not counted; 2 % come twice).

`invoice`: the same events, then the largest tenant's month rated from events and from rollups, which must be equal.

`--keep DIR` leaves the filled PostgreSQL in a folder, so that `invoice --keep DIR` can be measured on it again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.settling import analyze, invoice_month, settle_month
from billing.audit import check
from billing.balances import Balances
from billing.hold_records import HoldRequest
from billing.holds import Holds
from billing.prices import PriceBook, PriceVersion
from billing.settler import Settler
from billing.spool import Spool
from billing.usage import Counts, Usage, UsageEvent
from storage import migrate
from storage.base import new_id
from storage.database import Database
from tests.servers import postgres_server

_SERVER = {"shared_buffers": "1GB", "max_wal_size": "8GB"}
"""What a database with two cores and some gigabytes is given; all else is PostgreSQL's default, fsync included."""

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
    }


async def settle_and_invoice(url: str, what: str, events: int, batch: int, settlers: int) -> dict[str, Any]:
    """Fill an empty database, and measure that; or, for the invoice, what one that is full takes."""
    filled = await migrate.current(url) is not None
    if filled and what == "settle":
        raise SystemExit("this database is full already: measure `invoice` on it, or settle into another folder")
    figures: dict[str, Any] = {}
    if not filled:
        figures = await settle_month(url, events, batch, settlers)
        await analyze(url)
    return figures | (await invoice_month(url) if what == "invoice" else {})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.billing", description=__doc__)
    parser.add_argument("what", choices=["hot-tenant", "settle", "invoice"])
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--settlers", type=int, default=2, help="how many settle at once")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep PostgreSQL's data here, and use what is there")
    options = parser.parse_args()

    def work(url: str) -> Coroutine[Any, Any, dict[str, Any]]:
        if options.what == "hot-tenant":
            return hot_tenant(url, options.clients, options.seconds)
        return settle_and_invoice(url, options.what, options.events, options.batch, options.settlers)

    if options.database == "postgresql":
        with postgres_server(options.keep, **_SERVER) as server:
            figures = uvloop.run(work(server.url))
    else:
        with tempfile.TemporaryDirectory() as folder:
            figures = uvloop.run(work(f"sqlite:///{folder}/bench.sqlite"))
    figures = {
        "benchmark": f"billing {options.what}",
        "database": options.database,
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
        **figures,
    }
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if figures["drained"] and not figures["findings"] else 1


if __name__ == "__main__":
    sys.exit(main())
