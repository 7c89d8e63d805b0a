"""Looks through a store's folder in slices, for a background thread; deletes the records of other identities."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from pathlib import Path

from prompt_cache.tiers.record_files import FOLDERS, RecordFiles, files_below

_MOST_BOUNDS = 10_000


class FolderScan:
    """All files of an identity's folder, some at a time. `done` when there are no more.

    `failed`: told why one of the folders cannot be listed. Its records are not found, those of the others are.
    """

    def __init__(self, files: RecordFiles, failed: Callable[[OSError], None]) -> None:
        self._files = self._names(files, failed)
        self._lock = threading.Lock()
        self._bounds: dict[str, float] = {}
        """scope -> when what is still found of it has to expire"""
        self.done = False

    def names(self, most: int) -> list[bytes | Path]:
        """Up to `most` more names, and paths of what is no record."""
        with self._lock:
            found = list(islice(self._files, most))
            self.done = self.done or len(found) < most
            return found

    def shorten(self, scope: str, until: float) -> None:
        """What is still found of this scope has to expire by then, in seconds since the Unix epoch."""
        self._bounds[scope] = until
        if len(self._bounds) > _MOST_BOUNDS:
            del self._bounds[next(iter(self._bounds))]

    def outlives(self, scope: str, expires: float) -> bool:
        """Whether a record of this scope lives longer than it may."""
        return expires > self._bounds.get(scope, inf)

    @staticmethod
    def _names(files: RecordFiles, failed: Callable[[OSError], None]) -> Iterator[bytes | Path]:
        for number in range(FOLDERS):
            try:
                yield from files.names_in(number)
            except OSError as error:
                failed(error)


def reclaim(files: RecordFiles, most: int) -> tuple[int, int]:
    """Delete up to `most` files of other identities, the longest unused and the oldest first; returns how many records
    they were, and their bytes. Raises OSError."""
    deleted = freed = 0
    for identity in files.others():
        for path, size in islice(files_below(identity), most - deleted):
            path.unlink(missing_ok=True)
            deleted += 1
            freed += size
        if deleted >= most:
            break
        _remove_folders(identity)
    return deleted, freed


def _remove_folders(folder: Path) -> None:
    """Remove a tree of empty folders."""
    for path in list(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            _remove_folders(path)
    with contextlib.suppress(OSError):
        folder.rmdir()
