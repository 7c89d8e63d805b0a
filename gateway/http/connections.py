"""Limits the open connections of a gateway worker.

An idle connection costs its client nothing, so anybody can open thousands. At the limit, a new connection replaces the
one that has been idle for longest; if every connection has a request, the new one is refused. A request that nobody is
known to have sent keeps no connection from being replaced while its body does not come: that costs nothing either.
"""

from __future__ import annotations

import resource
from collections import Counter
from typing import Protocol

from gateway.http.lingering_transport import LingeringConnections

_RESERVED_FILES = 256
"""File descriptors that are kept free for everything but connections."""
MOST_LINGERING = 1024
"""The most connections that may linger (`lingering_transport`); at most an eighth of the open files."""


class Connection(Protocol):
    """A connection that can be closed."""

    def end_idle(self) -> None:
        """Close the connection, which has no request, or one of a stranger whose body does not come."""


class Connections:
    """The open connections of one worker. `most`: in all; `most_per_address`: from one address, 0 for no limit."""

    def __init__(self, most: int, most_per_address: int = 0) -> None:
        files = max(2, _open_files_limit() - _RESERVED_FILES)
        self.lingering = LingeringConnections(min(MOST_LINGERING, max(1, files // 8)))
        """Connections that are being closed: admitted, replaced or refused ones."""
        self._most = min(most, max(1, files - files // 8))
        self.draining = False
        """Whether each connection ends after its next response."""
        self._most_per_address = most_per_address
        self._open: dict[Connection, str] = {}
        self._by_address: Counter[str] = Counter()
        self._idle: dict[Connection, None] = {}
        """Connections that can be replaced, the one idle for longest first."""

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Connection, address: str) -> bool:
        """Add a new connection, which is idle. False if it must be refused."""
        if self._most_per_address and self._by_address[address] >= self._most_per_address:
            return False
        if len(self._open) >= self._most:
            longest_idle = next(iter(self._idle), None)
            if longest_idle is None:
                return False
            self.remove(longest_idle)
            longest_idle.end_idle()
        self._open[connection] = address
        self._by_address[address] += 1
        self._idle[connection] = None
        return True

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended or was refused."""
        self._idle.pop(connection, None)
        address = self._open.pop(connection, None)
        if address is not None:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def begin_request(self, connection: Connection) -> None:
        """The head of a request has arrived, or more of its body: the connection is not idle."""
        self._idle.pop(connection, None)

    def end_request(self, connection: Connection) -> None:
        """The request was answered, or waits for a stranger: the connection is idle."""
        if connection in self._open:
            self._idle[connection] = None


def raise_open_files_limit() -> None:
    """Raise this process's soft limit of open files to the hard limit. The usual 1024 is for programs that use
    `select`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _open_files_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft
