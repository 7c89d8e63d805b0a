"""Throughput and correctness of money: `python -m benchmarks.billing hot-tenant|receipts|settle|invoice|kill`.

`hot-tenant`: many clients of one tenant. Each reserves money, spools its usage (fsync) and goes on. They run in several
gateway worker processes (`benchmarks.hot_tenant`), on a PostgreSQL of the benchmark's own or on SQLite.

`receipts`: the hot tenant without receipts and with one for each request, by turns.

`settle`: a month of usage events of 200 tenants, in the order of time, through `billing.settlement.settlement.settle`
with everything that an event gets: deduplication, indexes, rollups and ledger. Making the events is not counted. 2 % of
the events come twice. Then what the files of days take, which a worker makes afterwards.

`invoice`: the same events, then the largest tenant's month rated from the events and from the rollups, which must give
the same lines.

`kill`: `benchmarks.random_kills`.

`--keep DIR` keeps the filled PostgreSQL in a folder, so that `invoice --keep DIR` can measure on it again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvloop

from audit_log.actors import acting_as
from benchmarks.hot_tenant import hot_tenant, receipts_in_pairs
from benchmarks.processes import BENCHMARK
from benchmarks.random_kills import is_clean, kill
from benchmarks.settlement import analyze, close_days_after, invoice_month, settle_month
from storage.database import migrate
from tests.servers import postgres_server

_SERVER = {"shared_buffers": "1GB", "max_wal_size": "8GB"}
"""What a database with two cores and some gigabytes is given; all else is PostgreSQL's default, fsync included."""


def settle_and_invoice(url: str, what: str, events: int, batch: int, settlers: int, server: int) -> dict[str, Any]:
    """Fill an empty database, and measure that; or, for the invoice, what one that is full takes."""
    filled = asyncio.run(migrate.current(url)) is not None
    if filled and what == "settle":
        raise SystemExit("this database is full already: measure `invoice` on it, or settle into another folder")
    figures: dict[str, Any] = {}
    if filled:
        asyncio.run(migrate.upgrade(url))
    else:
        figures = settle_month(url, events, batch, settlers, server)
        asyncio.run(analyze(url))
        if what == "settle":
            figures |= close_days_after(url)
    return figures | (uvloop.run(invoice_month(url)) if what == "invoice" else {})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.billing", description=__doc__)
    parser.add_argument("what", choices=["hot-tenant", "receipts", "settle", "invoice", "kill"])
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--clients", type=int, help="default: 256, and 32 for kill")
    parser.add_argument("--workers", type=int, default=2, help="processes that share the clients")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=20_000, help="events that are settled at once")
    parser.add_argument(
        "--settlers", type=int, default=3, help="processes that settle at once: while one waits, others work"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep PostgreSQL's data here, and use what is there")
    options = parser.parse_args()

    def measure(url: str, server: int) -> dict[str, Any]:
        if options.what in ("hot-tenant", "receipts"):
            run = hot_tenant if options.what == "hot-tenant" else receipts_in_pairs
            return run(url, options.clients or 256, options.seconds, options.workers, server)
        return settle_and_invoice(url, options.what, options.events, options.batch, options.settlers, server)

    with acting_as(BENCHMARK):
        if options.what == "kill":
            figures = kill(options.seconds, options.clients or 32, progress=lambda text: print(text, file=sys.stderr))
        elif options.database == "postgresql":
            with postgres_server(options.keep, **_SERVER) as server:
                figures = measure(server.url, server.process_id)
        else:
            with tempfile.TemporaryDirectory() as folder:
                figures = measure(f"sqlite:///{folder}/bench.sqlite", 0)
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
    if options.what == "kill":
        return 0 if is_clean(figures) else 1
    return 0 if figures["drained"] and not figures["findings"] else 1


if __name__ == "__main__":
    sys.exit(main())
