"""Delivers what steps brought, in order, once the journal has it: by a thread of its own.

A disk that takes long to take the journal's records holds up what is to be delivered, and no step. The step's thread
waits for `PATIENCE_S`, in which almost every write ends, so that tokens go out before the next step is scheduled. It
waits longer only where `MOST_WAITING` steps are not delivered, or where the disk is full: then all work waits for room.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from engine.core.output_processor import Event
from engine.server.journal import Journal

logger = structlog.get_logger("engine.server.journaled_delivery")

PATIENCE_S = 0.005
MOST_WAITING = 1_024
DISK_FULL_PAUSE_S = 0.1
"""Seconds between two attempts to write a journal whose disk is full."""
_SLOW_S = 1.0
"""A write that takes longer is worth a word in the log."""


class JournaledDelivery:
    """`deliver` is called in this thread. `failed`: called there when nothing more is delivered, since the journal
    cannot be written or `deliver` raised; `put` then raises that error."""

    def __init__(
        self, journal: Journal, deliver: Callable[[Sequence[Event]], None], failed: Callable[[], None]
    ) -> None:
        self._journal = journal
        self._deliver = deliver
        self._failed = failed
        self._changed = threading.Condition()
        self._waiting: deque[Sequence[Event]] = deque()
        """By step, the oldest first: what is not delivered."""
        self._error: BaseException | None = None
        self._closing = False
        self._abandoned = threading.Event()
        self.blocked = False
        """Whether the step's thread waits for the disk. Any thread may read it."""
        self._thread = threading.Thread(target=self._main, name="delivery", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, events: Sequence[Event]) -> None:
        """Deliver these when all that the journal was told so far is written. Raises what delivering raised."""
        with self._changed:
            self._waiting.append(events)
            self._changed.notify_all()
            if len(self._waiting) == 1:
                self._changed.wait_for(lambda: not self._waiting or self._ended, PATIENCE_S)
            self.blocked = True
            self._changed.wait_for(lambda: self._has_room or self._ended)
            self.blocked = False
        self.check()

    def check(self) -> None:
        """Raise what delivering raised, if it did."""
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """The replica stops: a full disk is not waited for any longer, and what waits for it is not delivered."""
        self._abandoned.set()

    def close(self) -> None:
        """Deliver what is left, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    # ------------------------------------------------------------ inside

    @property
    def _has_room(self) -> bool:
        return len(self._waiting) < (1 if self._journal.full else MOST_WAITING)

    @property
    def _ended(self) -> bool:
        return self._error is not None or not self._thread.is_alive()

    def _main(self) -> None:
        try:
            while (some := self._next()) and self._write():
                for events in some:
                    if events:
                        self._deliver(events)
                with self._changed:
                    for _ in some:
                        self._waiting.popleft()
                    self._changed.notify_all()
        except BaseException as error:
            self._error = error
            self._failed()
        finally:
            with self._changed:
                self._waiting.clear()
                self._changed.notify_all()

    def _next(self) -> list[Sequence[Event]]:
        """All that is to be delivered; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return list(self._waiting)

    def _write(self) -> bool:
        """Write the journal, however long its disk is full. Returns False if the replica is to stop before that: then
        what waits must not be delivered. Raises OSError."""
        while True:
            began = time.monotonic()
            try:
                self._journal.write()
            except OSError:
                if not self._journal.full:
                    raise
            else:
                if (took := time.monotonic() - began) > _SLOW_S:
                    logger.warning("the journal's disk held up what was to be delivered", s=round(took, 1))
                return True
            with self._changed:
                self._changed.notify_all()
            if self._abandoned.wait(DISK_FULL_PAUSE_S):
                return False
