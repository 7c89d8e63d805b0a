"""What leases add to a reservation: its latency with and without them, alone and with many at once, of one project.

`write`: each prompt is new. `read`: all read one lease of 6,000 tokens, in a conversation of 20 earlier positions.

    python -m benchmarks.lease_reserve --json OUT
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import uvloop

from audit_log.actors import acting_as
from benchmarks.processes import BENCHMARK
from billing.accounts.balances import Balances
from billing.holds.records import HoldRequest
from billing.prices import PriceCatalog, PriceVersion
from billing.reservation.hold_service import HoldService
from billing.reservation.hooked_holds import HookedHolds
from gateway.admission.cache_leases import LeaseHook, LeasePayer, LeaseRequest, lease_request
from gateway.metering.billable_usage import MeteringTerms, pack
from prompt_cache.promise.directives import Breakpoint, CachePlan
from prompt_cache.promise.lease_store import LeaseStore
from prompt_cache.promise.prefix_keys import PromptKeys
from storage.database import migrate
from storage.database.base import new_id
from storage.database.database import Database
from tests.servers import postgres_server

PRICES = {"uncached": "0.40", "read_automatic": "0.04", "output": "1.60", "read_5m": "0.04", "write_5m": "0.50"}
PROMPT, EARLIER = 6000, 20


class Desk:
    """A project that reserves."""

    def __init__(self, database: Database, price: PriceVersion) -> None:
        self.tenant, self.project = new_id(), new_id()
        self.price = price
        self.holds = HoldService(database)
        self.leased = HookedHolds(self.holds, LeaseHook(LeaseStore(database, 10**9)))
        self.shared = list(range(PROMPT))

    def request(self) -> HoldRequest:
        terms = pack(MeteringTerms("anthropic", 1, PROMPT))
        return HoldRequest(
            new_id(), self.tenant, self.project, self.tenant, "bench", "standard", self.price.id, 10**6, 600, "g", terms
        )

    def wish(self, request: HoldRequest, number: int | None) -> LeaseRequest:
        tokens = self.shared if number is None else [number % 2**31, *self.shared[1:]]
        keys = PromptKeys("bench", "digest", [(PROMPT, self.project.bytes * 2)], array("I", tokens))
        plan = CachePlan(
            rules="anthropic/*/1",
            automatic=False,
            read="marked",
            store="all",
            read_min=1,
            breakpoints=(Breakpoint(PROMPT, "5m"),),
            lookups=tuple(PROMPT - 100 * position for position in range(1, EARLIER)),
        )
        payer = LeasePayer(request.request_id, self.tenant, self.project, "standard")
        return lease_request(payer, plan, keys, MeteringTerms("anthropic", 1, PROMPT), self.price)

    async def reserve(self, kind: str, number: int) -> int:
        """Nanoseconds that one reservation took, keys included."""
        request, began = self.request(), time.perf_counter_ns()
        if kind == "plain":
            await self.holds.reserve(request)
        else:
            await self.leased.reserve(request, self.wish(request, number if kind == "write" else None))
        return time.perf_counter_ns() - began


async def measure(url: str, requests: int) -> dict[str, Any]:
    """The figures on one database."""
    await migrate.upgrade(url)
    database = await Database.open(url)
    desk = Desk(database, await PriceCatalog(database).set("bench", "USD", PRICES))
    await Balances(database).grant(desk.tenant, 10**18, "USD")
    number, figures = 0, {}
    for at_once in (1, 16, 64):
        for kind in ("plain", "write", "read"):
            took: list[int] = []
            await asyncio.gather(*(desk.reserve(kind, -1) for _ in range(at_once)))
            began = time.perf_counter()

            async def client(share: int, kind: str = kind, took: list[int] = took) -> None:
                nonlocal number
                for _ in range(share):
                    number += 1
                    took.append(await desk.reserve(kind, number + 10**6))

            await asyncio.gather(*(client(requests // at_once) for _ in range(at_once)))
            took.sort()
            figures[f"{kind} at {at_once}"] = {
                "p50_ms": round(took[len(took) // 2] / 1e6, 2),
                "p99_ms": round(took[len(took) * 99 // 100] / 1e6, 2),
                "per_s": round(len(took) / (time.perf_counter() - began)),
            }
    await database.close()
    return figures


def main() -> None:
    """Run it, and print or write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    with acting_as(BENCHMARK), postgres_server() as server, tempfile.TemporaryDirectory() as folder:
        figures["postgresql"] = uvloop.run(measure(server.url, arguments.requests))
        figures["sqlite"] = uvloop.run(measure(f"sqlite:///{folder}/bench.sqlite", arguments.requests))
    text = json.dumps(figures, indent=1)
    if arguments.json:
        arguments.json.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
