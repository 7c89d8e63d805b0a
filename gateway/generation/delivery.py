"""Between the owner of a request and its reader, the HTTP side: text out, progress back.

The reader takes all that is ready at once and confirms it when it has been sent. Undelivered text is bounded by the
credit that the replica was given, which grows with what was confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from billing.usage import Counts, Usage
from gateway.errors import GatewayError
from gateway.generation.transcript import TokenScore


class DeliverySequence:
    """Reads deliveries in order. `choices` is how many each has; what is behind waits on its own credit."""

    def __init__(self, deliveries: Sequence[Delivery], choices: int) -> None:
        self._deliveries = deliveries
        self._choices = choices
        self._ends: list[Finished] = []

    async def next(self, timeout: float | None = None) -> Item | None:  # noqa: ASYNC109  # None is an answer here
        """All that is ready of the first that has not ended, or the end of all."""
        while len(self._ends) < len(self._deliveries):
            item = await self._deliveries[len(self._ends)].next(timeout)
            if isinstance(item, DeliveryChunk):
                first = len(self._ends) * self._choices
                parts = tuple(msgspec.structs.replace(part, choice=first + part.choice) for part in item.parts)
                return DeliveryChunk(parts, item.tokens)
            if item is None or isinstance(item, Failed | ReaderGone):
                return item
            self._ends.append(item)
        return merge_finished(self._ends)

    def confirm(self, tokens: int) -> None:
        """The pieces of the delivery that was read last were sent, up to `tokens` of its output tokens."""
        self._deliveries[min(len(self._ends), len(self._deliveries) - 1)].confirm(tokens)


def merge_finished(ends: Sequence[Finished]) -> Finished:
    """The good ends of requests of one model as one: what was counted, used and paid added up."""
    if len(ends) == 1:
        return ends[0]
    return Finished(
        tuple(reason for end in ends for reason in end.reasons),
        Counts(*map(sum, zip(*(msgspec.structs.astuple(end.counts) for end in ends), strict=True))),
        Usage(
            uncached=sum(end.usage.uncached for end in ends),
            read=_summed([end.usage.read for end in ends]),
            write=_summed([end.usage.write for end in ends]),
            output=sum(end.usage.output for end in ends),
        ),
        sum(end.cost_pico for end in ends),
        ends[0].currency,
    )


def _summed(meters: Sequence[dict[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for meter in meters for name in meter)
    return {name: sum(meter.get(name, 0) for meter in meters) for name in names}


FinishReason = Literal["stop", "length", "budget"]
"""`budget`: where the money ended, before the length that the client asked for."""


class ChoiceDelta(Struct, frozen=True):
    """More of one choice: its text, and what is to be told of the tokens that make it up."""

    choice: int
    text: str
    scores: tuple[TokenScore, ...] = ()


class DeliveryChunk(Struct, frozen=True):
    """Parts; once they reached the client, `tokens` output tokens of all choices did."""

    parts: tuple[ChoiceDelta, ...]
    tokens: int


class Finished(Struct, frozen=True):
    """A good end, durable by now; `reasons` by choice."""

    reasons: tuple[FinishReason, ...]
    counts: Counts
    usage: Usage
    cost_pico: int
    currency: str


class Failed(Struct, frozen=True):
    """A bad end."""

    failure: GatewayError


class ReaderGone(Struct, frozen=True):
    """There is nobody to read any more."""


Item: TypeAlias = DeliveryChunk | Finished | Failed | ReaderGone


class DeliveryReader(Protocol):
    """The reader's side of a delivery, or of several."""

    async def next(self, timeout: float | None = None) -> Item | None:  # noqa: ASYNC109  # None is an answer here
        """All that is ready, or the end. None: nothing came within `timeout` seconds."""
        ...

    def confirm(self, tokens: int) -> None:
        """The pieces up to `tokens` output tokens were sent."""
        ...


