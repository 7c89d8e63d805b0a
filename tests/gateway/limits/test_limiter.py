"""Limits that several gateways share: exact between processes, kept through deaths, and by each alone without Redis."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis

from gateway.limits import limiter as limiter_module
from gateway.limits.limiter import KEEP_US, LEASE_US, Asked, Limiter
from gateway.limits.operations import MICRO
from gateway.limits.redis_buckets import RedisBuckets
from storage.database.database import Database
from tenancy.rate_limits import LimitCache
from tests.awake import Awake
from tests.gateway.limits.workers import ASKED, PATIENT_S, Tenant, Workers
from tests.servers import RedisServer, redis_server
from tests.waiting import LONG_S


@pytest.fixture
async def database(fresh_sqlite_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(fresh_sqlite_url)
    yield opened
    await opened.close()


@pytest.fixture
async def tenant(database: Database) -> Tenant:
    return await Tenant.make(database)


@pytest.mark.slow
async def test_four_processes_with_500_requests_each_admit_exactly_what_the_limits_allow(
    tenant: Tenant, fresh_sqlite_url: str, redis_url: str
) -> None:
    """Places exactly, and requests with what refilled meanwhile, to the request."""
    workers = await asyncio.to_thread(Workers, 4, fresh_sqlite_url, redis_url, LEASE_US, 500)
    for limits, exact in (
        ({"concurrent_requests": 137}, 137),
        ({"requests_per_minute": 300}, 300),
        ({"requests_per_minute": 1_000, "concurrent_requests": 411}, 411),
    ):
        own = await Tenant.make(tenant.database)
        await own.limit(**limits)
        began = time.monotonic()
        admitted = sum(await asyncio.to_thread(workers.ask, own.subject))
        refilled = (time.monotonic() - began) * limits.get("requests_per_minute", 0) / 60
        if "concurrent_requests" in limits:
            assert admitted == exact
        else:
            assert exact <= admitted <= exact + refilled + 1
    await asyncio.to_thread(workers.end)


@pytest.mark.alone
@pytest.mark.slow
async def test_places_of_a_killed_worker_come_back(tenant: Tenant, fresh_sqlite_url: str, redis_url: str) -> None:
    lease_us = 2 * MICRO
    await tenant.limit(concurrent_requests=3)
    workers = await asyncio.to_thread(Workers, 1, fresh_sqlite_url, redis_url, lease_us, 5)
    assert await asyncio.to_thread(workers.ask, tenant.subject) == [3]
    limiter = tenant.limiter(redis_url, lease_us=lease_us)
    assert await tenant.admitted(limiter, 1) == []
    pid = workers.processes[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with Awake() as awake:
        while not await tenant.admitted(limiter, 1):
            assert awake.seconds < lease_us / MICRO + 1, "the places did not come back"
            await asyncio.sleep(0.1)
    await limiter.close()


@pytest.mark.slow
async def test_places_are_renewed_for_as_long_as_a_request_runs(
    tenant: Tenant, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter_module, "_RENEW_S", 0.05)
    await tenant.limit(concurrent_requests=1)
    buckets = RedisBuckets(redis_url, MICRO, KEEP_US, timeout=PATIENT_S)
    limiter = Limiter(LimitCache(tenant.database, tenant.bus), buckets, "w")
    await limiter.start()
    answer = await tenant.ask(limiter)
    assert answer.refusal is None
    await asyncio.sleep(1.5)
    assert (await tenant.ask(limiter)).refusal is not None
    await answer.permit.ended(UUID(answer.permit.request), 0)
    assert (await tenant.ask(limiter)).refusal is None
    await limiter.close()


@pytest.mark.alone
async def test_an_outage_is_short_of_neither_requests_nor_limits(tenant: Tenant) -> None:
    """Redis stops: the worker goes on with its share times 1.2, from what was left. Redis returns empty: it is charged
    with what was used."""
    await tenant.limit(requests_per_minute=60)
    with redis_server() as server:
        limiter, other = tenant.limiter(server.url, "w1", 0.5), tenant.limiter(server.url, "w2", 0.5)
        for one in (limiter, other):
            await one.start()
        for one in (other, limiter, other):
            await one.renew()  # in the end each has heard of the other
        assert len(await tenant.admitted(limiter, 30)) == 30
        assert len(await tenant.admitted(other, 10)) == 10
        server.stop()
        began = time.monotonic()
        with Awake() as awake:
            admitted = [len(await tenant.admitted(one, 100)) for one in (limiter, other)]
            assert awake.seconds < 3
        assert limiter.degraded
        refilled = int(2 * 1.2 * (time.monotonic() - began)) + 2
        # w1 saw 30 left when Redis was last asked, w2 saw 20: each has 0.6 of that
        assert 16 <= admitted[0] <= 18 + refilled
        assert 11 <= admitted[1] <= 12 + refilled
        for _ in range(25):  # probes fail meanwhile: none of them may fill the buckets again
            admitted[0] += len(await tenant.admitted(limiter, 5))
            await asyncio.sleep(0.1)
        assert admitted[0] <= 18 + 2 + 0.6 * (time.monotonic() - began) * 1.2
        server.start()
        await until_async(lambda: back(tenant, limiter))
        assert not limiter.degraded
        left = (await tenant.ask(other)).standing.levels[0].requests // MICRO
        elapsed = time.monotonic() - began
        assert left <= 60 - sum(admitted) + elapsed + 2, "what was used in the outage was not charged"
        for one in (limiter, other):
            await one.close()


@pytest.mark.parametrize(
    ("limits", "most"),
    [({"concurrent_requests": 1}, 1), ({"requests_per_minute": 3}, 3), ({"concurrent_requests": 9}, 10)],
)
async def test_limits_below_the_number_of_workers_are_kept_in_an_outage(
    tenant: Tenant, limits: dict[str, int], most: int
) -> None:
    """A fifth more at most, also where no worker's share is a whole one."""
    await tenant.limit(**limits)
    with redis_server() as server:
        limiters = [tenant.limiter(server.url, f"w{number}") for number in range(4)]
        for limiter in (*limiters, *limiters):
            await limiter.renew()  # in the end each has heard of all
        server.stop()
        admitted = [len(await tenant.admitted(limiter, 5)) for limiter in limiters]
        assert most * 0.8 <= sum(admitted) <= most, admitted
        for limiter in limiters:
            await limiter.close()


