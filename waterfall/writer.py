"""Writes the times of a gateway's requests in the background, in batches, when they are settled.

Nobody waits for it. What it has no room for while the database is away is left out and counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from uuid import UUID

import structlog
from msgspec.structs import replace

from storage.backoff import Backoff
from storage.database.database import DatabaseUnavailable
from waterfall.marks import SETTLE, Marks
from waterfall.record import Record, pack
from waterfall.store import Row, WaterfallStore

log = structlog.get_logger("waterfall.writer")

MOST_WAITING = 10_000
"""Requests in memory that are not written yet."""
MOST_REFUSED = 1000
"""Of them, requests that were refused: who sends nonsense takes no room from others."""
_BATCH = 500
_GATHER_S = 0.5
_TIMEOUT_S = 60.0
"""How long after its end a request is waited for to be answered and settled."""
_STOP_S = 3.0


class Entry:
    """A request that has ended. `record` lacks the marks, of which more may come; `settles`: whether it will be
    settled."""

    __slots__ = ("ended", "marks", "project_id", "record", "refused", "request_id", "settles", "tenant_id")

    def __init__(
        self,
        request_id: UUID,
        tenant_id: UUID,
        project_id: UUID,
        marks: Marks,
        record: Record,
        *,
        settles: bool = True,
        refused: bool = False,
    ) -> None:
        self.request_id = request_id
        self.tenant_id = tenant_id
        self.project_id = project_id
        self.marks = marks
        self.record = record
        self.settles = settles
        self.refused = refused
        self.ended = time.monotonic()

    def complete(self) -> Record:
        """The record with the marks so far."""
        return replace(self.record, received_at=self.marks.received_at, marks=self.marks.offsets())


class WaterfallWriter:
    """The writer of one gateway worker. `dropped`: how many requests it had no room for. `enabled`: whether times are
    kept at all."""

    def __init__(self, store: WaterfallStore, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.dropped = 0
        self.store = store
        self._waiting: dict[UUID, Entry] = {}
        """Those that have ended, the oldest first."""
        self._refused = 0
        self._task: asyncio.Task[None] | None = None
        self._hurried = asyncio.Event()
        self._away = False

    def note(self, entry: Entry) -> None:
        """Write it later."""
        if not self.enabled:
            return
        full = len(self._waiting) >= MOST_WAITING or (entry.refused and self._refused >= MOST_REFUSED)
        if full or entry.request_id in self._waiting:
            self.dropped += 1
            return
        self._waiting[entry.request_id] = entry
        self._refused += entry.refused
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def settled(self, request_ids: Iterable[UUID]) -> None:
        """These have been settled just now."""
        waiting = self._waiting
        for request_id in request_ids:
            if (entry := waiting.get(request_id)) is not None and entry.settles:
                entry.settles = False
                entry.marks.mark(SETTLE)

    def waiting(self, request_id: UUID) -> Entry | None:
        """The request, if it has ended and is not written yet."""
        return self._waiting.get(request_id)

    async def stop(self) -> None:
        """Write what waits, for a moment."""
        self._hurried.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_STOP_S)
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        backoff = Backoff()
        try:
            while self._waiting:
                if not self._hurried.is_set():
                    await self._pause()
                batch = self._ready()
                if not batch:
                    continue
                try:
                    await self.store.write([_row(entry) for entry in batch])
                except DatabaseUnavailable as error:
                    if not self._away:
                        log.warning("times of requests cannot be written", cause=str(error))
                    self._away = True
                    await backoff.wait(self._hurried)
                    if self._hurried.is_set():
                        return
                    continue
                except Exception:
                    log.exception("times of requests are left out", requests=len(batch))
                    self.dropped += len(batch)
                self._away = False
                backoff.reset()
                for entry in batch:
                    del self._waiting[entry.request_id]
                    self._refused -= entry.refused
        finally:
            self._task = None

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(_GATHER_S):
                await self._hurried.wait()
        except TimeoutError:
            return

    def _ready(self) -> list[Entry]:
        """Those that nothing more will be learned of, a batch at most."""
        hurried, latest = self._hurried.is_set(), time.monotonic() - _TIMEOUT_S
        batch: list[Entry] = []
        for entry in self._waiting.values():
            if hurried or entry.ended < latest or (entry.marks.answered and not entry.settles):
                batch.append(entry)
                if len(batch) == _BATCH:
                    break
        return batch


def _row(entry: Entry) -> Row:
    return Row(entry.request_id, entry.tenant_id, entry.project_id, entry.marks.received_at, pack(entry.complete()))
