"""Where a request's time went, by /admin/v1: sums, delays, who may see it, what is left of what was not recorded."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from gateway.admin.requests import lookup, waterfalls
from gateway.admin.requests.waterfall_objects import CAUSES, waterfall_object
from gateway.http.sse import EventStream
from gateway.limits.redis_buckets import RedisBuckets
from protocol.requests import Generate
from storage.database.database import Database
from tenancy.rate_limits import Limits, LimitSubject
from tests.awake import Awake
from tests.gateway.admin.desk import Desks
from tests.gateway.fake_replica import Script
from tests.gateway.stack import Stack, running_stack
from waterfall import marks as m
from waterfall.bars import STAGES
from waterfall.record import Attempt, Chosen, Record

D = "/tenants/demo"
DELAY_S = 0.2
DELAY_US = int(DELAY_S * 1e6)


def body(content: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **fields}


async def ask(stack: Stack, *, stream: bool = True, **fields: Any) -> str:
    """Ask, read the answer; the request's id."""
    answer = await stack.post(body(stream=stream, **fields))
    assert answer.status_code == 200, answer.text
    return answer.headers["x-request-id"]


async def shown(stack: Stack, desks: Desks, name: str) -> Any:
    """Its waterfall, when it is written."""
    row = f"SELECT 1 FROM request_waterfall WHERE lower(hex(request_id)) = '{name[4:]}'"
    for _ in range(1000):
        if await stack.rows(row):
            return await desks.own("viewer").get(f"{D}/requests/{name}/waterfall")
        await asyncio.sleep(0.01)
    raise AssertionError("it was not written")


def test_how_much_work_of_others_waits_is_told_roughly() -> None:
    """By the microsecond it would say how many tokens others have asked for."""

    def cause(wait: int, next_us: int) -> str:
        chosen = Chosen("cached", 1, 90, 100, wait, compute=20_000, next_replica="b", next_us=next_us)
        marks = (m.RECEIVED, 0, m.HOLD, 100, m.ROUTE, 120)
        found = waterfall_object("req", Record(0, marks, (Attempt("a", chosen=chosen),), "ok"))
        return next(bar.cause for bar in found.bars if bar.stage == "route")

    told = cause(1_234_567, 2_345_678)
    assert "first token in 1.27 s (wait 1.25 s + compute 20 ms). The best of 1 others, b, was expected" in told
    assert told == cause(1_254_321, 2_361_234)
    assert "first token in 20 ms (compute 20 ms)" in cause(20_000, 10)


def check(found: Any) -> Counter[str]:
    """The bars follow each other and are the wall time; their sums by stage."""
    end, sums = 0, Counter[str]()
    for bar in found["bars"]:
        assert bar["start_us"] == end
        assert bar["duration_us"] >= 0
        assert bar["cause"]
        end += bar["duration_us"]
        sums[bar["stage"]] += bar["duration_us"]
    assert end == found["wall_us"]
    return sums


async def test_a_request_from_authentication_to_settlement(stack: Stack, desks: Desks) -> None:
    stack.say("a short answer", read_hbm=2)
    name = await ask(stack)
    found = await shown(stack, desks, name)
    sums = check(found)
    assert (found["recorded"], found["status"], found["code"], found["why"]) == ("whole", "ok", None, None)
    stages = [
        *("auth", "body", "parse", "render", "plan", "price", "limits", "scope_keys", "hold", "route", "transfer")
    ]
    assert list(sums)[:18] == [*stages, "accept", "queue", "match", "prefill", "decode", "reader", "spool"]
    assert {"answer", "settle"} <= set(sums)
    assert found["first_token_us"] < found["wall_us"]
    [attempt] = found["attempts"]
    assert attempt == {
        **{"replica": "replica-0", "told": True, "paused_us": 0, "preemptions": 0},
        **{"decode_steps": 2, "drafting_us": 1500},
        **{"after": None, "emitted_tokens": 0, "other_numerics": False},
    }
    [route] = [bar for bar in found["bars"] if bar["stage"] == "route"]
    assert route["cause"].startswith(
        "A replica was chosen and the request sent. replica-0, since no other could be chosen: 0 of "
    )
    [decode] = [bar for bar in found["bars"] if bar["stage"] == "decode"]
    assert decode["cause"] == (
        "Output tokens were drawn. It took 2 steps behind the first token. Drafters held it up for 1.5 ms."
    )
    # tokens and money of the bars are those of the event
    details = await desks.own().get(f"{D}/requests/{name}")
    costs = [Decimal(bar["cost"]) for bar in found["bars"] if bar["cost"] is not None]
    assert sum(costs) == Decimal(details["request"]["cost"]) == Decimal(found["cost"])
    tokens = {bar["stage"]: bar["tokens"] for bar in found["bars"] if bar["tokens"] is not None}
    billed = details["request"]["tokens"]
    assert tokens == {"prefill": billed["uncached"], "decode": billed["output"]}
    assert sum(chunk["computed_tokens"] for chunk in found["beside"]) == details["engine"]["computed"]
    # and the list knows its first token
    (listed,) = (await desks.own().get(f"{D}/requests"))["data"]
    assert (listed["first_token_us"], listed["cache"]) == (found["first_token_us"], "none")
    # no text of prompt or answer is kept
    (row,) = await stack.rows("SELECT record FROM request_waterfall")
    assert b"hello" not in row.record
    assert b"short" not in row.record


