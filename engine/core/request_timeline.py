"""When a request got where in the engine: for its `Timeline`, which its gateway shows and nobody bills."""

from __future__ import annotations

import time

from protocol.requests import MOST_CHUNKS, PromptChunk, Timeline

_MICRO = 1_000_000


def _micros(seconds: float) -> int:
    return int(seconds * _MICRO)


class RequestTimeline:
    """Times of one request, of all its choices, by `time.monotonic`. `arrived`: when its message came."""

    __slots__ = (
        *("_arrived", "_paused", "_restored", "accepted", "began", "chunks", "decodes", "drafting_us", "first"),
        "out_of_credit_at",
    )

    def __init__(self, arrived: float | None = None) -> None:
        self.accepted = time.monotonic()
        self._arrived = self.accepted if arrived is None else min(arrived, self.accepted)
        self.began = 0.0
        self.first = 0.0
        self.out_of_credit_at = 0.0
        """Since when it cannot send another token; 0.0 while it can."""
        self.decodes = 0
        self.drafting_us = 0.0
        self._paused = 0.0
        self._restored = 0
        self.chunks: list[PromptChunk] = []

    def begin(self, read: int) -> None:
        """It was scheduled, with so many prompt tokens whose KV was at hand."""
        self.began = time.monotonic()
        self._restored = read

    def chunk(self, start: float, end: float, computed: int, read: int) -> None:
        """A step computed so many tokens of its prompt; `read`: prompt tokens that were read so far."""
        chunks, restored = self.chunks, max(0, read - self._restored)
        self._restored = max(read, self._restored)
        begin, finish = self._offset(start), self._offset(end)
        if len(chunks) == MOST_CHUNKS:
            last = chunks[-1]
            chunks[-1] = PromptChunk(last.start, finish, last.computed + computed, last.restored + restored)
        else:
            chunks.append(PromptChunk(begin, finish, computed, restored))

    def out_of_credit(self) -> None:
        """Its next token may not be sent."""
        if not self.out_of_credit_at:
            self.out_of_credit_at = time.monotonic()

    def credited(self) -> None:
        """It may go on."""
        if self.out_of_credit_at:
            self._paused += time.monotonic() - self.out_of_credit_at
            self.out_of_credit_at = 0.0

    def message(self, preemptions: int) -> Timeline:
        """What is told of it, at its end."""
        self.credited()
        return Timeline(
            accepted=self._offset(self.accepted),
            began=self._offset(self.began) if self.began else -1,
            first=self._offset(self.first) if self.first else -1,
            ended=self._offset(time.monotonic()),
            paused=_micros(self._paused),
            preemptions=preemptions,
            chunks=tuple(self.chunks),
            decodes=self.decodes,
            drafting=int(self.drafting_us),
        )

    def _offset(self, at: float) -> int:
        return max(0, _micros(at - self._arrived))
