"""How many connections a gateway worker keeps, and which of them goes when there are too many.

A connection on which no request is under way costs its owner nothing, so anybody can open thousands. At the limit a new
connection takes the place of the one that has been without a request for longest; where every connection has a request,
the new one is refused.
"""

from __future__ import annotations

import resource
from collections import Counter
from typing import Protocol

from gateway.http.lingering_transport import LingeringConnections

_RESERVED_FILES = 256
"""Open files that are left to everything but connections."""
MOST_LINGERING = 1024
"""Connections that are being closed while their client still sends or reads; an eighth of the open files at most."""


class Connection(Protocol):
    """What can be told to go."""

    def end_idle(self) -> None:
        """End the connection, on which no request is under way."""


class Connections:
    """The open connections of one worker. `most`: of all clients; `most_per_address`: of one address, 0 for any."""

    def __init__(self, most: int, most_per_address: int = 0) -> None:
        files = max(2, _open_files_limit() - _RESERVED_FILES)
        self.lingering = LingeringConnections(min(MOST_LINGERING, max(1, files // 8)))
        """Those that are being closed, whether they were admitted, taken out for a newer one, or refused."""
        self._most = min(most, max(1, files - files // 8))
        self._most_per_address = most_per_address
        self._open: dict[Connection, str] = {}
        self._by_address: Counter[str] = Counter()
        self._idle: dict[Connection, None] = {}
        """Those without a request, the longest first."""

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Connection, address: str) -> bool:
        """Take in a new connection, idle at first. False if it is one too many."""
        if self._most_per_address and self._by_address[address] >= self._most_per_address:
            return False
        if len(self._open) >= self._most:
            longest = next(iter(self._idle), None)
            if longest is None:
                return False
            self.remove(longest)
            longest.end_idle()
        self._open[connection] = address
        self._by_address[address] += 1
        self._idle[connection] = None
        return True

    def remove(self, connection: Connection) -> None:
        """The connection has ended, or was never admitted."""
        self._idle.pop(connection, None)
        address = self._open.pop(connection, None)
        if address is not None:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def begin_request(self, connection: Connection) -> None:
        """The head of a request has come."""
        self._idle.pop(connection, None)

    def end_request(self, connection: Connection) -> None:
        """The request was answered."""
        if connection in self._open:
            self._idle[connection] = None


def raise_open_files_limit() -> None:
    """Let this process open as many files as it is allowed to at most: the usual limit of 1024 is for programs that
    use `select`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _open_files_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft
