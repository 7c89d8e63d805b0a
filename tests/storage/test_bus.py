"""The bus and its twin: every subscriber hears, and who may have missed something is told."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator

import pytest

from storage.bus import Bus, BusUnavailable, InvalidRedisUrl, LocalBus, RedisBus
from tests.awake import Awake
from tests.servers import redis_server
from tests.waiting import until


@pytest.fixture(params=["local", "redis"])
async def bus(request: pytest.FixtureRequest, patient_bus: None) -> AsyncIterator[Bus]:
    bus: Bus = LocalBus() if request.param == "local" else RedisBus(request.getfixturevalue("redis_url"))
    yield bus
    await bus.close()


async def test_every_subscriber_of_the_topic_hears_in_order(bus: Bus) -> None:
    one: list[bytes] = []
    two: list[bytes] = []
    other: list[bytes] = []
    gaps: list[None] = []
    await bus.subscribe("a", one.append, lambda: gaps.append(None))
    await bus.subscribe("a", two.append, lambda: gaps.append(None))
    await bus.subscribe("b", other.append, lambda: gaps.append(None))
    payloads = [b"", b"\0\xff", b"x" * 10_000]
    for payload in payloads:
        await bus.publish("a", payload)
    await bus.publish("b", b"b")
    await bus.publish("nobody", b"c")
    await until(lambda: len(one) == len(two) == 3 and len(other) == 1)
    assert one == two == payloads
    assert gaps == []


async def test_a_callback_that_fails_harms_no_other(bus: Bus) -> None:
    heard: list[bytes] = []

    def fail(payload: bytes) -> None:
        raise RuntimeError

    await bus.subscribe("a", fail, lambda: None)
    await bus.subscribe("a", heard.append, lambda: None)
    for _ in range(2):
        await bus.publish("a", b"x")
    await until(lambda: len(heard) == 2)
    assert heard == [b"x", b"x"]


async def test_nobody_is_called_after_close(bus: Bus) -> None:
    heard: list[bytes] = []
    await bus.subscribe("a", heard.append, lambda: None)
    if isinstance(bus, LocalBus):
        await bus.publish("a", b"x")
    await bus.close()
    await asyncio.sleep(0.01)
    assert heard == []


@pytest.mark.parametrize("url", ["", "http://x", "redis://:secret@h:port/0", "localhost:6379"])
def test_a_malformed_url_is_refused_naming_the_setting(url: str) -> None:
    with pytest.raises(InvalidRedisUrl, match="TURNPIKE_REDIS_URL") as refusal:
        RedisBus(url)
    assert "secret" not in str(refusal.value)


@pytest.mark.alone
@pytest.mark.usefixtures("patient_bus")
async def test_redis_goes_away_and_comes_back() -> None:
    heard: list[bytes] = []
    gaps: list[None] = []
    with redis_server() as server:
        bus = RedisBus(server.url)
        await bus.subscribe("a", heard.append, lambda: gaps.append(None))
        await bus.publish("a", b"1")
        await until(lambda: heard == [b"1"])
        await asyncio.to_thread(server.stop, signal.SIGKILL)
        with Awake() as awake, pytest.raises(BusUnavailable):
            await bus.publish("a", b"2")
        assert awake.seconds < 1
        assert gaps == []
        await asyncio.to_thread(server.start)
        await until(lambda: len(gaps) == 1)
        await bus.publish("a", b"3")
        await until(lambda: heard == [b"1", b"3"])
        await bus.close()


@pytest.mark.alone
async def test_a_redis_that_hangs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.bus._PING_INTERVAL", 0.1)
    monkeypatch.setattr("storage.bus._SILENCE_LIMIT", 0.3)
    gaps: list[None] = []
    with redis_server() as server:
        bus = RedisBus(server.url)
        await bus.subscribe("a", lambda _: None, lambda: gaps.append(None))
        await asyncio.sleep(0.6)
        assert bus._listening.is_set()  # quiet, and answering pings
        assert server._process is not None
        server._process.send_signal(signal.SIGSTOP)
        took = []
        for _ in range(3):  # on a busy machine one of them may wait for a processor
            with Awake() as awake, pytest.raises(BusUnavailable):
                await bus.publish("a", b"x")
            took.append(awake.seconds)
        assert min(took) < 0.3
        await until(lambda: not bus._listening.is_set())
        server._process.send_signal(signal.SIGCONT)
        await until(lambda: len(gaps) >= 1)
        await bus.close()


@pytest.mark.usefixtures("patient_bus")
async def test_a_pause_of_ours_is_not_the_silence_of_redis(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.bus._PING_INTERVAL", 0.1)
    monkeypatch.setattr("storage.bus._SILENCE_LIMIT", 0.3)
    heard: list[bytes] = []
    gaps: list[None] = []
    bus = RedisBus(redis_url)
    await bus.subscribe("a", heard.append, lambda: gaps.append(None))
    time.sleep(1)  # noqa: ASYNC251  # nothing of this process runs
    await bus.publish("a", b"1")
    await until(lambda: heard == [b"1"])
    assert gaps == [], "nothing was missed"
    await bus.close()


async def test_subscribing_without_redis_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.bus._PUBLISH_TIMEOUT", 30.0)
    heard: list[bytes] = []
    gaps: list[None] = []
    with redis_server() as server:
        await asyncio.to_thread(server.stop)
        bus = RedisBus(server.url)
        await bus.subscribe("a", heard.append, lambda: gaps.append(None))
        await asyncio.to_thread(server.start)
        await until(lambda: len(gaps) == 1)
        await bus.publish("a", b"1")
        await until(lambda: heard == [b"1"])
        await bus.close()
    assert len(gaps) == 1, "what was missed while Redis was away is told once"