async def back(tenant: Tenant, limiter: Limiter) -> bool:
    await tenant.ask(limiter)
    return not limiter.degraded


@pytest.mark.slow
async def test_a_silent_redis_delays_a_request_by_its_timeout_and_soon_not_at_all(
    tenant: Tenant, redis: RedisServer
) -> None:
    await tenant.limit(requests_per_minute=1000)
    limiter = tenant.limiter(redis.url, timeout=0.05)
    assert (await tenant.ask(limiter)).refusal is None
    client = redis_client(redis.url)
    client.client_pause(1500)
    took = []
    for _ in range(20):
        began = time.monotonic()
        assert (await tenant.ask(limiter)).refusal is None
        took.append(time.monotonic() - began)
    assert limiter.degraded
    assert sorted(took)[len(took) // 2] < 0.02, took
    client.close()
    await until_async(lambda: back(tenant, limiter))
    await limiter.close()


def redis_client(url: str) -> Any:
    return redis.Redis.from_url(url)


async def test_a_flushed_script_is_loaded_again(tenant: Tenant, redis_url: str) -> None:
    await tenant.limit(requests_per_minute=2)
    limiter = tenant.limiter(redis_url)
    assert (await tenant.ask(limiter)).refusal is None
    client = redis_client(redis_url)
    client.script_flush()
    client.close()
    assert len(await tenant.admitted(limiter, 2)) == 1
    assert not limiter.degraded
    await limiter.close()


@pytest.mark.parametrize("shared", [True, False])
async def test_expected_tokens_are_reserved_and_actual_ones_settled(
    tenant: Tenant, redis_url: str, *, shared: bool
) -> None:
    """A conversation that reads from the cache reserves what is new; one that does not, everything."""
    await tenant.limit(input_tokens_per_minute=1_000_000)
    limiter = tenant.limiter(redis_url if shared else None)

    async def turn(tokens: int, uncached: int) -> int:
        """What the answer says is left after the reservation."""
        answer = await tenant.ask(limiter, [Asked(b"talk", tokens, 5)])
        part = UUID(answer.permit.request)
        answer.permit.began(part, b"talk", tokens, uncached)
        await answer.permit.ended(part, 5)
        return answer.standing.levels[0].input_tokens // MICRO

    def about(level: int) -> Any:
        return pytest.approx(level, abs=40_000)  # what refills while the test runs: 17 tokens a millisecond

    assert await turn(100_000, 100_000) == about(900_000)
    assert await turn(200_000, 100_000) == about(700_000)
    assert await turn(300_000, 100_000) == about(700_000)
    assert await turn(400_000, 400_000) == about(600_000)
    assert await turn(100_000, 100_000) == about(200_000)
    await limiter.close()


async def test_a_key_without_limits_asks_nobody(tenant: Tenant) -> None:
    """Redis is not even there."""
    limiter = tenant.limiter("redis://127.0.0.1:1/0")
    subject = tenant.subject
    assert subject.key_id is not None
    for _ in range(3):
        assert (
            await limiter.reserve(
                uuid4(), tenant=subject.tenant_id, project=subject.project_id, key=subject.key_id, asked=ASKED
            )
            is None
        )
    assert not limiter.degraded
    await limiter.close()


async def until_async(condition: Any) -> None:
    end = time.monotonic() + LONG_S
    while not await condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.05)


async def test_an_unexpected_error_does_not_end_the_renewing_of_places(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = Limiter(LimitCache(tenant.database, tenant.bus), None, "w")
    renewed, again = 0, asyncio.Event()

    async def renew() -> None:
        nonlocal renewed
        renewed += 1
        if renewed == 1:
            raise RuntimeError("unexpected")
        again.set()

    monkeypatch.setattr(limiter, "renew", renew)
    monkeypatch.setattr("gateway.limits.limiter._RENEW_S", 0.0)
    await limiter.start()
    try:
        async with asyncio.timeout(LONG_S):
            await again.wait()
    finally:
        await limiter.close()
