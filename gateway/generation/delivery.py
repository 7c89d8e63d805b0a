"""Hands a request's output from its task to its reader, the HTTP side, and the reader's progress back.

The reader takes all that is ready at once and confirms it when it has been sent. The replica's credit grows with what
was confirmed, and so bounds the text that waits here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from billing.receipts.answer_receipts import Receipt
from billing.usage import Counts, Usage
from gateway.conversation.output.events import OutputEvent, ScoredTokens, TokenScore
from gateway.errors import GatewayError
from gateway.generation.request_history import Explanation


class DeliverySequence:
    """Reads several deliveries, each of `choices` choices, one after the other as if they were one.

    Those whose turn has not come go on until their credit is used up.
    """

    def __init__(self, deliveries: Sequence[Delivery], choices: int) -> None:
        self._deliveries = deliveries
        self._choices = choices
        self._ends: list[Finished] = []

    async def next(self, timeout: float | None = None) -> Item | None:  # noqa: ASYNC109  # None is an answer here
        """What `Delivery.next` gives for the first delivery that has not ended, or the merged end of all."""
        while len(self._ends) < len(self._deliveries):
            item = await self._deliveries[len(self._ends)].next(timeout)
            if isinstance(item, DeliveryChunk):
                first = len(self._ends) * self._choices
                deltas = tuple(msgspec.structs.replace(delta, choice=first + delta.choice) for delta in item.deltas)
                return DeliveryChunk(deltas, item.tokens)
            if item is None or isinstance(item, Started | Failed | ReaderGone):
                return item
            self._ends.append(item)
        return merge_finished(self._ends)

    def confirm(self, tokens: int, told: int | None = None) -> None:
        """As `Delivery.confirm`, for the delivery read last."""
        self._deliveries[min(len(self._ends), len(self._deliveries) - 1)].confirm(tokens, told)


def merge_finished(ends: Sequence[Finished]) -> Finished:
    """The good ends of several requests of one model as one: counts, usage and cost added up."""
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
        tuple(stop for end in ends for stop in end.stop_strings),
        min((end.cached_until for end in ends if end.cached_until is not None), default=None),
        ends[0].explanation,
        sum(end.reasoning for end in ends),
        (sum(end.predicted[0] for end in ends), sum(end.predicted[1] for end in ends)),
        tuple(receipt for end in ends for receipt in end.receipts),
    )


def _summed(meters: Sequence[dict[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for meter in meters for name in meter)
    return {name: sum(meter.get(name, 0) for meter in meters) for name in names}


FinishReason = Literal["stop", "length", "budget"]
"""`budget`: no more could be paid for, before the length that the client asked for was reached."""


_SCORE_BYTES = 32
"""Bytes of a token and its log probability as JSON, as a rule."""


class ChoiceDelta(Struct, frozen=True):
    """More of one choice: its text, and the log probabilities of the tokens that the client asked for.

    `events`: what it says instead of text and scores, where the request has tools or the model reasons.
    `prompt_scores`: those of the echoed prompt before it, which all choices of the prompt share.
    """

    choice: int
    text: str
    scores: tuple[TokenScore, ...] = ()
    events: tuple[OutputEvent, ...] = ()
    prompt_scores: tuple[TokenScore, ...] = ()

    @property
    def size(self) -> int:
        """About how many bytes it has as JSON."""
        size = len(self.text)
        placed = [event.scores for event in self.events if isinstance(event, ScoredTokens)]
        for scores in (self.scores, self.prompt_scores, *placed):
            if scores:
                beside = 1 + (0 if scores[-1].score is None else len(scores[-1].score.top))
                size += _SCORE_BYTES * beside * len(scores)
        return size


class DeliveryChunk(Struct, frozen=True):
    """Deltas to send; with them `tokens` output tokens of all choices have been sent in all."""

    deltas: tuple[ChoiceDelta, ...]
    tokens: int


class Started(Struct, frozen=True):
    """The request was scheduled. `usage` is how its prompt will be billed, `counts` where its KV was read from; None as
    long as some of it is still to come from farther tiers.

    It comes once, before all text, and stands even if the request is sent to another replica after it. What leases
    cover stands too; KV read without a lease may then be another amount in the end.
    """

    usage: Usage
    counts: Counts | None


class Finished(Struct, frozen=True):
    """A good end, which is durable by now; `reasons` has one for each choice, `stop_strings` that which ended it."""

    reasons: tuple[FinishReason, ...]
    counts: Counts
    usage: Usage
    cost_pico: int
    currency: str
    stop_strings: tuple[str | None, ...] = ()
    cached_until: int | None = None
    """When the lease on the longest part of the prompt ends, in microseconds since the Unix epoch; None without one."""
    explanation: Explanation | None = None
    """Why the prompt missed, for a client who asked."""
    reasoning: int = 0
    """Output tokens of reasoning, with the markers around it."""
    predicted: tuple[int, int] = (0, 0)
    """Tokens of the client's prediction that became output, and the others."""
    receipts: tuple[Receipt, ...] = ()
    """One for each request that is answered, if they were asked for."""


class Failed(Struct, frozen=True):
    """An end with an error."""

    failure: GatewayError


class ReaderGone(Struct, frozen=True):
    """The reader has left; nothing more is given out."""


Item: TypeAlias = Started | DeliveryChunk | Finished | Failed | ReaderGone


