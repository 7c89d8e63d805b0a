"""Handlers that a circuit breaker guards: what of them is a wait for the database, and when they are given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from storage.database.circuit_breaker import CircuitBreaker, beside_the_database
from storage.database.database import Database, DatabaseUnavailable

SECONDS = 0.5


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = await Database.open(f"sqlite:///{tmp_path}/database.sqlite3")
    try:
        yield database
    finally:
        await database.close()


async def test_each_session_gets_the_time(database: Database) -> None:
    async def handler() -> int:
        for _ in range(3):
            async with database.reading():
                await asyncio.sleep(SECONDS * 0.4)
        return 1

    assert await CircuitBreaker(SECONDS).guard(handler()) == 1


async def test_a_handler_that_was_given_up_opens_no_further_session(database: Database) -> None:
    gate, first, second = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handler() -> None:
        try:
            async with database.reading():
                await gate.wait()
            first.set()
            async with database.reading():
                raise AssertionError("nobody waits for it")
        except DatabaseUnavailable:
            second.set()

    with pytest.raises(DatabaseUnavailable):
        await CircuitBreaker(SECONDS).guard(handler())
    assert not first.is_set(), "the session in which it was late is not interrupted"
    gate.set()
    async with asyncio.timeout(30):
        await second.wait()
    assert first.is_set()


async def test_while_the_database_is_silent_sessions_are_refused_at_once(database: Database) -> None:
    breaker, gate, probing = CircuitBreaker(SECONDS), asyncio.Event(), asyncio.Event()
    sessions = 0

    async def ask() -> None:
        nonlocal sessions
        async with database.reading():
            sessions += 1
            if sessions == 2:
                probing.set()
            await gate.wait()

    async def ask_nothing() -> int:
        return 1

    with pytest.raises(DatabaseUnavailable):
        await breaker.guard(ask())
    probe = asyncio.create_task(breaker.guard(ask()))
    await probing.wait()
    with pytest.raises(DatabaseUnavailable):
        await breaker.guard(ask())
    assert await breaker.guard(ask_nothing()) == 1, "it does not need the database"
    with pytest.raises(DatabaseUnavailable):
        await breaker.guard(ask())
    assert sessions == 2, "what asked nothing was no answer of the database"
    gate.set()
    await probe


async def test_what_is_no_wait_for_the_database_may_take_longer(database: Database) -> None:
    async def handler() -> int:
        with beside_the_database():
            await asyncio.sleep(SECONDS * 1.2)
        await database.now()
        return 1

    assert await CircuitBreaker(SECONDS).guard(handler()) == 1


async def test_the_wait_for_another_breaker_is_counted_by_that_one() -> None:
    outer, inner, gate = CircuitBreaker(SECONDS), CircuitBreaker(SECONDS * 3), asyncio.Event()

    async def question() -> int:
        await gate.wait()
        return 1

    async def handler() -> int:
        asyncio.get_running_loop().call_later(SECONDS * 1.2, gate.set)
        return await inner.wait(question())

    assert await outer.guard(handler()) == 1
