"""How much each project keeps of its responses, as far as a worker knows: asked now and then, off the requests' way.

Between two looks it counts what it writes itself, and looks anew when that is much. So a project exceeds its bound by
what requests that were under way write, and each worker between two looks.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from uuid import UUID

from response_store.store import ResponseStore
from storage.database.database import DatabaseUnavailable

MOST_BYTES = 4 * 1024**3
_FRESH_S = 60.0
_MUCH = 64
"""This part of the bound, written since the last look, asks for another one."""
_REMEMBERED = 10_000


@dataclass
class _Project:
    """`kept`: bytes at the last look, which began at `at`; `written`: by this worker, since then."""

    at: float = float("-inf")
    kept: int = 0
    written: int = 0
    asking: asyncio.Task[None] | None = None


class StorageBound:
    """Whether a project may keep more. What is not known yet is taken for little."""

    def __init__(self, store: ResponseStore, most: int = MOST_BYTES) -> None:
        self.most = most
        self._store = store
        self._projects: dict[UUID, _Project] = {}

    def full(self, tenant_id: UUID, project_id: UUID) -> bool:
        """Whether the project keeps as much as it may."""
        known = self._of(project_id)
        old = time.monotonic() - known.at > _FRESH_S or known.written > self.most // _MUCH
        if old and known.asking is None:
            known.asking = asyncio.create_task(self._ask(tenant_id, project_id, known))
        return known.kept + known.written >= self.most

    def wrote(self, project_id: UUID, size: int) -> None:
        """This worker keeps so many bytes more for the project."""
        self._of(project_id).written += size

    def _of(self, project_id: UUID) -> _Project:
        if project_id not in self._projects and len(self._projects) >= _REMEMBERED:
            self._projects = {id_: one for id_, one in self._projects.items() if one.asking is not None}
        return self._projects.setdefault(project_id, _Project())

    async def _ask(self, tenant_id: UUID, project_id: UUID, known: _Project) -> None:
        began, before = time.monotonic(), known.written
        try:
            known.kept = await self._store.used_bytes(tenant_id, project_id)
            # What is written while the database counts may be counted twice until the next look.
            known.at, known.written = began, known.written - before
        except DatabaseUnavailable:
            return
        finally:
            known.asking = None
