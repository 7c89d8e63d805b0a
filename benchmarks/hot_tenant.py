"""Many clients of one tenant: each reserves money, spools its usage (fsync) and goes on, while settlers settle it.

The clients are divided among gateway workers. Each worker is a process with its own connection pool, spool and settler,
as in production (`turnpike gateway` runs one for each core). Counting ends when the last usage is settled. Then the
clients ask for twice as much as there is money: exactly what is affordable may be admitted. At the end
`billing.verification.audit` must find nothing.

The CPU seconds of a request stand beside the rate, since other load on the machine changes them less.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import uvloop

from benchmarks.processes import Processes, server_cpu_s
from billing.accounts.balances import Balances
from billing.holds.records import Hold, HoldRequest
from billing.prices import PriceCatalog, PriceVersion
from billing.receipts.answer_receipts import AnswerDigests, ReceiptIssuer
from billing.receipts.signing_keys import ReceiptKeys
from billing.reservation.allowances import Allowances
from billing.reservation.decisions import InsufficientFunds
from billing.reservation.hold_service import HoldService
from billing.settlement.settler import Settler
from billing.spool.spool import Spool
from billing.usage import Counts, Usage, UsageEvent
from billing.verification.audit import audit_money
from storage.database import migrate
from storage.database.base import new_id
from storage.database.database import Database
from turnpike.processes import gateway

PRICES = {"uncached": "0.40", "read_automatic": "0.04", "output": "1.60"}
USAGE = Usage(uncached=900, read={"automatic": 100}, output=50)
COUNTS = Counts(prompt=1000, computed=900, read_hbm=100, output=50)
_ANSWER = AnswerDigests("0" * 64, ("0" * 64,))
"""What a gateway has computed while the answer was sent; it does not depend on who pays."""
_SCARCE = 2000
_PAIRS = 3
"""Runs without receipts, each followed by one with them."""
_DRAIN_S = 600


class Share(msgspec.Struct, frozen=True):
    """What one worker does: as a tenant, so many clients for so long, or until so many were asked for."""

    url: str
    name: str
    tenant: UUID
    price_version: int
    clients: int
    seconds: float = 0.0
    requests: int = 0
    receipts: bool = False


class Done(msgspec.Struct, frozen=True):
    """What came of a worker's share."""

    admitted: int
    refused: int
    settled: int
    drained: bool
    reserve_ns: list[int]
    cpu_s: float


class Worker:
    """One gateway worker without the HTTP."""

    def __init__(self, share: Share, database: Database, version: PriceVersion, spool: Spool) -> None:
        self._share = share
        self.allowances = Allowances(HoldService(database), spool, share.name)
        self._spool = spool
        self._project, self._key = new_id(), new_id()
        self._cost = version.cost(USAGE, "standard")
        # where money is scarce, a hold is what its request costs, so that what fits is known beforehand
        self._bound = self._cost if share.requests else version.bound(1000, 200, lane="standard")
        self._asked = 0
        self._issuer = ReceiptIssuer(ReceiptKeys(bytes(32))) if share.receipts else None
        self.refused = 0
        self.reserve_ns: list[int] = []

    async def run(self) -> None:
        """All clients, until time or requests are used up."""
        end = time.perf_counter() + self._share.seconds
        await asyncio.gather(*(self._client(end) for _ in range(self._share.clients)))

    async def _client(self, end: float) -> None:
        while self._asked < self._share.requests if self._share.requests else time.perf_counter() < end:
            self._asked += 1
            asked_ns = time.perf_counter_ns()
            try:
                hold = await self.allowances.reserve(self._request())
            except InsufficientFunds:
                self.refused += 1
                continue
            self.reserve_ns.append(time.perf_counter_ns() - asked_ns)
            event = self._event(hold)
            pending = None if self._issuer is None else self._issuer.prepare(event, _ANSWER)
            await self._spool.append(event)
            if pending is not None:
                pending.issue()
            self.allowances.ended(hold, event.cost_pico)

    def _request(self) -> HoldRequest:
        share = self._share
        return HoldRequest(
            request_id=new_id(), tenant_id=share.tenant, project_id=self._project, key_id=self._key, model="bench",
            lane="standard", price_version=share.price_version, amount_pico=self._bound, lifetime_s=600,
            gateway_epoch=share.name, terms=b"x" * 100,
        )  # fmt: skip

    def _event(self, hold: Hold) -> UsageEvent:
        return UsageEvent(
            id=hold.request_id, tenant_id=hold.tenant_id, project_id=hold.project_id, key_id=hold.key_id,
            model=hold.model, model_digest="digest", lane=hold.lane, price_version=hold.price_version,
            admitted_at=hold.admitted_at, finished_at=hold.admitted_at, period=hold.period, status="ok", reason="stop",
            delivery="confirmed", source="gateway", replica="r", sequence=0, attempt=1, counts=COUNTS, usage=USAGE,
            cost_pico=self._cost, hold_batch=hold.batch, allowance=hold.allowance,
        )  # fmt: skip


