"""Leases through a whole gateway: who writes, who reads, what is billed when something dies, and /v1/caches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from billing.prices import PriceCatalog
from billing.usage import LEASE_CLASSES
from billing.verification.audit import audit_money
from gateway.services import GatewayOptions
from prompt_cache.kv.block_keys import chain, model_root
from prompt_cache.promise.scope_keys import ScopeKeys
from storage.database.database import Database
from tests.gateway.stack import PRICES, Stack, quick_timeouts, running_stack, stock
from tests.waiting import LONG_S
from turnpike.processes.lease_upkeep import LeaseUpkeep

CACHE_PRICES = PRICES | {
    name: price for lease in LEASE_CLASSES for name, price in ((f"read_{lease}", "0.04"), (f"write_{lease}", "0.50"))
}
TEXT = "A long prompt that is worth keeping. " * 6
OPTIONS = GatewayOptions(timeouts=quick_timeouts(), drain_timeout=1.0)


def body(*texts: str, ttl: str = "5m", **more: Any) -> dict[str, Any]:
    """A chat whose messages are each marked."""
    control = {"type": "ephemeral", "ttl": ttl}
    messages = [{"role": "user", "content": [{"type": "text", "text": t, "cache_control": control}]} for t in texts]
    return {"model": "tiny", "messages": messages, **more}


@pytest.fixture
async def caching(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[Stack]:
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=OPTIONS) as stack:
        await PriceCatalog(stack.database).set("tiny", "USD", CACHE_PRICES)
        await stack.gateway.services.prices.close()
        stack.gateway.services.prices.__init__(stack.database)  # type: ignore[misc]  # forgets the price of before
        stack.say("An answer.")
        yield stack


def sums(events: list[Any]) -> dict[str, int]:
    names = ("uncached", "read_5m", "write_5m", "read_automatic", "output")
    return {name: sum(getattr(event, name) for event in events) for name in names}


async def leases(stack: Stack) -> list[Any]:
    return await stack.rows("SELECT * FROM lease ORDER BY tokens")


@pytest.mark.slow
async def test_of_identical_cold_prompts_one_is_written(caching: Stack) -> None:
    answers = await asyncio.gather(*(caching.post(body(TEXT)) for _ in range(64)))
    assert {answer.status_code for answer in answers} == {200}
    events = await caching.settled(64)
    writers = [event for event in events if event.write_5m]
    assert len(writers) == 1
    assert all(event.read_5m == writers[0].write_5m for event in events if event is not writers[0])
    assert sum(event.read_5m > 0 for event in events) == 63
    (kept,) = await leases(caching)
    assert (kept.tokens, kept.reads) == (writers[0].write_5m, 63)
    assert await audit_money(caching.database) == []


@pytest.mark.slow
async def test_readers_wait_until_their_writer_has_its_first_token(caching: Stack) -> None:
    caching.say("An answer.", prefill=1.5)
    asking = [asyncio.create_task(caching.post(body(TEXT))) for _ in range(8)]
    await caching.until(lambda: caching.replica.runs)
    await asyncio.sleep(0.15)
    assert len(caching.replica.runs) == 1
    caching.say("An answer.")
    assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
    events = await caching.settled(8)
    assert [event.write_5m > 0 for event in events].count(True) == 1
    assert len(caching.gateway.writes) == 0


async def test_a_lost_kv_is_our_cost_and_a_read_begins_its_life_anew(caching: Stack) -> None:
    await caching.post(body(TEXT))
    await caching.settled(1)
    (before,) = await leases(caching)
    await caching.post(body(TEXT, "More."))  # the replica says that it computed everything
    _, second = await caching.settled(2)
    assert (second.read_5m, second.count_computed) == (before.tokens, second.count_prompt)
    assert second.write_5m > 0
    first, longer = await leases(caching)
    assert first.expires_at > before.expires_at
    assert longer.tokens == second.read_5m + second.write_5m
    run = list(caching.replica.runs.values())[-1]
    assert [kept.tokens for kept in run.generate.retain] == [first.tokens, longer.tokens]


async def test_a_write_that_failed_before_its_first_token_is_written_again(caching: Stack) -> None:
    caching.say("", end=False, reason="error")
    assert (await caching.post(body(TEXT))).status_code == 500
    (failed,) = await caching.settled(1)
    assert sums([failed])["write_5m"] == 0
    for _ in range(6000):
        if not await leases(caching):
            break
        await asyncio.sleep(0.01)
    caching.say("An answer.")
    await caching.post(body(TEXT))
    _, second = await caching.settled(2)
    assert (second.write_5m > 0, second.read_5m) == (True, 0)


@pytest.mark.slow
async def test_only_if_cached_tells_what_the_miss_would_cost(caching: Stack) -> None:
    only = {"cache-control": "only-if-cached"}
    missed = await caching.post(body(TEXT), headers=only)
    assert missed.status_code == 412
    assert missed.json()["error"]["code"] == "not_cached"
    assert (await caching.holds(), caching.replica.runs) == ([], {})
    await caching.post(body(TEXT))
    (written,) = await caching.settled(1)
    prompt_cost = written.cost_pico - written.output * 1_600_000
    assert float(missed.json()["error"]["cache_miss"]["cost"]) == pytest.approx(prompt_cost / 1e12)
    assert (await caching.post(body(TEXT), headers=only)).status_code == 200
    await caching.settled(2)


async def test_a_project_lists_extends_and_purges_its_caches(caching: Stack) -> None:
    mine = {"authorization": f"Bearer {caching.key}"}
    for prompt in (TEXT, TEXT.upper(), TEXT.lower()):
        await caching.post(body(prompt))
    await caching.settled(3)
    page = (await caching.http.get("/v1/caches?limit=2", headers=mine)).json()
    assert (page["object"], len(page["data"]), page["has_more"]) == ("list", 2, True)
    after = page["data"][-1]["id"]
    rest = (await caching.http.get(f"/v1/caches?after={after}", headers=mine)).json()
    assert (len(rest["data"]), rest["has_more"]) == (1, False)
    one = rest["data"][0]
    assert (one["model"], one["ttl"], one["reads"], one["last_read_at"]) == ("tiny", "5m", 0, None)
    assert one["expires_at"] - one["created_at"] == 300
    where = f"/v1/caches/{one['id']}"
    assert (await caching.http.get(where, headers=mine)).json() == one
    extended = await caching.http.patch(where, headers=mine, json={"ttl": "5m"})
    assert extended.json()["expires_at"] >= one["expires_at"]
    longer = await caching.http.patch(where, headers=mine, json={"ttl": "1h"})
    assert (longer.status_code, longer.json()["error"]["param"]) == (400, "ttl")

    other = await caching.tenancy.create_project(caching.tenant.id, "other")
    key = (await caching.tenancy.create_key(caching.tenant.id, other.id)).key
    theirs = {"authorization": f"Bearer {key}"}
    nothing = f"/v1/caches/cache_{'0' * 32}"
    for method in ("GET", "PATCH", "DELETE"):
        answers = [await caching.http.request(method, path, headers=theirs) for path in (where, nothing)]
        assert [answer.status_code for answer in answers] == [404, 404]
        said = [answer.json()["error"]["message"].replace(one["id"], "X") for answer in answers]
        assert said[0] == said[1].replace(f"cache_{'0' * 32}", "X")
    assert (await caching.http.get("/v1/caches", headers=theirs)).json()["data"] == []

    assert (await caching.http.delete(where, headers=mine)).json() == {
        "id": one["id"], "object": "cache.deleted", "deleted": True,
    }  # fmt: skip
    assert (await caching.http.delete(where, headers=mine)).status_code == 404
    await caching.post(body(TEXT))  # it was the first
    again = (await caching.settled(4))[-1]
    assert (again.read_5m, again.write_5m > 0) == (0, True)


async def test_a_tag_may_hold_what_databases_cannot(caching: Stack) -> None:
    mine = {"authorization": f"Bearer {caching.key}"}
    answer = await caching.post(body(TEXT, metadata={"user": "a\0b"}))
    assert answer.status_code == 200
    await caching.settled(1)
    page = (await caching.http.get("/v1/caches?tag=a%00b", headers=mine)).json()
    assert len(page["data"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("partition", [{}, {"prompt_cache_key": "mine"}])
async def test_a_purged_caches_blocks_leave_the_replicas(caching: Stack, partition: dict[str, str]) -> None:
    mine = {"authorization": f"Bearer {caching.key}"}
    await caching.post(body(TEXT, "Then the rest. " * 9, **partition))
    await caching.settled(1)
    rows: list[Any] = []
    while len(rows) < 2:
        rows = await caching.rows("SELECT tokens FROM lease JOIN lease_blocks ON lease_id = lease.id ORDER BY tokens")
        await asyncio.sleep(0.01)
    (run,) = caching.replica.runs.values()
    ((until, scope),) = [(segment.until, segment.scope) for segment in run.generate.segments]
    root = next(one.root for one in caching.replica.scopes if one.scope == scope)
    keys = chain(model_root("d" * 64), [(until, root)], run.generate.tokens)
    page = (await caching.http.get("/v1/caches", headers=mine)).json()["data"]
    longer = next(one for one in page if one["tokens"] == rows[1].tokens)
    await caching.http.delete(f"/v1/caches/{longer['id']}", headers=mine)
    await caching.until(lambda: caching.replica.purges)
    (purged,) = caching.replica.purges
    own = keys[rows[0].tokens // 64 : rows[1].tokens // 64]
    assert (purged.scope, list(purged.keys)) == (scope, own)
    assert own


@pytest.mark.slow
async def test_a_purge_takes_what_readers_computed_again(caching: Stack) -> None:
    """After the data key was destroyed the KV is made again in a scope of another name, of all leases in the prompt."""
    mine = {"authorization": f"Bearer {caching.key}"}

    async def noted(rows: int) -> None:
        found: list[Any] = []
        async with asyncio.timeout(LONG_S):
            while len(found) < rows:
                found = await caching.rows("SELECT lease_id FROM lease_blocks")
                await asyncio.sleep(0.01)

    await caching.post(body(TEXT, "Then the rest. " * 9))
    await noted(2)
    assert await ScopeKeys(caching.database, b"m" * 32).destroy(caching.tenant.id, caching.project.id, "asked") == 1
    await caching.until(lambda: caching.replica.forgotten)
    for _ in range(2):
        await caching.post(body(TEXT, "Then the rest. " * 9))
    await noted(4)
    first, second = list(dict.fromkeys(scope.scope for scope in caching.replica.scopes))
    page = (await caching.http.get("/v1/caches", headers=mine)).json()["data"]
    for one in page:
        await caching.http.delete(f"/v1/caches/{one['id']}", headers=mine)
    await caching.until(lambda: len(caching.replica.purges) == 4)
    keys = {scope: [key for one in caching.replica.purges if one.scope == scope for key in one.keys]
            for scope in (first, second)}  # fmt: skip
    assert sorted(keys[first]) == sorted(keys[second])
    assert len(set(keys[first])) == max(one["tokens"] for one in page) // 64 > 0


@pytest.mark.slow
async def test_a_cache_that_is_purged_while_it_is_written_leaves_the_replicas(caching: Stack) -> None:
    mine = {"authorization": f"Bearer {caching.key}"}
    caching.say("An answer.", prefill=0.5)
    asking = asyncio.create_task(caching.post(body(TEXT)))
    await caching.until(lambda: caching.replica.runs)
    (one,) = (await caching.http.get("/v1/caches", headers=mine)).json()["data"]
    assert (await caching.http.delete(f"/v1/caches/{one['id']}", headers=mine)).status_code == 200
    assert caching.replica.purges == []
    await asking
    await caching.until(lambda: caching.replica.purges)
    (purged,) = caching.replica.purges
    assert len(purged.keys) == one["tokens"] // 64 > 0


@pytest.mark.slow
async def test_another_projects_lease_is_never_read(caching: Stack) -> None:
    await caching.post(body(TEXT))
    other = await caching.tenancy.create_project(caching.tenant.id, "other")
    key = (await caching.tenancy.create_key(caching.tenant.id, other.id)).key
    await caching.post(body(TEXT), key=key)
    assert sums(await caching.settled(2))["read_5m"] == 0


async def test_a_dead_gateways_request_is_billed_as_promised(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    """A reader's gateway dies: who hears of it from the journal bills a read."""
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=OPTIONS) as stack:
        await PriceCatalog(stack.database).set("tiny", "USD", CACHE_PRICES)
        stack.say("An answer.")
        await stack.post(body(TEXT))
        await stack.settled(1)
        stack.forget()
        stack.say(TEXT, pause=0.02)
        headers = {"authorization": f"Bearer {stack.key}"}
        asking = stack.http.stream("POST", "/v1/chat/completions", json=body(TEXT, stream=True), headers=headers)
        async with asking as answer:
            async for _ in answer.aiter_lines():
                if any(run.delivered for run in stack.replica.runs.values()):
                    break
            for task in list(stack.gateway.requests._running.values()):
                task.cancel()
            await stack.until(lambda: not stack.gateway.requests)
            await stack.replica.stop()
        async with stack.database.transaction() as session:
            await session.execute(text("DELETE FROM lease"))  # the hold alone says what was promised
        await stack.replica.restart()
        first, second = await stack.settled(2)
        assert (second.source, second.read_5m, second.write_5m) == ("journal", first.write_5m, 0)


