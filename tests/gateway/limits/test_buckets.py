"""The Lua script in a real Redis and its twin in memory, against an oracle in exact fractions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from fractions import Fraction
from typing import Any
from uuid import uuid4

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.limits import bucket_script
from gateway.limits.memory_buckets import MemoryBuckets
from gateway.limits.operations import (
    MICRO,
    PLACE_WAIT_US,
    UNLIMITED,
    Bounds,
    Charge,
    Operation,
    Renew,
    Reserve,
    Settle,
    SettleInput,
    Subjects,
    Verdict,
)
from gateway.limits.redis_buckets import RedisBuckets, _decoder, _encoder, prefix
from tests.fast import examples
from tests.servers import RedisServer

LEASE_US, KEEP_US = 15 * MICRO, 3600 * MICRO
START = 1_795_400_000 * MICRO
_MINUTE = 60 * MICRO


class Oracle:
    """What limits mean, without integers or laziness: levels are fractions, and everything is looked at anew."""

    def __init__(self) -> None:
        self.levels: dict[tuple[str, int], tuple[Fraction, int]] = {}
        self.places: dict[str, dict[str, int]] = {}
        self.records: dict[str, list[int]] = {}

    def level(self, bounds: Bounds, meter: int, now: int) -> Fraction:
        limit = bounds.per_minute(meter)
        level, at = self.levels.get((bounds.subject, meter), (Fraction(limit * MICRO), now))
        return min(Fraction(limit * MICRO), level + Fraction(max(0, now - at) * limit * MICRO, _MINUTE))

    def add(self, bounds: Bounds, meter: int, amount: Fraction | int, now: int) -> None:
        if (limit := bounds.per_minute(meter)) != UNLIMITED:
            level = min(Fraction(limit * MICRO), self.level(bounds, meter, now) + amount)
            self.levels[bounds.subject, meter] = (level, now)

    def running(self, bounds: Bounds, now: int) -> dict[str, int]:
        alive = {name: expiry for name, expiry in self.places.get(bounds.subject, {}).items() if expiry > now}
        self.places[bounds.subject] = alive
        return alive

    def reserve(self, asked: Reserve, now: int) -> bool:
        counts = any(max(b.input_tokens, b.output_tokens) != UNLIMITED for b in asked.subjects)
        if counts and asked.request in self.records:
            return True
        need = (MICRO, asked.input_tokens * MICRO, asked.output_tokens * MICRO)
        for b in asked.subjects:
            for meter in range(3):
                limit = b.per_minute(meter)
                # a level is whole micro-units: what is less than one is not there yet
                if limit != UNLIMITED and self.level(b, meter, now) // 1 < min(need[meter], limit * MICRO):
                    return False
            if b.concurrent != UNLIMITED and len(self.running(b, now)) >= b.concurrent:
                return False
        for b in asked.subjects:
            for meter in range(3):
                self.add(b, meter, -min(need[meter], b.per_minute(meter) * MICRO), now)
            if b.concurrent != UNLIMITED:
                self.running(b, now)[asked.request] = now + LEASE_US
        if counts:
            self.records[asked.request] = [asked.input_tokens, asked.output_tokens]
        return True

    def settle(self, subjects: Subjects, meter: int, reserved: int, actual: int, now: int) -> None:
        for b in subjects:
            self.add(b, meter, min(reserved, b.per_minute(meter)) * MICRO - actual * MICRO, now)

    def run(self, operation: Operation, now: int) -> bool | None:
        match operation:
            case Reserve():
                return self.reserve(operation, now)
            case SettleInput() if (record := self.records.get(operation.request)) and record[0] >= 0:
                self.settle(operation.subjects, 1, record[0], operation.input_tokens, now)
                record[0] = -1
            case Settle():
                if record := self.records.pop(operation.request, None):
                    if record[0] >= 0:
                        self.settle(operation.subjects, 1, record[0], operation.input_tokens, now)
                    self.settle(operation.subjects, 2, record[1], operation.output_tokens, now)
                for b in operation.subjects:
                    self.running(b, now).pop(operation.request, None)
            case Renew():
                for b in operation.subjects:
                    if b.concurrent != UNLIMITED:
                        self.running(b, now)[operation.request] = now + LEASE_US
        return None


class ScriptAt:
    """The script in a real Redis, at instants that the test chooses."""

    def __init__(self, client: Any) -> None:
        text = bucket_script.SCRIPT.replace("redis.call('TIME')", "{ARGV[4], ARGV[5]}")
        assert "TIME" not in text
        self._script = client.register_script(text)
        self._key = prefix(uuid4())

    def run(self, operations: list[Operation], now: int) -> list[Verdict | None]:
        times = (LEASE_US // 1000, KEEP_US // 1000, now // MICRO, now % MICRO)
        reply = self._script(keys=[self._key], args=[_encoder.encode(operations), *times])
        return [answer if isinstance(answer, Verdict) else None for answer in _decoder.decode(reply)]


@pytest.fixture(scope="module")
def client(redis_url: str) -> Iterator[Any]:
    connection = redis.Redis.from_url(redis_url)
    yield connection
    connection.close()


LIMIT = st.one_of(st.just(UNLIMITED), st.integers(1, 7), st.sampled_from([60, 977, 10**9]))
SUBJECTS = st.lists(
    st.builds(Bounds, st.sampled_from(["p", "k"]), LIMIT, LIMIT, LIMIT, st.sampled_from([UNLIMITED, 1, 2])),
    min_size=1,
    max_size=2,
    unique_by=lambda bounds: bounds.subject,
).map(tuple)
NAME, TOKENS = st.sampled_from("abcde"), st.integers(0, 1500)
PAUSE = st.sampled_from([0, 1, 17, 999, MICRO, 61 * MICRO // 7, 16 * MICRO, 50 * MICRO, 300 * MICRO])


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(subjects=SUBJECTS, data=st.data())
def test_script_and_twin_agree_with_the_oracle(client: Any, subjects: Subjects, data: st.DataObject) -> None:
    """The same answers, levels and waits, whatever is asked in whatever order."""
    now = [START]
    script, twin, oracle = ScriptAt(client), MemoryBuckets(LEASE_US, KEEP_US, lambda: now[0]), Oracle()
    operation = st.one_of(
        st.builds(Reserve, NAME, TOKENS, TOKENS, st.just(subjects)),
        st.builds(SettleInput, NAME, TOKENS, st.just(subjects)),
        st.builds(Settle, NAME, TOKENS, TOKENS, st.just(subjects)),
        st.builds(Renew, NAME, st.just(subjects)),
    )
    for pause, batch in data.draw(st.lists(st.tuples(PAUSE, st.lists(operation, max_size=4)), max_size=12)):
        now[0] += pause
        answers = script.run(batch, now[0])
        assert answers == [twin.run(one) for one in batch]
        for one, answer in zip(batch, answers, strict=True):
            allowed = oracle.run(one, now[0])
            if answer is not None:
                assert answer.allowed == allowed
                assert answer.allowed == (answer.wait == 0)
        probe = Reserve("probe", 10**6, 10**6, subjects)
        last = script.run([probe], now[0])[0]
        assert last == twin.run(probe)
        assert last is not None
        assert last.allowed == oracle.run(probe, now[0])
        for bounds, levels in zip(subjects, last.levels, strict=True):
            for meter, level in enumerate((levels.requests, levels.input_tokens, levels.output_tokens)):
                if bounds.per_minute(meter) != UNLIMITED:
                    assert level == oracle.level(bounds, meter, now[0]) // 1
                    assert level <= bounds.per_minute(meter) * MICRO
        end = Settle("probe", 10**6, 10**6, subjects)
        script.run([end], now[0])
        twin.run(end)
        oracle.run(end, now[0])


class Either:
    """A script or a twin, with the same calls."""

    def __init__(self, client: Any | None) -> None:
        self.now = START
        self._script = None if client is None else ScriptAt(client)
        self._twin = MemoryBuckets(LEASE_US, KEEP_US, lambda: self.now)

    def __call__(self, operation: Operation) -> Verdict | None:
        return self._twin.run(operation) if self._script is None else self._script.run([operation], self.now)[0]

    def reserve(self, name: str, subjects: Subjects, input_tokens: int = 0, output_tokens: int = 0) -> Verdict:
        verdict = self(Reserve(name, input_tokens, output_tokens, subjects))
        assert verdict is not None
        return verdict


@pytest.fixture(params=["redis", "memory"])
def buckets(request: pytest.FixtureRequest, client: Any) -> Either:
    return Either(client if request.param == "redis" else None)


def test_waiting_as_told_is_enough_and_less_is_not(buckets: Either) -> None:
    subjects = (Bounds("p", 7, 977),)
    for number in range(7):
        assert buckets.reserve(f"r{number}", subjects, 100).allowed
    refused = buckets.reserve("r7", subjects, 600)
    assert not refused.allowed
    assert refused.meter == 1
    buckets.now += refused.wait - 1
    assert not buckets.reserve("r7", subjects, 600).allowed
    buckets.now += 1
    assert buckets.reserve("r7", subjects, 600).allowed


def test_all_or_nothing(buckets: Either) -> None:
    """What the key refuses takes nothing from the project."""
    subjects = (Bounds("p", 10, 1000, 1000, 5), Bounds("k", 1))
    first = buckets.reserve("a", subjects, 10, 10)
    second = buckets.reserve("b", subjects, 10, 10)
    assert first.allowed
    assert not second.allowed
    assert (second.subject, second.meter) == (1, 0)
    assert second.levels[0] == first.levels[0]


def test_settling_twice_and_late_counts_once_and_never_lifts_above_capacity(buckets: Either) -> None:
    subjects = (Bounds("p", UNLIMITED, 1000, 500),)
    buckets.reserve("a", subjects, 800, 400)
    for _ in range(2):
        buckets(SettleInput("a", 100, subjects))
    assert buckets.reserve("b", subjects).levels[0].input_tokens == 900 * MICRO
    buckets.now += 10 * _MINUTE
    for _ in range(2):
        buckets(Settle("a", 100, 0, subjects))
    buckets(SettleInput("a", 100, subjects))
    levels = buckets.reserve("c", subjects).levels[0]
    assert (levels.input_tokens, levels.output_tokens) == (1000 * MICRO, 500 * MICRO)


def test_more_than_a_bucket_runs_when_it_is_full_and_is_paid_off_afterwards(buckets: Either) -> None:
    subjects = (Bounds("p", UNLIMITED, 1000),)
    assert buckets.reserve("a", subjects, 5000).allowed
    buckets(SettleInput("a", 5000, subjects))
    refused = buckets.reserve("b", subjects, 1)
    assert refused.levels[0].input_tokens == -4000 * MICRO
    buckets.now += refused.wait
    assert buckets.reserve("b", subjects, 1).allowed
    assert refused.wait == 4 * _MINUTE + 60_000


def test_places_come_back_when_they_are_not_renewed(buckets: Either) -> None:
    subjects = (Bounds("p", concurrent=2),)
    assert buckets.reserve("a", subjects).allowed
    assert buckets.reserve("b", subjects).allowed
    refused = buckets.reserve("c", subjects)
    assert (refused.allowed, refused.meter, refused.wait) == (False, 3, PLACE_WAIT_US)
    buckets.now += LEASE_US - MICRO
    buckets(Renew("b", subjects))
    buckets.now += MICRO
    assert buckets.reserve("c", subjects).allowed
    assert not buckets.reserve("d", subjects).allowed
    buckets(Settle("b", 0, 0, subjects))
    assert buckets.reserve("d", subjects).allowed


def test_a_clock_that_is_set_back_or_forward(buckets: Either) -> None:
    """Nothing is refilled twice, nobody waits for the hour to pass again, and a place does not last for it."""
    subjects = (Bounds("p", 2, concurrent=3),)
    assert buckets.reserve("a", subjects).allowed
    assert buckets.reserve("b", subjects).allowed
    buckets.now -= 60 * _MINUTE
    assert not buckets.reserve("c", subjects).allowed
    buckets.now += 30 * MICRO
    assert buckets.reserve("c", subjects).allowed
    assert not buckets.reserve("d", subjects).allowed
    buckets.now += 60 * _MINUTE
    assert buckets.reserve("d", subjects).allowed
    assert buckets.reserve("e", subjects).allowed
    assert not buckets.reserve("f", subjects).allowed


def test_changed_limits_apply_at_once(buckets: Either) -> None:
    assert buckets.reserve("a", (Bounds("p", 10),)).levels[0].requests == 9 * MICRO
    assert buckets.reserve("b", (Bounds("p", 3),)).levels[0].requests == 2 * MICRO
    assert buckets.reserve("c", (Bounds("p", 100),)).levels[0].requests == 1 * MICRO


def test_a_charge_empties_and_does_not_indebt(buckets: Either) -> None:
    subjects = (Bounds("p", 10, 100),)
    buckets.reserve("a", subjects, 10)
    buckets(Charge((4 * MICRO, 500 * MICRO, 0), subjects))
    levels = buckets.reserve("b", (Bounds("p", 10, 100),)).levels[0]
    assert (levels.requests, levels.input_tokens) == (4 * MICRO, 0)


async def test_tenants_of_one_batch_are_apart(redis_url: str) -> None:
    buckets = RedisBuckets(redis_url, LEASE_US, KEEP_US, timeout=5.0)
    one, other = uuid4(), uuid4()
    subjects = (Bounds("p", 2),)
    batch: list[Any] = [(tenant, Reserve(f"r{n}", 0, 0, subjects)) for n in range(3) for tenant in (one, other)]
    try:
        answers = await buckets.run(batch)
        assert [answer.allowed for answer in answers if answer] == [True, True, True, True, False, False]
        counted = await asyncio.gather(buckets.workers("w1"), buckets.workers("w2"))
        assert counted in ([(1, 0), (2, 1)], [(2, 0), (1, 0)])
        assert [await buckets.workers(name) for name in ("w2", "w1", "w0", "w1")] == [(2, 1), (2, 0), (3, 0), (3, 1)]
    finally:
        await buckets.close()


def test_a_restart_without_data_fills_the_buckets_and_keeps_what_is_renewed() -> None:
    server = RedisServer()
    with server:
        client = redis.Redis.from_url(server.url)
        script = ScriptAt(client)
        subjects = (Bounds("p", 1, concurrent=1),)
        assert [answer.allowed for answer in script.run([Reserve("a", 0, 0, subjects)], START) if answer] == [True]
        client.flushall()
        client.script_flush()
        answers = script.run([Renew("a", subjects), Reserve("b", 0, 0, subjects)], START)
        assert answers[1] is not None
        assert (answers[1].allowed, answers[1].meter) == (False, 3)
        assert answers[1].levels[0].requests == MICRO
        client.close()
