"""How much each project keeps of its responses, as far as a worker knows: asked now and then, off the requests' way."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

from response_store.store import ResponseStore
from storage.database.database import DatabaseUnavailable

MOST_BYTES = 4 * 1024**3
_FRESH_S = 60.0
_REMEMBERED = 10_000


class StorageBound:
    """Whether a project may keep more. What is not known yet is taken for little."""

    def __init__(self, store: ResponseStore, most: int = MOST_BYTES) -> None:
        self.most = most
        self._store = store
        self._known: dict[UUID, tuple[float, int]] = {}
        self._asking: dict[UUID, asyncio.Task[None]] = {}

    def full(self, tenant_id: UUID, project_id: UUID) -> bool:
        """Whether the project keeps as much as it may."""
        at, used = self._known.get(project_id, (0.0, 0))
        if time.monotonic() - at > _FRESH_S and project_id not in self._asking:
            task = self._asking[project_id] = asyncio.create_task(self._ask(tenant_id, project_id))
            task.add_done_callback(lambda _: self._asking.pop(project_id, None))
        return used >= self.most

    async def _ask(self, tenant_id: UUID, project_id: UUID) -> None:
        try:
            used = await self._store.used_bytes(tenant_id, project_id)
        except DatabaseUnavailable:
            return
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[project_id] = (time.monotonic(), used)