@pytest.mark.parametrize("told", [True, False])
async def test_the_worker_ends_what_a_dead_gateway_wrote_and_never_ran(caching: Stack, told: bool) -> None:
    caching.say("An answer.", queued=60, silent=True)
    asking = asyncio.create_task(caching.post(body(TEXT)))
    await caching.until(lambda: caching.replica.runs)
    for task in list(caching.gateway.requests._running.values()):
        task.cancel()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert len(await leases(caching)) == 1
    services = caching.gateway.services
    upkeep = LeaseUpkeep(caching.database, services.holds, services.prices, told_us=0)
    await upkeep.run()
    assert len(await leases(caching)) == 1, "its hold is open, so it may still run"
    if told:
        await services.holds.give_back(caching.spool.owner)
        await upkeep.run()
        assert await leases(caching) == []


@pytest.mark.slow
async def test_two_gateways_write_once(fresh_postgres_url: str, tmp_path: Path, model_folder: Path) -> None:
    database = await Database.open(fresh_postgres_url)
    await stock(database)
    await PriceCatalog(database).set("tiny", "USD", CACHE_PRICES)
    await database.close()
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    async with (
        running_stack(fresh_postgres_url, folders[0], model_folder, options=OPTIONS, name="one") as one,
        running_stack(fresh_postgres_url, folders[1], model_folder, options=OPTIONS, name="two") as two,
    ):
        for stack in (one, two):
            stack.say("An answer.")
        answers = await asyncio.gather(*(stack.post(body(TEXT)) for _ in range(32) for stack in (one, two)))
        assert {answer.status_code for answer in answers} == {200}
        events = await one.settled(64)
        assert sum(event.write_5m > 0 for event in events) == 1
        assert sum(event.read_5m > 0 for event in events) == 63
