"""Closes a connection so that the last response arrives, and so that no client can keep it open.

Closing a socket with unread input resets the connection, and the client may never see the response (RFC 9112, section
9.6). So the writing side is closed first, then input is read and discarded up to `LINGER_BYTES`, then the connection
ends. A client that does not read what was written is cut off after a while, and every connection is after
`LINGER_LONGEST_S`. A worker has a limit of connections that linger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

LINGER_S = 2.0
"""Seconds for which a client that still sends may read the response."""
LINGER_BYTES = 1024 * 1024
"""Bytes of its input that are discarded meanwhile; more is not read."""
STALLED_ROUNDS = 15
"""A client that reads nothing for so many times `LINGER_S` is cut off."""
LINGER_LONGEST_S = 120.0
"""The most seconds from `close` to the end of the connection."""


class LingeringConnections:
    """The lingering connections of one worker. At the limit, the one that lingers for longest is cut off.

    `on_cut_off` is called with the reason for each connection that was cut off before its client had read everything.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lingering: dict[LingeringTransport, None] = {}
        """In the order in which they began to linger."""
        self.on_cut_off: Callable[[str], None] = _ignore

    def __len__(self) -> int:
        return len(self._lingering)

    def add(self, transport: LingeringTransport) -> None:
        """A connection begins to linger."""
        if len(self._lingering) >= self._most:
            self.cut_off(next(iter(self._lingering)), "many")
        self._lingering[transport] = None

    def cut_off(self, transport: LingeringTransport, reason: str) -> None:
        """End a connection now. `reason`: "slow" or "many"."""
        self.remove(transport)
        transport.abort()
        self.on_cut_off(reason)

    def remove(self, transport: LingeringTransport) -> None:
        """Forget a connection."""
        self._lingering.pop(transport, None)


class LingeringTransport:
    """Wraps a transport so that `close` lingers where needed. It has only the methods that the HTTP protocol uses.

    `everything_read` says whether all that the client sent was read, as far as is known.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        everything_read: Callable[[], bool],
        lingering: LingeringConnections,
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._everything_read = everything_read
        self._lingering = lingering
        self._closing = False
        self._closed_at = 0.0
        self._discardable = LINGER_BYTES
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._stalled_rounds = 0

    def write(self, data: bytes) -> None:
        """Send, unless closed."""
        if not self._closing:
            self._transport.write(data)

    def is_closing(self) -> bool:
        """Whether `close` was called, or the connection is lost."""
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Send what was written, then end the connection."""
        if self._closing:
            return
        self._closing = True
        self._unsent = self._transport.get_write_buffer_size()
        if self._transport.is_closing():
            return
        if self._everything_read():
            self._transport.close()
            if not self._unsent:
                return
        else:
            self._transport.write_eof()
            self._transport.resume_reading()
        self._closed_at = self._loop.time()
        self._timer = self._loop.call_later(LINGER_S, self._end_round)
        self._lingering.add(self)

    def abort(self) -> None:
        """End the connection now; unsent bytes are lost."""
        self._closing = True
        self._transport.abort()

    def discard(self, size: int) -> None:
        """`size` bytes arrived after `close` and were discarded."""
        self._discardable -= size
        if self._discardable <= 0 and not self._transport.is_closing():
            self._transport.pause_reading()

    def lost(self) -> None:
        """The connection has ended."""
        self._closing = True
        self._lingering.remove(self)
        self._everything_read = _yes  # breaks a reference cycle with the protocol
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause_reading(self) -> None:
        """See asyncio.Transport."""
        if not self.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """See asyncio.Transport."""
        if not self.is_closing():
            self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio.Transport."""
        return self._transport.get_extra_info(name, default)

    def _end_round(self) -> None:
        self._timer = None
        unsent = self._transport.get_write_buffer_size()
        if not unsent:
            self._transport.close()
            return
        self._stalled_rounds = self._stalled_rounds + 1 if unsent == self._unsent else 0
        self._unsent = unsent
        if self._stalled_rounds >= STALLED_ROUNDS or self._loop.time() - self._closed_at >= LINGER_LONGEST_S:
            self._lingering.cut_off(self, "slow")
        else:
            self._timer = self._loop.call_later(LINGER_S, self._end_round)


def _yes() -> bool:
    return True


def _ignore(reason: str) -> None:
    pass
