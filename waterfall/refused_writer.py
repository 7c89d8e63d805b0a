"""Writes refused requests in the background, a bounded number of each tenant.

Nobody waits for it, and none takes another tenant's room: each has a part of its own of the memory and of every write,
so that who is refused a thousand times a second hides nobody else's.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import structlog

from storage.backoff import Backoff
from storage.database.database import DatabaseUnavailable
from waterfall.refused_requests import RefusedRequest, RefusedRequestStore

log = structlog.get_logger("waterfall.refused_writer")

MOST_OF_TENANT = 20
"""Refused requests of one tenant that wait to be written: about so many a second are kept."""
MOST_TENANTS = 1000
"""Tenants whose refused requests wait."""
MOST_TEXT = 300
"""Characters of a message that are kept."""
_TENANTS_AT_ONCE = 20
_GATHER_S = 1.0
_STOP_S = 3.0


class RefusedRequestWriter:
    """The writer of one gateway worker. `dropped`: how many it had no room for. `enabled`: whether any are kept."""

    def __init__(self, store: RefusedRequestStore, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.dropped = 0
        self.store = store
        self._waiting: dict[UUID, list[RefusedRequest]] = {}
        """By tenant, whoever waits the longest first."""
        self._task: asyncio.Task[None] | None = None
        self._hurried = asyncio.Event()

    def note(self, refused: RefusedRequest) -> None:
        """Write it later."""
        if not self.enabled:
            return
        mine = self._waiting.get(refused.tenant_id)
        if mine is None:
            if len(self._waiting) >= MOST_TENANTS:
                self.dropped += 1
                return
            mine = self._waiting[refused.tenant_id] = []
        if len(mine) >= MOST_OF_TENANT:
            self.dropped += 1
            return
        mine.append(refused)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Write what waits, for a moment."""
        self._hurried.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_STOP_S)
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        backoff, away = Backoff(), False
        try:
            while self._waiting:
                if len(self._waiting) <= _TENANTS_AT_ONCE:
                    await self._pause()
                turn = list(self._waiting)[:_TENANTS_AT_ONCE]
                batch = [_plain(one) for tenant in turn for one in self._waiting[tenant]]
                try:
                    await self.store.write(batch)
                except DatabaseUnavailable as error:
                    if not away:
                        log.warning("refused requests cannot be written", cause=str(error))
                    away = True
                    await backoff.wait(self._hurried)
                    if self._hurried.is_set():
                        return
                    continue
                except Exception:
                    log.exception("refused requests are left out", requests=len(batch))
                    self.dropped += len(batch)
                away = False
                backoff.reset()
                self._remove(turn, {one.request_id for one in batch})
        finally:
            self._task = None

    def _remove(self, tenants: list[UUID], written: set[UUID]) -> None:
        for tenant in tenants:
            left = [one for one in self._waiting.pop(tenant) if one.request_id not in written]
            if left:  # it came while the others were written: behind the other tenants
                self._waiting[tenant] = left

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(_GATHER_S):
                await self._hurried.wait()
        except TimeoutError:
            return


def _plain(refused: RefusedRequest) -> RefusedRequest:
    """As both databases can keep it: one line of bounded length, without NUL and lone surrogates."""
    message = refused.message[:MOST_TEXT].encode(errors="replace").decode()
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in message)
    return msgspec.structs.replace(refused, message=shown)
