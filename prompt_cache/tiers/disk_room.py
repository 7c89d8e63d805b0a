"""How much a store may still write: its own limit, a lower one after others ran short, the disk's last tenth."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_LOOK_S = 0.5
_YIELD_S = 60.0


class DiskRoom:
    """Room in a folder for a store with this limit. `keep_free_share`: of the file system. Not thread-safe."""

    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        keep_free_share: float,
        clock: Callable[[], float] = time.time,
        statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
    ) -> None:
        if limit_bytes < 0 or not 0 <= keep_free_share < 1:
            raise ValueError("limit_bytes is at least 0, keep_free_share from 0 to below 1")
        self._folder, self._limit, self._share = folder, limit_bytes, keep_free_share
        self._clock, self._statvfs = clock, statvfs
        self._looked_at: float | None = None
        self.free = 0
        """Bytes until the share of the file system is reached that stays free; negative beyond it."""
        self._yielded, self._yielded_until = limit_bytes, 0.0

    @property
    def limit(self) -> int:
        """The most that the store may hold now."""
        return min(self._limit, self._yielded) if self._clock() < self._yielded_until else self._limit

    def look(self) -> None:
        """Ask the file system, if that was half a second ago."""
        now = self._clock()
        if self._looked_at is not None and 0 <= now - self._looked_at < _LOOK_S:
            return
        try:
            disk = self._statvfs(self._folder)
            self.free = int((disk.f_bavail - disk.f_blocks * self._share) * disk.f_frsize)
        except OSError:
            self.free = 0
        self._looked_at = now  # after that: another thread may look meanwhile, and must not take the old figure for new

    def changed(self, size: int) -> None:
        """The store has written so many bytes, or deleted them if negative."""
        self.free -= size

    def give_up(self, limit: int) -> None:
        """Hold no more than this for a minute."""
        self._yielded, self._yielded_until = max(0, limit), self._clock() + _YIELD_S
