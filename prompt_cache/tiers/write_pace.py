"""Paces writes to the disk, so that others' fsyncs need not wait behind the cache's."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

MOST_YIELDED_S = 5.0
"""For so long others are waited for at a time, at most."""


class WritePace:
    """One write at a time, and after each a pause, so that writes go on for `share` of the time at most.

    `wait_for_others`: waits while others need the disk, for so many seconds at most. What they took is then theirs
    once more: where they are slow, so much less is written.
    """

    def __init__(self, share: float, wait_for_others: Callable[[float], object] | None = None) -> None:
        if not 0 < share <= 1:
            raise ValueError("write_share is above 0 and at most 1")
        self._rest = 1 / share - 1
        self._wait_for_others = wait_for_others
        self._lock = threading.Lock()
        self._not_before = self._began = 0.0
        self._stopped = threading.Event()

    @contextlib.contextmanager
    def writing(self) -> Iterator[bool]:
        """Wait for the turn; yields whether to write, False after `stop`."""
        with self._lock:
            stopped = self._stopped.wait(max(0.0, self._not_before - time.monotonic()))
            self._began = time.monotonic()
            try:
                yield not stopped
            finally:
                now = time.monotonic()
                self._not_before = now + (now - self._began) * self._rest

    def pause(self) -> None:
        """In the middle of one's turn, with nothing on its way to the disk: let others have it for their share."""
        self._stopped.wait((time.monotonic() - self._began) * self._rest)
        if self._wait_for_others is not None:
            asked = time.monotonic()
            self._wait_for_others(MOST_YIELDED_S)
            self._stopped.wait(time.monotonic() - asked)
        self._began = time.monotonic()

    def stop(self) -> None:
        """Let nobody write any more; what is being written is written without pauses."""
        self._stopped.set()
