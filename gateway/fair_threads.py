"""Threads for what would hold up the event loop, shared fairly between tenants.

A few threads for the whole worker, since threads take turns with the event loop. Tenants take turns too: whoever has
the fewest of the threads is next, and of these the one who has waited longest; a tenant that sends a hundred large
requests delays another's by one of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")

THREADS = 2


class FairThreads:
    """Runs functions in `threads` threads; `close` at the end."""

    def __init__(self, threads: int = THREADS) -> None:
        self._free = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="large-request")
        self._queues: dict[Hashable, deque[tuple[Callable[[], Any], asyncio.Future[Any]]]] = {}
        """By tenant, in the order of their turns; no empty ones."""
        self._running: Counter[Hashable] = Counter()

    async def run(self, tenant: Hashable, work: Callable[[], Result]) -> Result:
        """What `work` returns or raises, in a thread. If the caller is cancelled, work that has not begun is not
        done."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append((work, future))
        self._start()
        return await future

    def close(self) -> None:
        """Start nothing more."""
        for queue in self._queues.values():
            for _, future in queue:
                future.cancel()
        self._queues.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        while self._free and self._queues:
            tenant = min(self._queues, key=lambda one: self._running[one])
            queue = self._queues.pop(tenant)
            work, future = queue.popleft()
            if queue:
                self._queues[tenant] = queue  # behind the others
            if not future.done():
                self._free -= 1
                self._running[tenant] += 1
                running = asyncio.get_running_loop().run_in_executor(self._pool, work)
                running.add_done_callback(partial(self._end, tenant, future))

    def _end(self, tenant: Hashable, future: asyncio.Future[Any], done: asyncio.Future[Any]) -> None:
        self._free += 1
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if future.done():
            pass
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(done.result())
        self._start()
