"""Identical cold prefixes that arrive together: one request computes them, the others wait until they can be read.

This only spares the replicas work. Who writes and who reads, and so who is billed for what, is decided before
(`prompt_cache.promise.lease_decisions`). So a wait is bounded, nobody waits for a request of a lower lane, and nobody
waits for one of another gateway. A writer is waited for until its first token. If it ends before that, the first of
those who wait writes in its place, and the others wait for that one. An input that made a replica fail does not fail
one writer after the other: the replica's quarantine refuses it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from uuid import UUID

from prompt_cache.promise.lease_decisions import LeaseDecision, LeaseKey
from protocol.requests import LANES, Lane

WAIT_S = 15.0
_LOOK_S = 0.25


class _Write:
    """One request that computes a prefix."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.over = asyncio.Event()
        self.succeeded = False


class SharedWrites:
    """The writes that run in one gateway worker. `timeout`: seconds that a reader waits at most."""

    def __init__(self, timeout: float = WAIT_S) -> None:
        self._timeout = timeout
        self._writes: dict[LeaseKey, _Write] = {}
        self._of_request: dict[UUID, tuple[_Write, list[LeaseKey]]] = {}

    def __len__(self) -> int:
        """How many prefixes are being computed."""
        return len(self._writes)

    async def join(self, decision: LeaseDecision, lane: Lane, *, unless: Callable[[], bool]) -> bool:
        """Wait for the request that writes what this one reads; then begin the writes of this one. Returns early once
        `unless` holds. Each request that joined must `end`. True if there was a writer to wait for."""
        hit = decision.hit
        keys = [written.key for written in decision.written]
        shared = hit is not None and decision.collapsed and hit.key in self._writes
        if hit is not None and shared and await self._wait(hit.key, lane, unless):
            keys.append(hit.key)
        write = _Write(lane)
        begun = [key for key in keys if key not in self._writes]
        if begun:
            self._writes |= dict.fromkeys(begun, write)
            self._of_request[decision.request_id] = write, begun
        return shared

    def end(self, request_id: UUID, *, succeeded: bool) -> None:
        """The request has its first token, or ended without one."""
        write, keys = self._of_request.pop(request_id, (None, []))
        if write is not None:
            for key in keys:
                del self._writes[key]
            write.succeeded = succeeded
            write.over.set()

    async def _wait(self, key: LeaseKey, lane: Lane, unless: Callable[[], bool]) -> bool:
        """Wait until nobody computes this prefix any more; True if it is now ours to compute."""
        until = time.monotonic() + self._timeout
        failed = False
        while (write := self._writes.get(key)) is not None and LANES.index(write.lane) <= LANES.index(lane):
            while not write.over.is_set():
                left = until - time.monotonic()
                if left <= 0 or unless():
                    return False
                try:
                    async with asyncio.timeout(min(left, _LOOK_S)):
                        await write.over.wait()
                except TimeoutError:
                    continue
            if write.succeeded:
                return False
            failed = True
        return failed
