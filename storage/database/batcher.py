"""Micro-batching without a timer: all items that are queued when a flush returns go into the next one.

A lone item waits for nothing, and items that arrive together share a round trip.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class BatcherClosed(Exception):
    """The batcher was closed and takes no more items."""


class MicroBatcher(Generic[Item, Result]):
    """Collects items of many callers into calls of `flush`, one call at a time and in order.

    `flush` returns one result or exception per item, in the same order. If it raises, every item of the batch gets that
    exception. An item whose caller was cancelled before its flush began is left out; once a flush has begun, all of its
    items are done. `max_items`: the most items of one flush.
    """

    def __init__(self, flush: Callable[[list[Item]], Awaitable[list[Result | Exception]]], max_items: int) -> None:
        self._flush = flush
        self._max_items = max_items
        self._queue: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Items not yet taken into a flush."""
        return len(self._queue)

    def submit(self, item: Item) -> asyncio.Future[Result]:
        """Queue the item; the future has its result or the exception of `flush`. Raises BatcherClosed."""
        if self._closed:
            raise BatcherClosed
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.append((item, future))
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())
        return future

    async def close(self) -> None:
        """Take no more items, and wait until the queued ones are done."""
        self._closed = True
        if self._runner is not None:
            await asyncio.wait([self._runner])

    async def _run(self) -> None:
        try:
            while self._queue:
                batch: list[tuple[Item, asyncio.Future[Result]]] = []
                while self._queue and len(batch) < self._max_items:
                    entry = self._queue.popleft()
                    if not entry[1].done():
                        batch.append(entry)
                if batch:
                    await self._flush_one(batch)
        finally:
            self._runner = None
            for _, future in self._queue:  # only when this task was cancelled
                future.cancel()

    async def _flush_one(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        answers: list[Result | Exception]
        try:
            answers = await self._flush([item for item, _ in batch])
            if len(answers) != len(batch):
                raise RuntimeError(f"{len(answers)} answers to {len(batch)} items")
        except Exception as error:
            answers = [error] * len(batch)
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
