"""Micro-batching: whatever is queued when the previous flush returns goes into the next. No timer, so nothing is added
to the latency of a lone item, and a crowd shares one round trip."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class BatcherClosed(Exception):
    """The batcher was closed; nothing more is taken."""


class MicroBatcher(Generic[Item, Result]):
    """Collects items of many callers into calls of `flush`, one at a time and in order.

    `flush` returns one result or exception per item, in the same order; if it raises, every item of the batch gets
    that exception. An item whose caller was cancelled before its flush began is left out; one whose flush is under
    way is done all the same.
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
        """Queue the item; await its own result. Raises BatcherClosed, and the future what `flush` answered for it."""
        if self._closed:
            raise BatcherClosed
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.append((item, future))
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())
        return future

    async def close(self) -> None:
        """Take nothing more, and wait until what was taken is done."""
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
