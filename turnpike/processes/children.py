"""Child processes: restarted with back-off when they die, stopped when their parent stops or dies."""

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

from storage.backoff import Backoff
from storage.reported_error import ReportedError

EXIT_UNUSABLE = 2
"""Exit status of a child that would fail the same way again: it is not restarted."""
EXIT_TEMPORARY = 75
"""`EX_TEMPFAIL` of sysexits.h: something that is needed is away and may come back."""
AFTER_DRAIN_S = 35.0
"""Seconds after the drain timeout in which a child ends the remaining requests and records their usage."""
_PR_SET_PDEATHSIG = 1
_BACKOFF_FIRST = 0.25
_BACKOFF_LAST = 2.0
_EARLY_S = 10.0
"""A child that dies within so many seconds of its start died early."""

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
    """The delays before restarts: none, unless a child dies early several times in a row."""

    def __init__(self) -> None:
        self._died_early = False
        self._backoff = Backoff(_BACKOFF_FIRST, _BACKOFF_LAST)

    def after(self, lived_s: float) -> float:
        """The delay after a child that lived so many seconds."""
        died_early_before, self._died_early = self._died_early, lived_s < _EARLY_S
        if self._died_early and died_early_before:
            return self._backoff.next_delay()
        self._backoff.reset()
        return 0.0


class Child:
    """One command of this program, run as a child process in a session of its own: Ctrl-C reaches the parent alone.

    `proven` is set from outside when a start has worked. Until then EXIT_UNUSABLE ends `run`; afterwards the child is
    restarted whatever its status, since its settings were right once.
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
            except OSError as error:  # no process, memory or file descriptor is free
                logger.error("child cannot be started", child=self.name, cause=error.strerror)
            else:
                if self._stopping.is_set():  # `stop` was called before there was a process
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

    async def stop(self, timeout_s: float) -> None:
        """Send SIGTERM, and after `timeout_s` seconds SIGKILL."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._terminate()
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
        except TimeoutError:
            logger.error("child does not stop, killing it", child=self.name, timeout_s=timeout_s)
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """Send SIGKILL; `run` starts the child again."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _terminate(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