@contextlib.asynccontextmanager
async def slow_body(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    async def post(given: Any, key: str | None = None, **options: Any) -> Any:
        import json

        async def pieces() -> AsyncIterator[bytes]:
            content = json.dumps(given).encode()
            yield content[:10]
            await asyncio.sleep(DELAY_S)
            yield content[10:]

        headers = {"authorization": f"Bearer {stack.key}", "content-type": "application/json"}
        return await stack.http.post("/v1/chat/completions", headers=headers, content=pieces())

    monkeypatch.setattr(stack, "post", post)
    yield


@contextlib.asynccontextmanager
async def slow_key(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    _slower(monkeypatch, stack.gateway.services.authenticator, "authenticate")
    yield


@contextlib.asynccontextmanager
async def slow_price(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    prices = stack.gateway.services.prices
    monkeypatch.setattr(prices, "known", lambda model, tenant: None)  # as if its prices were too old
    _slower(monkeypatch, prices, "current")
    yield


@contextlib.asynccontextmanager
async def slow_rendering(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    _slower(monkeypatch, stack.gateway.admission, "_prompt")
    yield


@contextlib.asynccontextmanager
async def locked_database(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Somebody else writes for a while when the hold is to be taken."""
    service = stack.gateway.services.holds
    known = service.reserve

    async def reserve(*given: Any) -> Any:
        locked = asyncio.Event()
        task = asyncio.create_task(_lock(stack.database, locked))
        await locked.wait()
        hold = await known(*given)
        await task
        return hold

    monkeypatch.setattr(service, "reserve", reserve)
    yield


async def _lock(database: Database, locked: asyncio.Event) -> None:
    async with database.transaction() as session:
        await session.execute(text("UPDATE tenant SET name = name"))
        locked.set()
        await asyncio.sleep(DELAY_S)


@contextlib.asynccontextmanager
async def slow_reader(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    known, slept = EventStream._send, []

    async def send(self: EventStream, to: Any, content: bytes, *, more: bool = True) -> None:
        await known(self, to, content, more=more)
        if b'"content":"' in content and not slept:
            slept.append(await asyncio.sleep(DELAY_S))

    monkeypatch.setattr(EventStream, "_send", send)
    yield


@contextlib.asynccontextmanager
async def slow_disk(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    _slower(monkeypatch, stack.spool, "append")
    yield


@contextlib.asynccontextmanager
async def slow_settlement(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    _slower(monkeypatch, stack.gateway.services.settler, "_settle")
    yield


def _slower(monkeypatch: pytest.MonkeyPatch, whose: Any, name: str) -> None:
    known: Callable[..., Awaitable[Any]] = getattr(whose, name)

    async def slower(*given: Any, **named: Any) -> Any:
        await asyncio.sleep(DELAY_S)
        return await known(*given, **named)

    monkeypatch.setattr(whose, name, slower)


def script(stage: str) -> Callable[[Stack], Any]:
    """What makes the replica slow in this stage."""

    @contextlib.asynccontextmanager
    async def slow(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
        known = stack.replica.script
        assert isinstance(known, Script)
        stack.replica.script = replace(known, **({"pause": DELAY_S / 2} if stage == "decode" else {stage: DELAY_S}))
        yield

    return slow  # type: ignore[return-value]


DELAYS: dict[str, Any] = {
    "auth": slow_key,
    "body": slow_body,
    "render": slow_rendering,
    "price": slow_price,
    "hold": locked_database,
    "queue": script("queued"),
    "prefill": script("prefill"),
    "decode": script("decode"),
    "reader": slow_reader,
    "spool": slow_disk,
    "settle": slow_settlement,
}


async def assert_its_bar_alone_grows(stack: Stack, desks: Desks, stage: str, slow: Any) -> None:
    """Delay a stage: its bar grows by that, and no other by half of it."""
    for attempt in range(4):
        stack.replica.script = Script(tokens=stack.tokens("ans wer")[:2], burst=1)
        stack.say("answer", burst=4) if stage == "reader" else None
        usual = check(await shown(stack, desks, await ask(stack)))
        with pytest.MonkeyPatch.context() as patches:
            async with slow(stack, patches):
                name = await ask(stack)
                found = await shown(stack, desks, name)
        moved = check(found)
        assert moved[stage] >= DELAY_US * 0.8
        grown = {one: moved[one] - usual[one] for one in moved if moved[one] - usual[one] > DELAY_US // 2}
        if set(grown) == {stage} or attempt == 3:  # this machine may have been busy elsewhere
            assert set(grown) == {stage}
            return


@pytest.mark.alone  # its delays are measured
@pytest.mark.slow
@pytest.mark.parametrize("stage", list(DELAYS))
async def test_a_delay_of_one_stage_moves_its_bar_alone(stack: Stack, desks: Desks, stage: str) -> None:
    await assert_its_bar_alone_grows(stack, desks, stage, DELAYS[stage])


@pytest.mark.alone
@pytest.mark.slow
async def test_a_slow_redis_moves_the_bar_of_the_limits_alone(
    stocked_sqlite_url: str, tmp_path: Any, model_folder: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    buckets = RedisBuckets(redis_url, 300_000, 600_000_000, timeout=5.0)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, limit_buckets=buckets) as stack:
        limits = Limits(requests_per_minute=1000)
        await stack.gateway.services.rate_limits.set(LimitSubject(stack.tenant.id, stack.project.id), limits)
        desks = Desks(stack, monkeypatch)

        @contextlib.asynccontextmanager
        async def paused(_: Stack, patches: pytest.MonkeyPatch) -> AsyncIterator[None]:
            _slower(patches, buckets, "run")
            yield

        await assert_its_bar_alone_grows(stack, desks, "limits", paused)


async def test_a_busy_replica_that_was_lost_is_shown_with_the_next_attempt(stack: Stack, desks: Desks) -> None:
    tries = []

    def first_dies(generate: Generate) -> Script:
        tries.append(generate.attempt)
        return Script(tokens=stack.tokens("fine"), die_after=0 if len(tries) == 1 else None)

    stack.replica.script = first_dies
    name = await ask(stack)
    sums = check(found := await shown(stack, desks, name))
    assert [one["told"] for one in found["attempts"]] == [False, True]
    assert {"lost", "retry"} <= set(sums)
    assert {bar["attempt"] for bar in found["bars"]} == {None, 1, 2}


async def test_a_refused_request_is_found_with_its_code(stack: Stack, desks: Desks) -> None:
    refused = await stack.post(body(temperature=9))
    assert refused.status_code == 400
    name = refused.headers["x-request-id"]
    found = await shown(stack, desks, name)
    assert list(check(found)) == ["auth", "body", "answer"]
    assert (found["status"], found["code"]) == ("refused", "invalid_value")
    details = await desks.own().get(f"{D}/requests/{name}")
    assert (details["status"], details["code"], details["project"]) == ("refused", "invalid_value", "default")


async def test_a_running_request_grows_and_is_listed(stack: Stack, desks: Desks) -> None:
    stack.say("answer", prefill=30)
    asking = asyncio.create_task(stack.post(body(stream=True)))
    await stack.until(lambda: stack.replica.runs)
    viewer = desks.own("viewer")
    (running,) = (await viewer.get(f"{D}/running-requests"))["data"]
    assert (running["phase"], running["model"], running["project"]) == ("running", "tiny", "default")
    name = running["id"]
    one = await viewer.get(f"{D}/requests/{name}/waterfall")
    two = await viewer.get(f"{D}/requests/{name}/waterfall")
    check(one)
    assert (one["recorded"], one["bars"][-1]["stage"]) == ("running", "running")
    assert two["wall_us"] > one["wall_us"]
    assert (await viewer.get(f"{D}/requests/{name}"))["status"] == "in_flight"
    second = await stack.tenancy.create_project(stack.tenant.id, "second")
    member = desks.role("developer", stack.tenant.id, second.id)
    assert (await member.get(f"{D}/running-requests"))["data"] == []
    await member.get(f"{D}/requests/{name}/waterfall", 404)
    stack.gateway.requests.end_all_of(stack.tenant.id, None)
    await asking


async def test_nobody_else_sees_it(stack: Stack, desks: Desks) -> None:
    stack.say("answer")
    name = await ask(stack)
    await shown(stack, desks, name)
    place = await desks.own("viewer").get(f"/requests/{name}")
    assert (place["tenant"], place["id"]) == ("demo", name)
    assert (await desks.operator("viewer").get(f"/requests/{name}"))["tenant_id"] == f"tenant_{stack.tenant.id.hex}"
    stranger_of = await stack.tenancy.create_tenant("stranger")
    second = await stack.tenancy.create_project(stack.tenant.id, "second")
    stranger = desks.role("owner", stranger_of.id)
    member = desks.role("developer", stack.tenant.id, second.id)
    for desk in (stranger, member):
        await desk.get(f"/requests/{name}", 404)
    for path in ("", "/waterfall", "/cache"):
        await stranger.get(f"{D}/requests/{name}{path}", 404)
        await member.get(f"{D}/requests/{name}{path}", 404)
        await stranger.get(f"/tenants/stranger/requests/{name}{path}", 404)
        await desks.own().get(f"{D}/requests/req_{'0' * 32}{path}", 404)
    await stranger.get(f"{D}/running-requests", 404)
    await desks.own().get("/requests/nothing", 404)


async def test_what_was_not_recorded_says_why(stack: Stack, desks: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.say("answer")
    name = await ask(stack)
    await shown(stack, desks, name)
    viewer = desks.own("viewer")
    async with stack.database.transaction() as session:
        await session.execute(text("DELETE FROM request_waterfall"))

    async def why(later_s: float) -> str:
        now = time.time_ns() + int(later_s * 1e9)
        monkeypatch.setattr(waterfalls, "time", SimpleNamespace(time_ns=lambda: now))
        found = await viewer.get(f"{D}/requests/{name}/waterfall")
        assert (found["recorded"], found["bars"], found["status"]) == ("none", [], "ok")
        assert found["wall_us"] > 0
        assert found["cost"] == (await viewer.get(f"{D}/requests/{name}"))["request"]["cost"]
        return str(found["why"])

    assert "not written yet" in await why(1)
    assert "left out" in await why(3600)
    assert "for 7 days" in await why(10 * 86_400)
    known = lookup.find_event

    async def found_in_a_journal(*of: Any) -> Any:
        event, adjustments = await known(*of)
        assert event is not None
        return replace(event, dimensions=event.dimensions | {"source": "journal"}), adjustments

    monkeypatch.setattr(lookup, "find_event", found_in_a_journal)
    assert "gateway died" in await why(10)


async def test_the_list_goes_both_ways(stack: Stack, desks: Desks) -> None:
    stack.say("answer")
    names = [await ask(stack) for _ in range(5)]
    await stack.settled(5)
    viewer = desks.own("viewer")
    listed = (await viewer.get(f"{D}/requests"))["data"]
    assert [one["id"] for one in listed] == names[::-1]
    middle = listed[2]["cursor"]
    older = (await viewer.get(f"{D}/requests?limit=1&after={middle}"))["data"]
    newer = (await viewer.get(f"{D}/requests?limit=1&before={middle}&status=ok"))["data"]
    assert [older[0]["id"], newer[0]["id"]] == [names[1], names[3]]
    assert [one["id"] for one in (await viewer.get(f"{D}/requests?before={middle}"))["data"]] == [names[4], names[3]]
    assert (await viewer.get(f"{D}/requests?before={listed[0]['cursor']}"))["data"] == []
    await viewer.get(f"{D}/requests?before={middle}&after={middle}", 400)
    await viewer.get(f"{D}/requests?before=x", 400)


@pytest.mark.alone
async def test_turned_off_nothing_is_kept(stocked_sqlite_url: str, tmp_path: Any, model_folder: Any) -> None:
    from gateway.services import GatewayOptions
    from tests.gateway.stack import quick_timeouts

    options = GatewayOptions(timeouts=quick_timeouts(), waterfall_days=0)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        stack.say("answer")
        await ask(stack)
        await stack.settled(1)
        with Awake() as awake:
            await stack.gateway.waterfalls.stop()
            assert awake.seconds < 1
        assert await stack.rows("SELECT * FROM request_waterfall") == []


def test_every_stage_has_a_cause_a_label_and_a_row_in_the_documentation() -> None:
    root = Path(__file__).parents[3]
    labels = re.search(
        r"const STAGES[^{]*{\n(.*?)\n};", (root / "web/src/pages/requests/waterfall.ts").read_text(), re.S
    )
    rows = (root / "docs/waterfall.md").read_text().partition("## Bars")[2].partition("`settle` comes")[0]
    told = {name for row in re.findall(r"^\| (`[^|]*`) \|", rows, re.M) for name in re.findall(r"`(\w+)`", row)}
    assert labels is not None
    assert set(CAUSES) == set(STAGES)
    assert set(re.findall(r"^  (\w+): \[", labels[1], re.M)) == set(STAGES)
    assert told == set(STAGES) - {"running"}
