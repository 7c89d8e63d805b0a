"""Renders and tokenizes long prompts in threads, fair between tenants: of each one at a time, in turn."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from uuid import UUID

from gateway.failures import RateLimited

THREADS = 2
MAX_WAITING = 64
"""Prompts of one tenant."""

Made = TypeVar("Made")


class PromptThreads:
    """Called from one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="prompt")
        self._waiting: OrderedDict[UUID, deque[asyncio.Future[None]]] = OrderedDict()
        self._running: set[UUID] = set()

    async def run(self, tenant: UUID, make: Callable[[], Made]) -> Made:
        """What `make` returns, called in a thread when it is this tenant's turn. Raises RateLimited."""
        waiting = self._waiting.setdefault(tenant, deque())
        if len(waiting) >= MAX_WAITING:
            raise RateLimited("Too many long prompts of yours are being read already; try again soon.", retry_after=2.0)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        self._give_turns()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end(tenant)
            raise
        making = asyncio.get_running_loop().run_in_executor(self._threads, make)
        # A thread goes on when nobody waits for it any more: the turn lasts as long as the thread is at it.
        making.add_done_callback(lambda _: self._end(tenant))
        return await asyncio.shield(making)

    def close(self) -> None:
        """Begin no other; what a thread is at is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _end(self, tenant: UUID) -> None:
        self._running.discard(tenant)
        self._give_turns()

    def _give_turns(self) -> None:
        for tenant, waiting in list(self._waiting.items()):
            while waiting and waiting[0].cancelled():
                waiting.popleft()
            if not waiting:
                del self._waiting[tenant]
            elif len(self._running) < THREADS and tenant not in self._running:
                self._running.add(tenant)
                self._waiting.move_to_end(tenant)
                waiting.popleft().set_result(None)
