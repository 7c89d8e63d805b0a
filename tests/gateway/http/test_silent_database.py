"""A database that does not answer: requests get 503 soon, and no hold is left when it answers again."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest

from gateway.services import GatewayOptions
from storage.database import migrate
from storage.database.circuit_breaker import CircuitBreaker
from storage.database.database import DatabaseUnavailable
from tests.gateway.fake_replica import Script
from tests.gateway.stack import Stack, quick_timeouts, running_stack
from tests.servers import PostgresServer, postgres_server

TIMEOUT_S = 0.5
REMEMBERED_S = 3600.0
"""For so long a key is remembered: what is asked of the database is money alone."""
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
OPTIONS = GatewayOptions(timeouts=quick_timeouts(), drain_timeout=5.0, database_timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    with postgres_server(fsync="off") as server:
        yield server


@pytest.fixture
async def on_postgres(own_postgres: PostgresServer, tmp_path: Path, model_folder: Path) -> AsyncIterator[Stack]:
    url = own_postgres.database_url("postgres")
    await migrate.upgrade(url)
    async with running_stack(url, tmp_path, model_folder, options=OPTIONS, key_ttl=REMEMBERED_S) as stack:
        yield stack


@contextmanager
def stopped(server: PostgresServer) -> Iterator[None]:
    """The server and all its backends stand still. A backend may end of itself before it is stopped."""
    processes = [psutil.Process(server.process_id)]
    try:
        processes[0].suspend()  # first, so that it starts no further backend
        processes += processes[0].children()
        for process in processes[1:]:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Another process writes to the SQLite database, and does not come to an end."""
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


async def assert_refused(stack: Stack, key: str | None = None) -> httpx.Response:
    """What a request is answered while the database is silent; that it is answered at all is the point."""
    async with asyncio.timeout(30):
        answer = await stack.post(BODY, key)
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["retry-after"]) >= 1
    assert "database" in answer.json()["error"]["message"]
    return answer


async def answered(stack: Stack) -> None:
    """Wait until a request is answered well: a busy machine's database may take longer than our timeout, too."""
    end = time.monotonic() + 30
    while (answer := await stack.post(BODY)).status_code != 200:
        assert time.monotonic() < end, answer.text
        await asyncio.sleep(0.1)


async def assert_recovered(stack: Stack) -> None:
    """Requests are answered again, every hold has ended, and what ended was given back once."""
    await answered(stack)
    end = time.monotonic() + 30
    while "open" in await stack.holds():
        assert time.monotonic() < end, await stack.holds()
        await asyncio.sleep(0.1)
    balance = await stack.balances.get(stack.tenant.id)
    assert balance is not None
    assert balance.held == 0
    assert balance.debit == sum(event.cost_pico for event in await stack.events())


@pytest.mark.slow
async def test_a_postgresql_that_stands_still(on_postgres: Stack, own_postgres: PostgresServer) -> None:
    stack = on_postgres
    stack.say("ok")
    await answered(stack)
    with stopped(own_postgres):
        answers = await asyncio.gather(*(assert_refused(stack) for _ in range(20)))
        assert len(answers) == 20
        before = len(stack.gateway.requests)
        await asyncio.sleep(2 * TIMEOUT_S)
        for _ in range(20):
            await assert_refused(stack)
        assert len(stack.gateway.requests) <= before + 20, "what would only wait piles up"
        ready = await stack.http.get("/readyz")
        assert ready.status_code == 503
        assert (await stack.http.get("/healthz")).status_code == 200
    await assert_recovered(stack)
    assert not stack.replica.aborts, "nothing was sent that nobody waited for"


@pytest.mark.slow
async def test_a_key_that_is_not_remembered(on_postgres: Stack, own_postgres: PostgresServer) -> None:
    stack = on_postgres
    stack.say("ok")
    other = (await stack.tenancy.create_key(stack.tenant.id, stack.project.id)).key
    with stopped(own_postgres):
        await assert_refused(stack, other)
    await assert_recovered(stack)


@pytest.mark.slow
async def test_a_connection_that_ends_before_the_answer(on_postgres: Stack, own_postgres: PostgresServer) -> None:
    """Nobody knows then whether the hold was taken; it is given back either way."""
    stack = on_postgres
    stack.say("ok")
    await answered(stack)
    with stopped(own_postgres):
        await assert_refused(stack)
        direct: Any = stack.database._direct  # as a network would end them, of which no interface of ours knows
        for holder in direct._pool._holders:
            if holder._con is not None:
                holder._con.terminate()
    await assert_recovered(stack)


