"""How long things may take: a request, the silence after it, and the hold that outlives both."""

from __future__ import annotations

from msgspec import Struct


class RequestTimeouts(Struct, frozen=True, kw_only=True):
    """Times in seconds.

    `request`: from admission to the end. `retry`: how long a request whose replica was lost before anything was
    delivered waits for another one, or for the same started again. `done`: how long a replica may take to answer an
    abort. `replay`: how long we wait for the journal of a replica that was lost, before we settle by what we saw.
    `hold` outlives all of it, and leaves a dead gateway's successor and a replica's journal a day to find each other.
    """

    request: float = 600.0
    retry: float = 30.0
    done: float = 10.0
    replay: float = 120.0
    recovery: float = 24 * 3600.0

    @property
    def hold(self) -> int:
        """Seconds until a hold that nobody ended gives its money back."""
        return int(self.request + self.done + self.replay + self.recovery)
