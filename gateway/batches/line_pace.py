"""How lines of a batch are begun when some are refused by what may pass: each refusal makes the next pause longer."""

from __future__ import annotations

import time

from gateway.errors import GatewayError, Interrupted, RetryableError, SuspendedError, TimedOut, Unaffordable

PASSING = (RetryableError, Unaffordable, SuspendedError)
"""Refusals that may pass while the batch lives."""
FAULTS = (Interrupted, TimedOut)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""After a refusal that may pass: the first pause, which doubles with each further one."""
_MOST_UNPAID = 32
"""When so many lines in a row were too expensive, the whole batch waits: trying them takes work, and earns nothing."""
_STALLED_S = 30.0
"""A batch of which for so long no line was more than refused lets others have its place."""


class LinePace:
    """That of one batch."""

    def __init__(self) -> None:
        self._pause_s = _FIRST_PAUSE_S
        self._begin_at = 0.0
        """When the next line may be begun, after a refusal."""
        self._unpaid = 0
        """Lines that were too expensive since the last that was not refused."""
        self._refused_since: float | None = None
        """Since when lines have been refused, and nothing else."""

    @property
    def wait_s(self) -> float:
        """Seconds until the next line may be begun, if more than 0."""
        return self._begin_at - time.monotonic()

    @property
    def stalled(self) -> bool:
        """Whether for long no line was more than refused: no money, no replica, a limit, a suspended project."""
        return self._refused_since is not None and time.monotonic() - self._refused_since > _STALLED_S

    def answered(self) -> None:
        """A line was not refused."""
        self._pause_s, self._unpaid, self._refused_since = _FIRST_PAUSE_S, 0, None

    def refused(self, failure: GatewayError | None) -> float:
        """After how many seconds a line that was refused is to be tried again. A shortage of money is this line's
        alone, since others may cost less, until many lines have it; everything else keeps the whole batch waiting."""
        pause, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_PAUSE_S)
        if isinstance(failure, RetryableError):
            pause = min(max(pause, failure.retry_after), _LONGEST_PAUSE_S)
        if isinstance(failure, FAULTS):
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = time.monotonic()
        self._unpaid += isinstance(failure, Unaffordable)
        if not isinstance(failure, Unaffordable) or self._unpaid >= _MOST_UNPAID:
            self._begin_at = max(self._begin_at, time.monotonic() + pause)
        return pause
