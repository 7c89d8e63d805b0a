"""Zeroing of freed blocks of host memory, off the step's thread.

What a project's blocks held must not outlive them (C5), but a step must not wait while many of them are overwritten. So
another thread zeroes what is freed, by a function that releases the interpreter's lock. A block that is wanted before
its turn is not zeroed: who takes it overwrites all of it, or frees it again.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from engine.kv_cache.memory import KvMemory

Place = tuple[int, int]
"""A layer group and a block of it."""


class BlockZeroing:
    """Zeroes the freed blocks of `memories`, one for each layer group.

    `fill`: overwrites (address, value, bytes), without the interpreter's lock.
    """

    def __init__(self, memories: Sequence[KvMemory], fill: Callable[[int, int, int], object] = ctypes.memset) -> None:
        self._memories = tuple(memories)
        self._fill = fill
        self._changed = threading.Condition()
        self._dirty: dict[Place, None] = {}
        """Freed and not zeroed, the oldest first."""
        self._zeroing: Place | None = None
        """What the thread is at."""
        self._running = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kv-zeroing")

    def freed(self, group: int, block: int) -> None:
        """A block became free. Waits for nothing."""
        with self._changed:
            self._dirty[group, block] = None
            if not self._running:
                self._running = True
                self._thread.submit(self._run)

    def taken(self, group: int, blocks: Sequence[int]) -> None:
        """Free blocks are about to be overwritten: they are not zeroed any more. Waits for one that just is."""
        with self._changed:
            for block in blocks:
                self._dirty.pop((group, block), None)
            while self._zeroing is not None and self._zeroing[0] == group and self._zeroing[1] in blocks:
                self._changed.wait()

    def wait(self) -> None:
        """Until all blocks that were freed are zeroed."""
        with self._changed:
            while self._running:
                self._changed.wait()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._zeroing = place = next(iter(self._dirty), None)
                self._running = place is not None
                self._changed.notify_all()
                if place is None:
                    return
                del self._dirty[place]
            self._zero(place)

    def _zero(self, place: Place) -> None:
        group, block = place
        held = self._memories[group].bytes_of(block)
        self._fill(held.data_ptr(), 0, held.numel())