async def test_a_sqlite_that_another_process_has_locked(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    options: dict[str, Any] = {"options": OPTIONS, "key_ttl": REMEMBERED_S}
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, **options) as stack:
        stack.say("ok")
        await assert_recovered(stack)
        with locked(stocked_sqlite_url):
            await assert_refused(stack)
            await assert_refused(stack)
        await assert_recovered(stack)
        assert len([state for state in await stack.holds() if state == "released"]) >= 1


async def test_waits_do_not_pile_up() -> None:
    gate, begun = asyncio.Event(), 0

    async def ask() -> int:
        nonlocal begun
        begun += 1
        await gate.wait()
        return begun

    breaker = CircuitBreaker(0.05)
    for _ in range(10):
        with pytest.raises(DatabaseUnavailable):
            await breaker.wait(ask())
    assert begun <= 10
    asked = begun
    tries = await asyncio.gather(*(breaker.wait(ask()) for _ in range(100)), return_exceptions=True)
    assert all(isinstance(one, DatabaseUnavailable) for one in tries)
    assert begun <= asked + 2, "the oldest has waited too long: one may try, the others are told at once"
    gate.set()
    async with asyncio.timeout(30):
        while True:
            with suppress(DatabaseUnavailable):
                assert await breaker.wait(ask()) > 0
                break
            await asyncio.sleep(0.01)


async def test_asking_whether_the_database_is_silent_takes_no_probe() -> None:
    breaker, gate = CircuitBreaker(0.05), asyncio.Event()
    with pytest.raises(DatabaseUnavailable):
        await breaker.wait(_until(gate))
    await asyncio.sleep(0.06)
    for _ in range(3):
        breaker.check()
    assert await breaker.wait(_at_once()) == 1, "who begins is the probe"
    gate.set()


async def test_a_run_that_asks_before_it_begins_is_the_probe(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    """A response in the background asks whether it may begin, is prepared, and asks once more when it begins."""
    options: dict[str, Any] = {"options": OPTIONS, "key_ttl": REMEMBERED_S}
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, **options) as stack:
        stack.say("ok")
        await assert_recovered(stack)
        requests = stack.gateway.requests
        with locked(stocked_sqlite_url):
            await assert_refused(stack)
            silent = len(requests)
            await asyncio.sleep(TIMEOUT_S)
            requests.check_model("tiny")
            probe = asyncio.create_task(assert_refused(stack))
            await stack.until(lambda: len(requests) > silent)
            await probe
        await assert_recovered(stack)


ENDPOINT = {"url": "https://hook.test/in", "topics": ["invoice.*"]}
REPORTS = (
    "/v1/organization/usage/completions?start_time=1700000000",
    "/v1/organization/costs?start_time=1700000000",
    "/v1/organizations/usage_report/messages?starting_at=2026-01-01T00:00:00Z",
    "/v1/organizations/cost_report?starting_at=2026-01-01T00:00:00Z",
)
IN_ANTHROPICS = REPORTS[2:]
"""Their dialect says 529 of what is overloaded."""


@pytest.mark.slow
async def test_who_manages_is_not_kept_waiting(on_postgres: Stack, own_postgres: PostgresServer) -> None:
    """Reports, exports, webhooks and price sheets: each is answered with 503 while the database is silent."""
    stack = on_postgres
    admin = {"authorization": f"Bearer {stack.admin_key}"}
    operator = {"authorization": f"Bearer {(await stack.tenancy.create_operator_key('Ann')).key}"}

    async def call(method: str, path: str, body: Any = None, headers: Any = admin) -> httpx.Response:
        return await stack.http.request(method, path, json=body, headers=headers)

    async def made(path: str, body: Any = None) -> str:
        """The id of what the path makes, though on a busy machine the database seemed silent at first."""
        while (answer := await call("POST", path, body)).status_code == 503:  # noqa: ASYNC110
            await asyncio.sleep(TIMEOUT_S)
        return str(answer.json()["id"])

    hook = await made("/v1/webhooks", ENDPOINT)
    delivery = await made(f"/v1/webhooks/{hook}/test")
    wanted = {"dataset": "usage", "period": "2026-11"}
    export = await made("/v1/exports", wanted)
    asked: list[tuple[str, str, Any, Any]] = [
        *(("GET", path, None, admin) for path in REPORTS),
        ("POST", "/v1/exports", wanted, admin),
        *(("GET", path, None, admin) for path in ("/v1/exports", f"/v1/exports/{export}")),
        ("GET", f"/v1/exports/{export}/content", None, admin),
        ("POST", "/v1/webhooks", ENDPOINT, admin),
        ("GET", "/v1/webhooks", None, admin),
        *((method, f"/v1/webhooks/{hook}", None, admin) for method in ("GET", "DELETE")),
        *(("POST", f"/v1/webhooks/{hook}/{verb}", None, admin) for verb in ("rotate", "enable", "test")),
        ("GET", "/v1/webhook_deliveries", None, admin),
        ("GET", f"/v1/webhook_deliveries/{delivery}", None, admin),
        ("POST", f"/v1/webhook_deliveries/{delivery}/resend", None, admin),
        ("GET", "/admin/v1/prices", None, operator),
        ("GET", "/admin/v1/prices/sheets", None, operator),
        ("GET", "/admin/v1/prices/sheets/1", None, operator),
        ("POST", "/admin/v1/prices/sheets/1/activate", None, operator),
        ("POST", "/admin/v1/prices/sheets/1/withdraw", None, operator),
    ]
    with stopped(own_postgres):
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*(call(*each) for each in asked))
        wrong = [(each[:2], answer.status_code) for each, answer in zip(asked, answers, strict=True)]
        assert all(status == (529 if path in IN_ANTHROPICS else 503) for (_, path), status in wrong), wrong
        assert (await stack.http.get("/healthz")).status_code == 200
    await assert_recovered(stack)
    assert (await call("GET", REPORTS[0])).status_code == 200


