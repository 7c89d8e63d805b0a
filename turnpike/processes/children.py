"""Child processes that are kept running: restarted with back-off when they die, stopped when we stop or die."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence

import structlog

from storage.reported_error import ReportedError

EXIT_UNUSABLE = 2
"""A child that exits with this status would fail the same way again: it is not restarted."""
EXIT_TEMPORARY = 75
"""`EX_TEMPFAIL` of sysexits.h: what it needs is away and may come back."""
AFTER_DRAIN_S = 35.0
"""Beyond the time that running requests have: to end the rest, record it, and hand it over."""
_PR_SET_PDEATHSIG = 1
_BACKOFF_FIRST = 0.25
_BACKOFF_LAST = 2.0
_EARLY_S = 10.0
"""A child that dies sooner after its start than this died early."""

logger = structlog.get_logger(__name__)


class ChildFailed(ReportedError):
    """A child ended in a way that a restart cannot mend."""


def stop_with_parent(parent: int) -> None:
    """In a child: ask the kernel for SIGTERM when the parent (process id `parent`) dies; exit if it already has."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(0)


class RestartDelays:
    """How long to wait before each restart: not at all, unless a child dies early several times in a row."""

    def __init__(self) -> None:
        self._early_deaths = 0

    def after(self, lived_s: float) -> float:
        """The delay after a child that lived so many seconds."""
        self._early_deaths = self._early_deaths + 1 if lived_s < _EARLY_S else 0
        if self._early_deaths < 2:
            return 0.0
        return min(_BACKOFF_FIRST * 2.0 ** min(self._early_deaths - 2, 16), _BACKOFF_LAST)


class Child:
    """One command of this program, run as a child in its own session, so that a terminal's Ctrl-C reaches only us.

    `proven` is set when one of its starts has worked. Before that, a status that says that no start ever will ends
    `run`; after it, the child is restarted whatever its status: what was right once may be right again.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], pass_fds: Sequence[int] = ()
    ) -> None:
        self.name = name
        self.restarts = 0
        self.proven = False
        self._command = [sys.executable, "-m", "turnpike.cli", *arguments, "--parent-pid", str(os.getpid())]
        self._environment = os.environ | environment
        self._pass_fds = tuple(pass_fds)
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def run(self) -> None:
        """Keep the child running until `stop`. Raises ChildFailed when a restart would not help."""
        delays = RestartDelays()
        while not self._stopping.is_set():
            started = time.monotonic()
            status: int | None = None
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=self._pass_fds,
                    env=self._environment,
                )
            except OSError as error:  # no process, memory or file to be had at the moment
                logger.error("child cannot be started", child=self.name, cause=error.strerror)
            else:
                if self._stopping.is_set():  # it was told to stop before there was a process to tell
                    self._terminate()
                status = await self._process.wait()
            if self._stopping.is_set():
                return
            if status == EXIT_UNUSABLE and not self.proven:
                raise ChildFailed(f"{self.name} cannot start; its message stands above")
            self.restarts += 1
            delay = delays.after(time.monotonic() - started)
            logger.error("child died", child=self.name, status=status, restart_in_s=delay)
            if delay:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), delay)

    async def stop(self, patience: float) -> None:
        """SIGTERM, then after `patience` seconds SIGKILL."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._terminate()
        try:
            await asyncio.wait_for(process.wait(), patience)
        except TimeoutError:
            logger.error("child does not stop, killing it", child=self.name, patience_s=patience)
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """End the process at once; `run` starts it again."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _terminate(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
