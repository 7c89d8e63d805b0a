"""Free disk space: which errors mean that a disk is full, and when to refuse new work so that running work can end."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

logger = structlog.get_logger("storage.disk_space")

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No space left, quota exceeded, file too large."""
RESERVE_BYTES = 64 * 1024 * 1024
RESERVE_SHARE = 50
"""The reserve is at most the disk's size divided by this."""
_LEAST_INODES = 16
_LOOK_S = 0.5


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, means that a file cannot grow for lack of space."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            return True
        error = error.__cause__
    return False


class DiskWatch:
    """Watches whether the disks of some folders have room for what running requests still have to record.

    A disk is full when less than `RESERVE_BYTES` are free, or than 1 / `RESERVE_SHARE` of a small disk. Changes are
    logged.
    """

    def __init__(self, folders: Iterable[Path], clock: Callable[[], float] = time.monotonic) -> None:
        self._folders = tuple(dict.fromkeys(folders))
        self._clock = clock
        self._looked_at: float | None = None
        self._problem: str | None = None
        self._free = 0

    @property
    def problem(self) -> str | None:
        """What is wrong with a disk; None if all have room."""
        self._look()
        return self._problem

    @property
    def full(self) -> bool:
        """Whether new work should be refused."""
        return self.problem is not None

    @property
    def free_bytes(self) -> int:
        """What is free on the fullest of the disks."""
        self._look()
        return self._free

    def _look(self) -> None:
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        found: str | None = None
        free: list[int] = []
        for folder in self._folders:
            try:
                disk = os.statvfs(folder)
            except OSError as error:
                found = found or f"{folder} cannot be used: {error.strerror}"
                free.append(0)
                continue
            free.append(disk.f_bavail * disk.f_frsize)
            reserve = min(RESERVE_BYTES, disk.f_blocks * disk.f_frsize // RESERVE_SHARE)
            no_inodes = disk.f_files > 0 and disk.f_favail < _LEAST_INODES
            if free[-1] < reserve or no_inodes:
                found = found or f"the disk of {folder} is full"
        self._free = min(free, default=0)
        if (found is None) != (self._problem is None):
            if found is None:
                logger.info("the disk has room again; requests are taken", free_bytes=self._free)
            else:
                logger.error("new requests are refused until the disk has room", cause=found, free_bytes=self._free)
        self._problem = found
