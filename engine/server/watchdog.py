"""Ends a replica whose engine has work and does not advance, after saying where every thread stands.

Healthy means that steps advance while work exists (E3). What starts the replica starts it again: `turnpike serve` does,
and so does a container's restart policy; its journal then says what had been done.
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
"""How much later than the watchdog's own thread the interpreter's timer acts, which needs no lock of Python's."""
_REPORTS = 5


class Watchdog:
    """Looks whether the engine advances. `stalled_for`: seconds since it last did while it had work, 0 when idle.

    `patience`: how many seconds are too many. `report` is called first, in the watchdog's thread, and says what the
    engine was at; then the stacks of all threads go to stderr and to `folder`/stall-<time>.txt, and the process ends
    with EXIT_STALLED. When code outside Python holds the interpreter's lock, so that no thread of ours can run, the
    interpreter's own timer writes the stacks to stderr and ends the process. A pause of the whole process is no stall;
    but one that is longer than patience and some seconds looks like that to this timer.
    """

    def __init__(
        self,
        folder: Path,
        stalled_for: Callable[[], float],
        patience: Callable[[], float],
        report: Callable[[], str],
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._folder = folder
        self._stalled_for = stalled_for
        self._patience = patience
        self._report = report
        self._end = end
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopping.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        stalled = 0.0
        while True:
            patience = self._patience()
            every = min(1.0, patience / 4)
            faulthandler.dump_traceback_later(patience + every + _GRACE_S, exit=True, file=_stderr())
            if self._stopping.wait(every):
                return
            # While the whole process stood still, as in a virtual machine that is moved, the engine could not advance:
            # it is told so much at most of a pause, and looked at again.
            stalled = min(self._stalled_for(), stalled + 2 * every)
            if stalled > patience:
                self._give_up(stalled)
                return

    def _give_up(self, stalled: float) -> None:
        said = self._report()
        logger.error("the engine does not advance; the replica ends", stalled_s=round(stalled, 1), working_on=said)
        faulthandler.dump_traceback(file=_stderr(), all_threads=True)
        path = self._folder / f"stall-{time.time_ns() // 1_000_000}.txt"
        try:
            with path.open("w") as file:
                file.write(f"no step for {stalled:.1f} s; working on: {said}\n\n")
                file.flush()
                faulthandler.dump_traceback(file=file, all_threads=True)
            for old in sorted(self._folder.glob("stall-*.txt"))[:-_REPORTS]:
                old.unlink()
        except OSError as error:
            logger.warning("the stacks could not be kept", path=str(path), problem=str(error))
        self._end(EXIT_STALLED)


def _stderr() -> TextIO:
    """The process's real stderr: a test's or a logger's stand-in has no descriptor to write to without Python."""
    assert sys.__stderr__ is not None
    return sys.__stderr__
