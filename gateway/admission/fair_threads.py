"""Runs work that would block the event loop in threads, which tenants share fairly.

A worker has few threads, since they take turns with the event loop. Tenants take turns too, and no tenant has all the
threads: one that sends a hundred large requests does not delay another tenant's first one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from gateway.errors import RateLimited

Result = TypeVar("Result")

THREADS = 2
MAX_WAITING = 256
"""Requests of one tenant. Their bytes are bounded by `BodyBudget`."""


class FairThreads:
    """Runs functions in `threads` threads; `close` at the end."""

    def __init__(self, threads: int = THREADS) -> None:
        self._free = threads
        self._share = max(1, threads - 1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="large-request")
        self._queues: dict[Hashable, deque[tuple[Callable[[], Any], asyncio.Future[Any]]]] = {}
        """tenant -> its waiting work, in the order of the tenants' turns; no empty queues."""
        self._running: Counter[Hashable] = Counter()

    async def run(self, tenant: Hashable, work: Callable[[], Result]) -> Result:
        """Run `work` in a thread; returns or raises what it does. If the caller is cancelled, work that has not begun
        is dropped. Raises RateLimited if too much of the tenant's work waits already."""
        waiting = self._queues.get(tenant, ())
        if len(waiting) >= MAX_WAITING:
            raise RateLimited("Too many large requests of yours are being read; try again soon.", retry_after=2.0)
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
        while self._free:
            # A tenant whose work nobody waits for any more takes no turn.
            tenant = next((name for name in list(self._queues) if self._may_start(name)), None)
            if tenant is None:
                return
            queue = self._queues.pop(tenant)
            work, future = queue.popleft()
            if queue:
                self._queues[tenant] = queue  # behind the others
            self._free -= 1
            self._running[tenant] += 1
            running = asyncio.get_running_loop().run_in_executor(self._pool, work)
            running.add_done_callback(partial(self._end, tenant, future))

    def _may_start(self, tenant: Hashable) -> bool:
        queue = self._queues[tenant]
        while queue and queue[0][1].done():
            queue.popleft()
        if not queue:
            del self._queues[tenant]
        return bool(queue) and self._running[tenant] < self._share

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
