"""A script in Redis: deadlines, the circuit, and that no call reads another one's answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from storage.bus import InvalidRedisUrl
from storage.redis_script import RedisScript, ScriptUnavailable
from tests.servers import free_port, redis_server
from tests.waiting import LONG_S

ECHO = "return ARGV[1]"


@pytest.fixture
async def script(redis_url: str) -> AsyncIterator[RedisScript]:
    script = RedisScript(redis_url, ECHO, timeout=5.0)
    yield script
    await script.close()


async def test_answers_come_in_the_order_of_calls(script: RedisScript, redis_url: str) -> None:
    assert await script.run([("k", (b"one",))]) == [b"one"]
    client = redis.Redis.from_url(redis_url)
    client.script_flush()
    client.close()
    assert await script.run([("k", (b"one",)), ("k", (2,)), ("k", (b"three",))]) == [b"one", b"2", b"three"]


@pytest.mark.slow
async def test_a_late_answer_is_nobodys(redis_url: str) -> None:
    script = RedisScript(redis_url, ECHO, timeout=0.1)
    assert await answered(script, b"first") == b"first"
    client = redis.Redis.from_url(redis_url)
    client.client_pause(1_000)  # nobody can end it earlier
    with pytest.raises(ScriptUnavailable):
        await script.run([("k", (b"late",))])
    client.close()
    for number in range(3):
        assert await answered(script, number) == str(number).encode()
    await script.close()


async def answered(script: RedisScript, argument: bytes | int) -> Any:
    """The answer, as soon as there is one in time."""
    async with asyncio.timeout(LONG_S):
        while True:
            try:
                (answer,) = await script.run([("k", (argument,))])
            except ScriptUnavailable:
                await asyncio.sleep(0.05)
                continue
            return answer


async def test_the_circuit_opens_after_three_failures_and_lets_a_probe_through() -> None:
    now = [100.0]
    script = RedisScript(f"redis://127.0.0.1:{free_port()}/0", ECHO, timeout=0.5, clock=lambda: now[0])
    for failures in range(1, 4):
        assert script.asks
        with pytest.raises(ScriptUnavailable):
            await script.run([("k", (b"x",))])
        assert script.open == (failures == 3)
    assert not script.asks
    with pytest.raises(ScriptUnavailable, match="circuit"):
        await script.run([("k", (b"x",))])
    now[0] += 1.0
    assert script.asks
    with pytest.raises(ScriptUnavailable):
        await script.run([("k", (b"x",))])
    assert not script.asks
    await script.close()


async def test_a_dead_connection_is_replaced_at_once() -> None:
    with redis_server() as server:
        script = RedisScript(server.url, ECHO, timeout=5.0)
        assert await script.run([("k", (b"one",))]) == [b"one"]
        server.stop()
        server.start()
        assert await script.run([("k", (b"two",))]) == [b"two"]
        assert not script.open
        await script.close()


async def test_a_wrong_url_names_the_setting() -> None:
    with pytest.raises(InvalidRedisUrl):
        RedisScript("nonsense://", ECHO)
