"""Limits that are asked while a request's money is held: exact, and neither holds nor places are left behind."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from audit_log.actors import acting_as
from billing.accounts.budgets import BudgetSettings
from gateway.limits.limiter import KEEP_US, LEASE_US, Answer
from gateway.limits.redis_buckets import RedisBuckets
from tests.gateway.endpoints.test_rate_limits import BODY, SETTER, set_limits
from tests.gateway.limits.workers import PATIENT_S
from tests.gateway.stack import Stack, running_stack
from tests.servers import redis_server


@pytest.fixture
async def shared(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[Stack]:
    """A gateway whose limits are in a Redis of its own."""
    with redis_server() as server:
        buckets = RedisBuckets(server.url, LEASE_US, KEEP_US, timeout=PATIENT_S)
        async with running_stack(stocked_sqlite_url, tmp_path, model_folder, limit_buckets=buckets) as running:
            yield running


async def expects_room(stack: Stack) -> bool:
    key = await stack.tenancy.key(stack.public_id)
    return stack.gateway.services.limiter.expects_room(tenant=stack.tenant.id, project=stack.project.id, key=key.id)


async def held(stack: Stack) -> int:
    balance = await stack.balances.get(stack.tenant.id)
    assert balance is not None
    return balance.held


@pytest.mark.slow
async def test_only_who_has_a_tenth_left_is_asked_beside_its_hold(shared: Stack) -> None:
    shared.say("Hi")
    assert not await expects_room(shared), "without limits nobody is asked"
    await set_limits(shared, requests_per_minute=10, concurrent_requests=1_000)
    seen = []
    for _ in range(10):
        seen.append(await expects_room(shared))
        assert (await shared.post(BODY)).status_code == 200
    assert seen == [False] + [True] * 9, "the first asks what is left"
    assert not await expects_room(shared)
    assert (await shared.post(BODY)).status_code == 429
    await shared.settled(10)


async def test_it_is_exact_and_who_is_refused_gives_its_hold_back(
    shared: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty at once of twenty, all of them asked beside their holds."""
    monkeypatch.setattr(shared.gateway.services.limiter, "expects_room", lambda **of: True)
    shared.say("Hi")
    await set_limits(shared, requests_per_minute=20)
    began = time.monotonic()
    answers = await asyncio.gather(*(shared.post({**BODY, "stream": n % 2 == 0}) for n in range(40)))
    statuses = Counter(answer.status_code for answer in answers)
    refilled = int((time.monotonic() - began) / 3) + 1
    assert set(statuses) == {200, 429}
    assert 20 <= statuses[200] <= 20 + refilled
    for answer in answers:
        assert answer.headers["x-ratelimit-limit-requests"] == "20"
        if answer.status_code == 429:
            assert answer.json()["error"]["code"] == "rate_limit_exceeded"
            assert int(answer.headers["retry-after"]) >= 1
    assert len(shared.replica.runs) == statuses[200], "no replica heard of one that was refused"
    await shared.settled(statuses[200])


@pytest.mark.slow
async def test_who_cannot_pay_gives_its_place_back(shared: Stack) -> None:
    shared.say("Hi")
    await set_limits(shared, concurrent_requests=2, requests_per_minute=1_000)
    assert (await shared.post(BODY)).status_code == 200
    budgets, tenant = BudgetSettings(shared.database), shared.tenant.id
    with acting_as(SETTER):
        await budgets.set(tenant, "tenant", "", "day", limit_pico=1, currency="USD")
    for _ in range(3):
        assert await expects_room(shared)
        refused = await shared.post(BODY)
        assert refused.status_code == 402
        assert refused.headers["x-ratelimit-limit-requests"] == "1000"
    with acting_as(SETTER):
        await budgets.set(tenant, "tenant", "", "day", limit_pico=10**12, currency="USD")
    assert (await shared.post(BODY)).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("refused", [False, True])
async def test_no_replica_hears_of_a_request_before_its_limits_have_answered(
    shared: Stack, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.say("Hi")
    await set_limits(shared, requests_per_minute=2)
    for _ in range(2 if refused else 1):
        assert (await shared.post(BODY)).status_code == 200
    await shared.settled(2 if refused else 1)
    limiter = shared.gateway.services.limiter
    asked, may_answer, reserve = asyncio.Event(), asyncio.Event(), limiter.reserve

    async def late(*arguments: Any, **of: Any) -> Answer | None:
        answer = await reserve(*arguments, **of)
        asked.set()
        await may_answer.wait()
        return answer

    monkeypatch.setattr(limiter, "reserve", late)
    monkeypatch.setattr(limiter, "expects_room", lambda **of: True)
    runs = len(shared.replica.runs)
    running = asyncio.create_task(shared.post(BODY))
    await asked.wait()
    async with asyncio.timeout(60):
        while not await held(shared):  # noqa: ASYNC110  # the database tells nobody
            await asyncio.sleep(0.01)
    assert len(shared.replica.runs) == runs
    may_answer.set()
    assert (await running).status_code == (429 if refused else 200)
    assert len(shared.replica.runs) == runs + (not refused)
    await shared.settled(2)


@pytest.mark.slow
async def test_who_leaves_meanwhile_leaves_nothing_behind(shared: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.say("Hi")
    await set_limits(shared, concurrent_requests=1)
    assert (await shared.post(BODY)).status_code == 200
    await shared.settled(1)
    limiter = shared.gateway.services.limiter
    may_answer, reserve = asyncio.Event(), limiter.reserve

    async def late(*arguments: Any, **of: Any) -> Answer | None:
        answer = await reserve(*arguments, **of)
        await may_answer.wait()
        return answer

    with monkeypatch.context() as slow:
        slow.setattr(limiter, "reserve", late)
        slow.setattr(limiter, "expects_room", lambda **of: True)
        leaving = asyncio.create_task(shared.post({**BODY, "stream": True}))
        async with asyncio.timeout(60):
            while not await held(shared):  # noqa: ASYNC110  # the database tells nobody
                await asyncio.sleep(0.01)
        leaving.cancel()
        await asyncio.wait([leaving])
        await asyncio.sleep(0.1)
        may_answer.set()
        await shared.settled(1)
    assert (await shared.post(BODY)).status_code == 200, "its place is free"