class Delivery:
    """One request's output on its way. `streamed`: pieces are given out as they come, else all of them at the end."""

    def __init__(self, *, streamed: bool, on_delivered: Callable[[int], None], on_left: Callable[[str], None]) -> None:
        self.streamed = streamed
        self.delivered = 0
        self.left = False
        self._on_delivered = on_delivered
        self._on_left = on_left
        self._parts: list[ChoiceDelta] = []
        self._tokens = 0
        self._taken = 0
        self._end: Finished | Failed | None = None
        self._ready = asyncio.Event()
        self._confirmed = asyncio.Event()

    # ------------------------------------------------ the owner's side

    def push(self, part: ChoiceDelta, tokens: int) -> None:
        """More of a choice; with it `tokens` output tokens in all are handed over."""
        if part.text or part.scores:
            self._parts.append(part)
        self._tokens = max(self._tokens, tokens)
        if self._parts or self._tokens > self._taken:
            self._ready.set()

    @property
    def handed_out(self) -> bool:
        """Whether the reader has anything by now."""
        return self._taken > 0 or self.delivered > 0

    def start_over(self) -> bool:
        """Forget what was pushed, since it comes again; False if some of it is with the reader, or there is none."""
        if self.handed_out or self.left or self._end is not None:
            return False
        self._parts, self._tokens = [], 0
        return True

    def finish(self, finished: Finished) -> None:
        """The good end, after all that was pushed."""
        self._close(finished)

    def fail(self, failure: GatewayError) -> None:
        """The bad end, after all that was pushed. Only the first end counts."""
        self._close(Failed(failure))

    async def drained(self) -> bool:
        """Wait until everything pushed was confirmed, or nobody reads; True if all reached the client.

        Of an unstreamed answer nothing is sent before its end: then this says whether somebody still waits for it.
        """
        while self.streamed and not self.left and self.delivered < self._tokens:
            self._confirmed.clear()
            await self._confirmed.wait()
        return not self.left

    def part(self) -> None:
        """The owner has ended, and is told nothing more: it has us, and if we kept it, the whole request would stay in
        memory until garbage is searched for."""
        self._on_delivered = self._on_left = _nobody_hears

    # ------------------------------------------------ the reader's side

    async def next(self, timeout: float | None = None) -> Item | None:  # noqa: ASYNC109  # None is an answer here
        """All that is ready, or the end. None: nothing came within `timeout` seconds."""
        while True:
            if self.left:
                return ReaderGone()
            ready = self.streamed or self._end is not None
            if ready and (self._parts or self._tokens > self._taken):
                parts, self._parts, self._taken = merge_deltas(self._parts), [], self._tokens
                return DeliveryChunk(parts, self._taken)
            if self._end is not None:
                return self._end
            self._ready.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._ready.wait()
            except TimeoutError:
                return None

    def confirm(self, tokens: int) -> None:
        """The pieces up to `tokens` output tokens were sent."""
        if tokens > self.delivered and not self.left:
            self.delivered = tokens
            self._on_delivered(tokens)
        self._confirmed.set()

    def leave(self, why: str) -> None:
        """The client is gone, or does not read. Nothing happens after the end."""
        if not self.left and not isinstance(self._end, Finished):
            self.left = True
            self._ready.set()
            self._confirmed.set()
            self._on_left(why)

    def _close(self, end: Finished | Failed) -> None:
        if self._end is None:
            self._end = end
            self._ready.set()


def _nobody_hears(_: object) -> None:
    """What the client does is no news any more."""


def merge_deltas(parts: list[ChoiceDelta]) -> tuple[ChoiceDelta, ...]:
    """One part for each choice."""
    if len(parts) < 2:
        return tuple(parts)
    choices: dict[int, list[ChoiceDelta]] = {}
    for part in parts:
        choices.setdefault(part.choice, []).append(part)
    return tuple(
        ChoiceDelta(choice, "".join(part.text for part in own), tuple(score for part in own for score in part.scores))
        for choice, own in choices.items()
    )