async def _work(share: Share) -> Done:
    database = await Database.open(share.url)
    version = await PriceCatalog(database).version(share.price_version)
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder), share.name)
        settler = Settler(database, spool)
        worker = Worker(share, database, version, spool)
        gateway.tune_garbage_collector()
        before = time.process_time()
        await settler.start()
        await worker.run()
        await worker.allowances.close()
        drained = await settler.drain(_DRAIN_S)
        cpu_s = time.process_time() - before
        await settler.stop()
        await spool.close()
    await database.close()
    admitted = len(worker.reserve_ns)
    return Done(admitted, worker.refused, settler.total.written, drained, worker.reserve_ns, cpu_s)


def _process(pipe: Connection) -> None:
    while True:
        pipe.send(uvloop.run(_work(pipe.recv())))


def receipts_in_pairs(url: str, clients: int, seconds: float, workers: int, server: int = 0) -> dict[str, Any]:
    """The rates of one tenant's requests without receipts and with one for each, by turns in the same database."""
    rich = new_id()
    version = asyncio.run(_prepare(url, rich, new_id()))
    rates: dict[bool, list[int]] = {False: [], True: []}
    cpu: dict[bool, list[float]] = {False: [], True: []}
    crew = Processes(workers, _process)
    drained = True
    for turn in range(2 * _PAIRS):
        receipts = bool(turn & 1)
        shares = [
            Share(url, f"g{turn}-{n}", rich, version, clients // workers, seconds=seconds, receipts=receipts)
            for n in range(workers)
        ]
        began = time.perf_counter()
        done = crew.ask(shares)
        requests = sum(one.admitted for one in done)
        rates[receipts].append(round(requests / (time.perf_counter() - began)))
        cpu[receipts].append(round(sum(one.cpu_s for one in done) / requests * 1e6, 1))
        drained = drained and all(one.drained for one in done)
    ratios = [on / off for off, on in zip(rates[False], rates[True], strict=True)]
    return {
        "clients": clients,
        "per_s_without": rates[False],
        "per_s_with": rates[True],
        "cpu_us_without": cpu[False],
        "cpu_us_with": cpu[True],
        "median_ratio": round(statistics.median(ratios), 3),
        "drained": drained,
        "findings": asyncio.run(_findings(url)),
    }


def hot_tenant(url: str, clients: int, seconds: float, workers: int, server: int = 0) -> dict[str, Any]:
    """The figures; `server` is the database server's process."""
    rich, scarce = new_id(), new_id()
    version = asyncio.run(_prepare(url, rich, scarce))

    def shares(tenant: UUID, **until: Any) -> list[Share]:
        return [Share(url, f"g{n}", tenant, version, clients // workers, **until) for n in range(workers)]

    busy, short = Processes(workers, _process), Processes(workers, _process)
    cpu_s, began = server_cpu_s(server), time.perf_counter()
    done = busy.ask(shares(rich, seconds=seconds))
    elapsed, cpu_s = time.perf_counter() - began, server_cpu_s(server) - cpu_s
    exhausted = short.ask(shares(scarce, requests=2 * _SCARCE // workers))
    findings = asyncio.run(_findings(url))
    reserve_ns = sorted(ns for one in done for ns in one.reserve_ns)
    requests = len(reserve_ns)
    return {
        "clients": clients,
        "workers": workers,
        "requests": requests,
        "reserve_and_settle_per_s": round(requests / elapsed),
        "reserve_p50_ms": reserve_ns[requests // 2] / 1e6,
        "reserve_p99_ms": reserve_ns[requests * 99 // 100] / 1e6,
        "cpu_us_per_request": {
            "workers": round(sum(one.cpu_s for one in done) / requests * 1e6, 1),
            "database": round(cpu_s / requests * 1e6, 1),
        },
        "settled": sum(one.settled for one in done),
        "affordable": _SCARCE,
        "admitted_of_twice_as_many": sum(one.admitted for one in exhausted),
        "drained": all(one.drained for one in (*done, *exhausted)),
        "findings": findings,
    }


async def _prepare(url: str, rich: UUID, scarce: UUID) -> int:
    await migrate.upgrade(url)
    database = await Database.open(url)
    version = await PriceCatalog(database).set("bench", "USD", PRICES)
    await Balances(database).grant(rich, 10**18, "USD")
    await Balances(database).grant(scarce, _SCARCE * version.cost(USAGE, "standard"), "USD")
    await database.close()
    return version.id


async def _findings(url: str) -> int:
    database = await Database.open(url)
    found = await audit_money(database)
    await database.close()
    return len(found)