class DeliveryReader(Protocol):
    """The reader's side of a delivery, or of several."""

    async def next(self, timeout: float | None = None) -> Item | None:  # noqa: ASYNC109  # None is an answer here
        """All that is ready, or the end. None: nothing came within `timeout` seconds."""
        ...

    def confirm(self, tokens: int, told: int | None = None) -> None:
        """Confirm that the reader is through with the chunks up to `tokens` output tokens. The client was told of those
        up to `told`, or of all of them."""
        ...


class Delivery:
    """The output of one request on its way to its reader. `streamed`: it is given out as it comes, else at the end.

    `on_confirmed` is called with the output tokens confirmed so far, `on_left` with the reason why the reader left,
    `on_failed` with the error that the reader is told.
    Two numbers tell of the reader: it is through with `confirmed` tokens, so that more may come; `delivered` of them
    reached the client, so that they are billed. Some readers hold back what they have confirmed.
    """

    def __init__(
        self,
        *,
        streamed: bool,
        on_confirmed: Callable[[int], None],
        on_left: Callable[[str], None],
        on_failed: Callable[[GatewayError], None],
    ) -> None:
        self.streamed = streamed
        self.confirmed = 0
        self.delivered = 0
        self.left = False
        self._on_confirmed = on_confirmed
        self._on_left = on_left
        self._on_failed = on_failed
        self._deltas: list[ChoiceDelta] = []
        self._tokens = 0
        self._taken = 0
        self._end: Finished | Failed | None = None
        self.started: Started | None = None
        """What is known of the start by now: of what the reader was told, `counts` may have become known since."""
        self._told_start = False
        self._ready = asyncio.Event()
        self._heard = asyncio.Event()

    # ------------------------------------------------ the task's side

    def start(self, started: Started) -> None:
        """Say that the request runs. Only streamed answers say it, once for all attempts. A second call adds the counts
        of where the KV came from, if the first had none."""
        if self.streamed and (self.started is None or self.started.counts is None):
            self.started = started
            self._ready.set()

    def push(self, delta: ChoiceDelta, tokens: int) -> None:
        """Hand over more of a choice; with it, `tokens` output tokens have been handed over in all."""
        if delta.text or delta.scores or delta.events or delta.prompt_scores:
            self._deltas.append(delta)
        self._tokens = max(self._tokens, tokens)
        if self._deltas or self._tokens > self._taken:
            self._ready.set()

    @property
    def handed_out(self) -> bool:
        """Whether the client was told anything, or may be now, of what the reader is not through with."""
        return self.delivered > 0 or self._taken > self.confirmed

    def finish(self, finished: Finished) -> None:
        """End well, after all that was pushed."""
        self._close(finished)

    def fail(self, failure: GatewayError) -> None:
        """End with an error, after all that was pushed. Only the first end counts."""
        if self._end is None:
            self._close(Failed(failure))
            self._on_failed(failure)

    async def drained(self) -> bool:
        """Wait until everything pushed was confirmed, or the reader left; True if it did not leave.

        An unstreamed answer is sent only after its end, so that it is not waited for.
        """
        while self.streamed and not self.left and self.confirmed < self._tokens:
            self._heard.clear()
            await self._heard.wait()
        return not self.left

    def detach(self) -> None:
        """Tell the task nothing more: it has ended. A reference to it would make a cycle, which keeps the request in
        memory until the garbage collector runs."""
        self._on_confirmed = self._on_left = self._on_failed = _ignore

    # ------------------------------------------------ the reader's side

    async def next(self, timeout: float | None = None) -> Item | None:  # noqa: ASYNC109  # None is an answer here
        """All that is ready, or the end. None: nothing came within `timeout` seconds."""
        while True:
            if self.left:
                return ReaderGone()
            if self.started is not None and not self._told_start:
                self._told_start = True
                return self.started
            ready = self.streamed or self._end is not None
            if ready and (self._deltas or self._tokens > self._taken):
                deltas, self._deltas, self._taken = merge_deltas(self._deltas), [], self._tokens
                return DeliveryChunk(deltas, self._taken)
            if self._end is not None:
                return self._end
            self._ready.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._ready.wait()
            except TimeoutError:
                return None

    def confirm(self, tokens: int, told: int | None = None) -> None:
        """Confirm that the reader is through with the chunks up to `tokens` output tokens. The client was told of those
        up to `told`, or of all of them."""
        if not self.left:
            self.delivered = max(self.delivered, tokens if told is None else told)
            if tokens > self.confirmed:
                self.confirmed = tokens
                self._on_confirmed(tokens)
        self._heard.set()

    def leave(self, why: str) -> None:
        """Note that the client is gone, or does not read. Nothing happens after a good end."""
        if not self.left and not isinstance(self._end, Finished):
            self.left = True
            self._ready.set()
            self._heard.set()
            self._on_left(why)

    def _close(self, end: Finished | Failed) -> None:
        if self._end is None:
            self._end = end
            self._ready.set()


def _ignore(_: object) -> None:
    """For a task that has ended."""


def merge_deltas(deltas: list[ChoiceDelta]) -> tuple[ChoiceDelta, ...]:
    """One delta for each choice."""
    if len(deltas) < 2:
        return tuple(deltas)
    by_choice: dict[int, list[ChoiceDelta]] = {}
    for delta in deltas:
        by_choice.setdefault(delta.choice, []).append(delta)
    return tuple(
        ChoiceDelta(
            choice,
            "".join(delta.text for delta in own),
            tuple(score for delta in own for score in delta.scores),
            tuple(event for delta in own for event in delta.events),
            next((delta.prompt_scores for delta in own if delta.prompt_scores), ()),
        )
        for choice, own in by_choice.items()
    )
