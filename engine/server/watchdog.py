"""Ends a replica whose engine has work and does not advance, after it has logged the stacks of all threads.

Of a step that takes much longer than any should, and ends, it logs where it stood.

Healthy means that steps advance while work exists (E3). What started the replica starts it again: `turnpike serve`, or
a container's restart policy. Its journal then has what had been done.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import structlog

logger = structlog.get_logger("engine.server.watchdog")

EXIT_STALLED = 70
"""EX_SOFTWARE of sysexits.h."""
_GRACE_S = 5.0
"""How many seconds later than the watchdog's thread the interpreter's timer acts. The timer needs no lock of
Python's."""
_REPORTS = 5
"""Reports of stalls that are kept."""
_LOOK_S = 0.5
_TOLD_EVERY_S = 10.0
"""Of slow steps is told so often at most."""


class Watchdog:
    """Watches whether the engine advances.

    `stalled_for` gives the seconds since it last did while it had work, 0 when idle; `limit` how many are too many.
    `report` is called first, in the watchdog's thread, and says what the engine works on. Then the stacks of all
    threads go to stderr and to `folder`/stall-<time>.txt, and `end` is called with EXIT_STALLED.

    `slow`: after how many seconds a step is slow; `where`: what the engine's thread is at, for the log.

    If code outside Python holds the interpreter's lock, no Python thread can run. Then the interpreter's own timer,
    which is set some seconds later (`_GRACE_S`), writes the stacks to stderr and ends the process. The watchdog does
    not count a pause of the whole process as a stall. The timer does, if the pause is longer than limit and grace.
    """

    def __init__(
        self,
        folder: Path,
        stalled_for: Callable[[], float],
        limit: Callable[[], float],
        report: Callable[[], str],
        end: Callable[[int], None] = os._exit,
        *,
        slow: Callable[[], float],
        where: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._stalled_for = stalled_for
        self._limit = limit
        self._report = report
        self._end = end
        self._slow = slow
        self._where = where
        self._clock = clock
        self._told_at = -_TOLD_EVERY_S
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and the timer."""
        self._stopping.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        stalled = 0.0
        while True:
            limit = self._limit()
            interval = min(_LOOK_S, limit / 4)
            faulthandler.dump_traceback_later(limit + interval + _GRACE_S, exit=True, file=_stderr())
            began = self._clock()
            if self._stopping.wait(interval):
                return
            # While the whole process stands still, as in a virtual machine that is moved, the engine cannot advance:
            # of such a pause no more than this counts, so that the engine gets time to advance.
            stalled = min(self._stalled_for(), stalled + 2 * interval)
            if stalled > limit:
                self._end_process(stalled)
                return
            self._tell_if_slow(stalled, self._clock() - began - interval)

    def _tell_if_slow(self, stalled: float, late: float) -> None:
        """Log where a slow step stands. `late`: how many seconds later than it should this thread ran."""
        now, slow = self._clock(), self._slow()
        if max(stalled, late) <= slow or now - self._told_at < _TOLD_EVERY_S:
            return
        self._told_at = now
        if late > slow:
            logger.warning("no thread of the replica ran: its process or the interpreter's lock was held", s=late)
        else:
            logger.warning("a step takes long", s=round(stalled, 1), where=self._where())

    def _end_process(self, stalled: float) -> None:
        report = self._report()
        logger.error("the engine does not advance; the replica ends", stalled_s=round(stalled, 1), working_on=report)
        faulthandler.dump_traceback(file=_stderr(), all_threads=True)
        path = self._folder / f"stall-{time.time_ns() // 1_000_000}.txt"
        try:
            with path.open("w") as file:
                file.write(f"no step for {stalled:.1f} s; working on: {report}\n\n")
                file.flush()
                faulthandler.dump_traceback(file=file, all_threads=True)
            for old in sorted(self._folder.glob("stall-*.txt"))[:-_REPORTS]:
                old.unlink()
        except OSError as error:
            logger.warning("the stacks could not be kept", path=str(path), problem=str(error))
        self._end(EXIT_STALLED)


def _stderr() -> TextIO:
    """The process's real stderr: what a test or logger puts in its place may have no descriptor."""
    assert sys.__stderr__ is not None
    return sys.__stderr__
