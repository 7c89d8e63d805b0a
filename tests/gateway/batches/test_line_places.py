"""What lines take in a gateway is bounded in number and in bytes, and each gets its turn."""

from __future__ import annotations

import asyncio
import random

from gateway.batches.line_places import LinePlaces


async def test_lines_that_run_have_no_more_than_the_places_and_bytes_there_are() -> None:
    places, pick = LinePlaces(lines=4, most=100), random.Random(7)
    running: list[int] = []
    seen: list[tuple[int, int]] = []

    async def run(length: int) -> None:
        async with places.take(length):
            running.append(length)
            seen.append((len(running), sum(min(one, 100) for one in running)))
            await asyncio.sleep(0)
            running.remove(length)

    lengths = [*[1] * 20, *(pick.choice((1, 30, 60, 100, 5000)) for _ in range(280))]
    await asyncio.gather(*map(run, lengths))
    assert len(seen) == 300
    assert max(lines for lines, _ in seen) == 4
    assert max(size for _, size in seen) == 100


async def test_a_long_line_waits_behind_no_shorter_ones() -> None:
    places, order = LinePlaces(most=100), list[int]()
    release = asyncio.Event()

    async def run(length: int) -> None:
        async with places.take(length):
            order.append(length)
            await release.wait()

    runs = []
    for length in (50, 90, 10):
        runs.append(asyncio.create_task(run(length)))
        await asyncio.sleep(0)
    assert order == [50], "90 waits, and 10 behind it"
    release.set()
    await asyncio.gather(*runs)
    assert order == [50, 90, 10]


async def test_who_gives_up_waiting_takes_nothing() -> None:
    places, release = LinePlaces(most=100), asyncio.Event()

    async def run() -> None:
        async with places.take(100):
            await release.wait()

    first, second, third = [asyncio.create_task(run()) for _ in range(3)]
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    release.set()
    async with asyncio.timeout(5):
        await asyncio.gather(first, third)
    assert second.cancelled()
    assert first.done()
    assert third.done(), "what the second one waited for is free"
