"""Closing a connection so that the last answer arrives, and so that no client can keep it from ending.

A socket that is closed while unread bytes lie in it is reset, and the client may never see the answer. So the writing
side is closed first; what the client still sends is read and thrown away, up to a number of bytes; then the connection
ends. A client that does not take what was written gets some time, and is cut off after that. Nobody lingers for longer
than `LINGER_LONGEST_S`, however slowly it takes what was written, and a worker keeps only so many who do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

LINGER_S = 2.0
"""How long a client that still sends may read the answer."""
LINGER_BYTES = 1024 * 1024
"""How much of what it sends is thrown away meanwhile; the rest stays with the client."""
STALLED_ROUNDS = 15
"""After so many times `LINGER_S` in which the client took nothing of what was written, it is cut off."""
LINGER_LONGEST_S = 120.0
"""From `close` to the end of the connection, at most."""


class LingeringConnections:
    """The connections of one worker that linger. Where one more would be too many, the first of them is cut off.

    `on_cut_off` hears why, for each that was cut off before its client had all that was written.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lingering: dict[LingeringTransport, None] = {}
        """The longest first."""
        self.on_cut_off: Callable[[str], None] = _nothing

    def __len__(self) -> int:
        return len(self._lingering)

    def add(self, transport: LingeringTransport) -> None:
        """A connection begins to linger."""
        if len(self._lingering) >= self._most:
            self.cut_off(next(iter(self._lingering)), "many")
        self._lingering[transport] = None

    def cut_off(self, transport: LingeringTransport, reason: str) -> None:
        """End a connection now: it was `slow`, or there were too `many`."""
        self.remove(transport)
        transport.abort()
        self.on_cut_off(reason)

    def remove(self, transport: LingeringTransport) -> None:
        """A connection has ended, or lingers no more."""
        self._lingering.pop(transport, None)


class LingeringTransport:
    """A transport whose `close` lingers where that is needed. What the HTTP protocol uses of a transport, and no more.

    `everything_read` says whether the client has nothing under way to us, as far as we know.
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
        self._budget = LINGER_BYTES
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._stalled_rounds = 0

    def write(self, data: bytes) -> None:
        """Send; nothing after `close`."""
        if not self._closing:
            self._transport.write(data)

    def is_closing(self) -> bool:
        """Whether `close` was called, or the connection is lost."""
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Send what was written, and end the connection soon."""
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
        """End the connection now; what was not sent is lost."""
        self._closing = True
        self._transport.abort()

    def discard(self, size: int) -> None:
        """So many bytes came after `close` and were thrown away."""
        self._budget -= size
        if self._budget <= 0 and not self._transport.is_closing():
            self._transport.pause_reading()

    def lost(self) -> None:
        """The connection has ended."""
        self._closing = True
        self._lingering.remove(self)
        self._everything_read = _yes  # what it belonged to has us
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause_reading(self) -> None:
        """As the transport."""
        if not self.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """As the transport."""
        if not self.is_closing():
            self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the transport."""
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


def _nothing(reason: str) -> None:
    pass
