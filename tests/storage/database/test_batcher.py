"""Micro-batching: nobody waits for a timer, everybody gets their own answer."""

from __future__ import annotations

import asyncio

import pytest

from storage.database.batcher import BatcherClosed, MicroBatcher


class Recorder:
    """Doubles numbers in batches; holds each flush until told."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def flush(self, items: list[int]) -> list[int | Exception]:
        self.batches.append(items)
        await self.gate.wait()
        if 13 in items:
            raise RuntimeError("unlucky")
        return [ValueError(item) if item < 0 else 2 * item for item in items]


async def test_a_lone_item_is_flushed_at_once_and_a_crowd_together() -> None:
    recorder = Recorder()
    batcher = MicroBatcher(recorder.flush, 3)
    assert await batcher.submit(1) == 2
    recorder.gate.clear()
    tasks = [asyncio.ensure_future(batcher.submit(n)) for n in range(2, 9)]
    await asyncio.sleep(0.01)
    recorder.gate.set()
    assert await asyncio.gather(*tasks) == [2 * n for n in range(2, 9)]
    assert recorder.batches == [[1], [2, 3, 4], [5, 6, 7], [8]]
    assert batcher.waiting == 0


async def test_each_gets_its_own_error_and_a_failed_flush_fails_its_batch_alone() -> None:
    recorder = Recorder()
    batcher = MicroBatcher(recorder.flush, 2)
    answers = await asyncio.gather(*(batcher.submit(n) for n in (1, -1, 2, 13, 4)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [int, ValueError, RuntimeError, RuntimeError, int]


async def test_a_wrong_number_of_answers_is_an_error() -> None:
    async def flush(items: list[int]) -> list[int | Exception]:
        return []

    with pytest.raises(RuntimeError, match="0 answers to 1 items"):
        await MicroBatcher(flush, 5).submit(1)


async def test_who_gives_up_while_queued_is_left_out() -> None:
    recorder = Recorder()
    batcher = MicroBatcher(recorder.flush, 10)
    recorder.gate.clear()
    first = asyncio.ensure_future(batcher.submit(1))
    await asyncio.sleep(0)
    quitter, stayer = asyncio.ensure_future(batcher.submit(2)), asyncio.ensure_future(batcher.submit(3))
    await asyncio.sleep(0.01)
    quitter.cancel()
    first.cancel()  # its flush is under way and goes on
    recorder.gate.set()
    assert await stayer == 6
    assert recorder.batches == [[1], [3]]
    await batcher.close()
    with pytest.raises(BatcherClosed):
        await batcher.submit(1)