@pytest.mark.slow
async def test_who_only_asks_what_a_request_would_be_is_not_kept_waiting(
    on_postgres: Stack, own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limits are read as its price is: one request finds out that the database is silent, the others hear it."""
    stack = on_postgres
    stack.say("ok")
    await answered(stack)
    headers = {"authorization": f"Bearer {stack.key}"}
    counted = {"model": "tiny", "input": "hi"}

    async def ask(path: str, body: Any) -> int:
        return (await stack.http.post(path, json=body, headers=headers)).status_code

    both = (("/v1/estimate", BODY), ("/v1/responses/input_tokens", counted))
    for each in both:
        assert await ask(*each) == 200
    asked: Counter[CircuitBreaker] = Counter()
    enter = CircuitBreaker.enter

    def let_through(breaker: CircuitBreaker) -> None:
        enter(breaker)
        asked[breaker] += 1

    monkeypatch.setattr(CircuitBreaker, "enter", let_through)
    with stopped(own_postgres):
        stack.gateway.services.limiter.cache.cache.forget_all()
        stack.gateway.services.prices.forget()
        assert await ask(*both[0]) == 503
        assert asked, "it found out by asking"
        asked.clear()
        began = time.monotonic()
        assert set(await asyncio.gather(*(ask(*each) for each in both * 8))) == {503}
        probes = 1 + (time.monotonic() - began) / TIMEOUT_S
        assert all(count <= probes for count in asked.values()), "the others know that it is silent"
    await answered(stack)
    assert await ask("/v1/estimate", BODY) == 200


@pytest.mark.slow
async def test_a_slice_that_is_not_heard_of_ends_the_answer(
    own_postgres: PostgresServer, tmp_path: Path, model_folder: Path
) -> None:
    """The answer ends where its money does, and no hold is left when the database speaks again."""
    url = own_postgres.database_url("postgres")
    await migrate.upgrade(url)
    options = msgspec.structs.replace(OPTIONS, hold_slice=8)
    async with running_stack(url, tmp_path, model_folder, options=options, key_ttl=REMEMBERED_S) as stack:
        stack.say("ok")
        await answered(stack)
        stack.forget()
        tokens = stack.tokens("so long " * 100, end=False)[:200]
        stack.replica.script = Script(tokens=tokens, prefill=1.0)
        answer = asyncio.create_task(stack.post({**BODY, "max_tokens": 200, "stream": True}))
        await stack.until(lambda: stack.replica.runs)
        with stopped(own_postgres):
            async with asyncio.timeout(40):
                text = (await answer).text
        assert '"limited_by":"budget"' in text
        stack.say("ok")
        await assert_recovered(stack)


async def test_one_slow_question_keeps_no_other_from_being_asked() -> None:
    """The pings are answered, so the database is not silent: only the slow question is given up."""
    pings, gate = CircuitBreaker(0.05), asyncio.Event()
    breaker = CircuitBreaker(0.05, pings)
    with pytest.raises(DatabaseUnavailable):
        await breaker.wait(_until(gate))
    for _ in range(3):
        await pings.wait(_at_once())
        assert await breaker.wait(_at_once()) == 1
        with pytest.raises(DatabaseUnavailable):
            await breaker.wait(_until(gate))
    gate.set()


async def _until(gate: asyncio.Event) -> None:
    await gate.wait()


async def _at_once() -> int:
    return 1
