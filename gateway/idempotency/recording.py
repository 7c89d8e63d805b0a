"""An answer while it is made, as bytes: readers join from its start, and it goes on when one of them leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from litestar.types import Message

from response_store.idempotency import KeptAnswer

MOST_KEPT = 4 * 1024 * 1024
"""Bytes of an answer that can be joined late, and kept. Of a longer one the latest bytes are there."""
WINDOW = 1024 * 1024
"""Bytes that an answer is ahead of its fastest reader."""
LEAST_THERE = 2 * WINDOW
"""Bytes of a longer answer that are there; a reader that is further behind is left."""
ALONE_S = 60.0
"""For how many seconds an answer goes on that nobody reads."""


class RecordingOver(Exception):
    """A reader comes too late, or reads too slowly: these bytes of a long answer are not there any more."""


class Recording:
    """The messages of one answer (ASGI). `gone` is set when nobody has read it for `alone_s` seconds.

    `size`: its bytes so far. `on_size` is told how many more or fewer are in memory.
    """

    def __init__(self, on_size: Callable[[int], None], alone_s: float, most: int) -> None:
        self.gone = asyncio.Event()
        self.begun = asyncio.Event()
        """Set when its status is known, or it failed before that."""
        self.failure: Exception | None = None
        self.status = 0
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.complete = False
        """Whether its last message came."""
        self.over = False
        """Whether readers are told of its end."""
        self.size = 0
        self._on_size = on_size
        self._alone_s = alone_s
        self._most = most
        self._last = b""
        self._chunks: list[bytes] = []
        self._there = 0
        """Bytes in memory."""
        self._dropped = 0
        """How many of the first chunks are not there any more."""
        self._places: dict[RecordingReader, None] = {}
        self._present = 0
        """How many wait for its beginning, or read."""
        self._read = self._forgotten = False
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._alone: asyncio.TimerHandle | None = None
        self._wait_alone()

    @property
    def whole(self) -> bool:
        """Whether all of it is still there."""
        return not self._dropped

    @property
    def readers(self) -> int:
        """How many read it now, or wait for its beginning."""
        return self._present

    async def send(self, message: Message) -> None:
        """Take the next message of the answer. Waits while it is far ahead of its fastest reader."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], tuple((bytes(k), bytes(v)) for k, v in message["headers"])
            self.begun.set()
            return
        if message["type"] != "http.response.body":
            return
        body = message.get("body", b"")
        if not message.get("more_body", False):
            self.complete, self._last = True, body  # a client that has all bytes takes it for the end
            return
        self._append(body)
        while not self.gone.is_set() and self._ahead() > WINDOW and (self._places or not self._read):
            self._taken.clear()
            await self._taken.wait()

    def end(self) -> None:
        """Give out its last bytes, when what its key stands for is written."""
        self._append(self._last)
        self.over = True
        self._wake()

    def fail(self, failure: Exception) -> None:
        """End it with an error, unless it has ended: before it began, that of whoever waits for it."""
        if self.over:
            return
        self.failure, self.over = failure, True
        self.begun.set()
        self._wake()

    def play(self, answer: KeptAnswer) -> None:
        """Be an answer that was kept."""
        self.status, self.headers, self.over = answer.status, answer.headers, True
        self._chunks, self.size = [answer.body], len(answer.body)
        self._there = self.size
        self._on_size(self.size)
        self.begun.set()
        self._wake()

    def answer(self, lane: str) -> KeptAnswer | None:
        """The whole answer, which was made in this lane; None if it is too long to be kept."""
        if self._dropped or self.size + len(self._last) > self._most:
            return None
        return KeptAnswer(self.status, self.headers, b"".join([*self._chunks, self._last]), lane)

    @contextlib.contextmanager
    def present(self) -> Iterator[None]:
        """Be somebody for whom it goes on."""
        self._present += 1
        self._stop_waiting()
        try:
            yield
        finally:
            self._present -= 1
            self._wait_alone()

    @contextlib.contextmanager
    def reading(self) -> Iterator[RecordingReader]:
        """Read it from its start. Raises RecordingOver."""
        if self._dropped:
            raise RecordingOver
        reader = RecordingReader(self)
        self._places[reader], self._read = None, True
        self._taken.set()
        try:
            with self.present():
                yield reader
        finally:
            del self._places[reader]
            self._taken.set()
            self._count_no_more()

    def forget(self) -> None:
        """Let go of it: it has ended, and nobody can join it any more. It counts until nobody reads it."""
        self._forgotten = True
        self._stop_waiting()
        self._count_no_more()

    def _count_no_more(self) -> None:
        if self._forgotten and not self._places:
            self._on_size(-self._there)
            self._there = 0

    def has(self, at: int) -> bool:
        """Whether the chunk at this place is there."""
        return at < self._dropped + len(self._chunks)

    def chunk(self, at: int) -> bytes:
        """The chunk at this place. Raises RecordingOver if it is not there any more."""
        if at < self._dropped:
            raise RecordingOver
        return self._chunks[at - self._dropped]

    async def changes(self) -> None:
        """Wait for more, or for the end, or for a reader that leaves."""
        self._changed.clear()
        await self._changed.wait()

    def took(self) -> None:
        """A reader is through with a chunk."""
        self._taken.set()

    def wake(self) -> None:
        """Let readers look again."""
        self._wake()

    def _append(self, body: bytes) -> None:
        if body:
            self._chunks.append(body)
            self.size += len(body)
            self._there += len(body)
            self._on_size(len(body))
        if self.size > self._most:
            self._drop()
        self._wake()

    def _ahead(self) -> int:
        """Bytes that the fastest reader has not taken yet."""
        fastest = max((reader.at for reader in self._places), default=self._dropped)
        return sum(map(len, self._chunks[max(0, fastest - self._dropped) :]))

    def _drop(self) -> None:
        """Let go of the first bytes of a long answer, whoever has not had them yet; not of those that its first reader
        is still to come for."""
        wanted = not self._read and not self.gone.is_set()
        bound = self._there if wanted else max(self._most, LEAST_THERE)
        while len(self._chunks) > 1 and self._there > bound:
            self._there -= len(self._chunks[0])
            self._on_size(-len(self._chunks[0]))
            del self._chunks[0]
            self._dropped += 1

    def _wake(self) -> None:
        self._changed.set()

    def _stop_waiting(self) -> None:
        if self._alone is not None:
            self._alone.cancel()

    def _wait_alone(self) -> None:
        if not self._present and not self.complete and not self.over:
            self._alone = asyncio.get_running_loop().call_later(self._alone_s, self._leave_alone)

    def _leave_alone(self) -> None:
        self.gone.set()
        self._taken.set()


class RecordingReader:
    """One reader's place. `left`: it wants no more."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.at = 0
        self.left = False

    def leave(self) -> None:
        """Read no more: its client has gone."""
        self.left = True
        self._recording.wake()

    async def next(self) -> bytes | None:
        """The next bytes; None at the end. Raises RecordingOver."""
        recording = self._recording
        if self.at:
            recording.took()
        while not self.left and not recording.has(self.at):
            if recording.over:
                return None
            await recording.changes()
        if self.left:
            return None
        self.at += 1
        return recording.chunk(self.at - 1)
