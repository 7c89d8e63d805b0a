"""How long a request may take, and how long it waits for a replica, its answer or its journal when one dies."""

from __future__ import annotations

from msgspec import Struct


class RequestTimeouts(Struct, frozen=True, kw_only=True):
    """Times in seconds.

    `request`: from admission to the end. `start`: how long a request waits before its admission for a replica, where
    none is healthy. `retry`: how long it waits later for another one, or the same one started again, where its own was
    lost. `done`: how long
    a replica may take to answer an abort. `replay`: how long the journal of a lost replica is waited for, before the
    request is settled by what the gateway saw. `recovery`: how long after all this a journal may still come back to a
    living gateway.
    """

    request: float = 600.0
    start: float = 30.0
    retry: float = 30.0
    done: float = 10.0
    replay: float = 120.0
    recovery: float = 24 * 3600.0

    @property
    def hold(self) -> int:
        """Seconds until a hold that nobody ended expires: longer than a request and its recovery can take. While it is
        held, `retry` lies within `request`."""
        return int(self.request + self.done + self.replay + self.recovery)
