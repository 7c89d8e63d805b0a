"""How long something takes, on a machine that may stand still meanwhile."""

from __future__ import annotations

import threading
import time
from types import TracebackType

_TICK_S = 0.02
_MOST_S = 0.1
"""A tick that lasted longer was a pause for the rest of it."""


class Awake:
    """In a `with`: `seconds` since it began, of which a pause of the machine counts as a tenth of a second at most, and
    how long it was `paused` beside them. A virtual machine that gets no time holds up whom we wait for as well. What
    this process computed meanwhile is no pause, though it held up the clock's thread."""

    def __init__(self) -> None:
        self._ticks = 0.0
        self._paused = 0.0
        self._looked = time.monotonic()
        self._computed = time.process_time()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="awake", daemon=True)

    def __enter__(self) -> Awake:
        self._looked, self._computed = time.monotonic(), time.process_time()
        self._watching.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._watching.join()

    @property
    def seconds(self) -> float:
        return self._look()[0]

    @property
    def paused(self) -> float:
        return self._look()[1]

    def _look(self) -> tuple[float, float]:
        with self._lock:
            now, computed = time.monotonic(), time.process_time()
            passed, own = now - self._looked, computed - self._computed
            self._looked, self._computed = now, computed
            counted = min(passed, max(_MOST_S, own))
            self._ticks += counted
            self._paused += passed - counted
            return self._ticks, self._paused

    def _watch(self) -> None:
        while not self._over.wait(_TICK_S):
            self._look()
