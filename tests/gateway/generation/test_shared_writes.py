"""Readers wait for the request that computes what they read: boundedly, and for nobody slower."""

from __future__ import annotations

import asyncio
from uuid import UUID

from gateway.generation.shared_writes import SharedWrites
from prompt_cache.promise.lease_decider import LeaseDecider
from prompt_cache.promise.lease_decisions import LeaseDecision, LeaseWish, Mark
from protocol.requests import Lane
from storage.database.base import new_id

PROJECT = UUID(int=1)


def decisions(count: int, *keys: str) -> list[LeaseDecision]:
    """Of so many identical requests that mark these prefixes."""
    decider, made = LeaseDecider(10**15, ()), []
    for _ in range(count):
        wish = LeaseWish(
            request_id=new_id(),
            tenant_id=PROJECT,
            project_id=PROJECT,
            model="m",
            marks=tuple(Mark(100 * (at + 1), key.encode(), "5m") for at, key in enumerate(keys or ("k",))),
        )
        decision = decider.decide(wish)
        decider.take(wish, decision)
        made.append(decision)
    return made


class Waiting:
    """Requests that join, and when they may go."""

    def __init__(self, timeout: float = 30.0) -> None:
        self.writes = SharedWrites(timeout)
        self.went: list[UUID] = []
        self.left: set[UUID] = set()
        self.tasks: list[asyncio.Task[None]] = []

    async def join(self, *made: LeaseDecision, lane: Lane = "standard") -> None:
        self.tasks += [asyncio.create_task(self._join(one, lane)) for one in made]
        await settle()

    async def _join(self, decision: LeaseDecision, lane: Lane) -> None:
        request = decision.request_id
        await self.writes.join(decision, lane, unless=lambda: request in self.left)
        self.went.append(request)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_all_go_once_the_writer_has_a_token() -> None:
    waiting, (writer, *readers) = Waiting(), decisions(5)
    await waiting.join(writer, *readers)
    assert waiting.went == [writer.request_id]
    waiting.writes.end(writer.request_id, succeeded=True)
    await settle()
    assert set(waiting.went) == {writer.request_id, *(reader.request_id for reader in readers)}
    assert len(waiting.writes) == 0


async def test_a_writer_that_fails_hands_over_to_one_at_a_time() -> None:
    waiting, made = Waiting(), decisions(4)
    await waiting.join(*made)
    for count, writer in enumerate(made[:3], 1):
        assert waiting.went == [one.request_id for one in made[:count]]
        waiting.writes.end(writer.request_id, succeeded=False)
        await settle()
    waiting.writes.end(made[3].request_id, succeeded=True)
    assert waiting.went == [one.request_id for one in made]
    assert len(waiting.writes) == 0


async def test_nobody_waits_for_a_lower_lane() -> None:
    waiting, (writer, first, second) = Waiting(), decisions(3)
    await waiting.join(writer, lane="batch")
    await waiting.join(first, lane="interactive")
    await waiting.join(second, lane="batch")
    assert waiting.went == [writer.request_id, first.request_id]
    waiting.writes.end(writer.request_id, succeeded=True)
    await asyncio.gather(*waiting.tasks)


async def test_a_wait_is_bounded_and_ends_with_its_request() -> None:
    waiting, (writer, reader, gone) = Waiting(timeout=0.3), decisions(3)
    await waiting.join(writer, reader, gone)
    waiting.left.add(gone.request_id)
    await asyncio.gather(*waiting.tasks)
    assert len(waiting.writes) == 1
    waiting.writes.end(writer.request_id, succeeded=True)
    waiting.writes.end(reader.request_id, succeeded=True)


async def test_what_is_written_beyond_is_waited_for_too() -> None:
    waiting, (writer, longer, reader) = Waiting(), [decisions(1)[0], *decisions(2, "k", "l")]
    await waiting.join(writer, longer, reader)
    assert waiting.went[0] == writer.request_id
    waiting.writes.end(writer.request_id, succeeded=True)
    waiting.writes.end(longer.request_id, succeeded=True)
    await asyncio.gather(*waiting.tasks)
