"""The messages about one attempt of a request: what its replica says, and what may be said to it.

A stream outlives its connection. When that is lost the task is told once (`LinkLost`). When the replica is back under
the same name, the stream is connected again to learn the final counts, never to go on generating.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeAlias

from gateway.fleet.routing import Sent
from protocol.frames import ProtocolError, ToReplica
from protocol.requests import Abort, Ack, Began, Credit, Done, Generate, PromptLogprobs, Tokens


class LinkLost:
    """The connection to the replica is gone while the request ran."""


class TimeOver:
    """The task's timer: what it waited for did not come."""


ReplicaEvent: TypeAlias = Began | PromptLogprobs | Tokens | Done | LinkLost | TimeOver


class MessageSender(Protocol):
    """What a stream needs of a link."""

    def send(self, message: ToReplica) -> None:
        """Queue a message for the replica; nothing happens on a lost link."""
        ...


class ReplicaStream:
    """Messages about one attempt of a request. `replica`, `epoch`, `model_digest` and `numerics` are those of the
    replica that runs it; `version` is the protocol version that a replica must know to run it."""

    def __init__(
        self, request: Generate, replica: str, model_digest: str, *, epoch: int = 0, numerics: str = ""
    ) -> None:
        self.request_id = request.id
        self.attempt = request.attempt
        self.version = request.version
        self.replica = replica
        self.model_digest = model_digest
        self.epoch = epoch
        self.numerics = numerics
        self.link: MessageSender | None = None
        self.sent: Sent | None = None
        """By what choice it is there."""
        self.lost = False
        """Whether the connection was lost while it ran."""
        self.suspect = False
        """Whether the replica was lost, and this is probably why."""
        self._received = {choice: len(tokens) for choice, tokens in enumerate(request.emitted)}
        self._limit = request.credit
        self._wish = request.credit
        self._paid: int | None = None
        self._credited = request.delivered
        self._heard: asyncio.Queue[ReplicaEvent] = asyncio.Queue()

    @property
    def received(self) -> int:
        """Output tokens received so far, of all choices, those of the attempts that it goes on after among them."""
        return sum(self._received.values())

    async def next(self) -> ReplicaEvent:
        """What the replica says next, or what befell the connection."""
        return await self._heard.get()

    def hear(self, message: Began | PromptLogprobs | Tokens | Done | TimeOver) -> None:
        """Called by the link. Raises ProtocolError for tokens out of order or beyond the credit given."""
        if isinstance(message, Began | Tokens) and message.attempt != self.attempt:
            return
        if isinstance(message, Tokens):
            received = self._received.get(message.choice, 0)
            if message.start != received:
                raise ProtocolError(f"tokens from {message.start} where {received} was due")
            received = self._received[message.choice] = received + len(message.tokens)
            if received > self._limit:
                raise ProtocolError(f"{received} tokens sent on a credit of {self._limit}")
        self._heard.put_nowait(message)

    def lose(self, *, suspect: bool = False) -> None:
        """Called when the link is lost; `suspect`: the replica probably died of this request."""
        self.link = None
        self.lost = True
        self.suspect = suspect
        self._heard.put_nowait(LinkLost())

    def credit(self, delivered: int, *, read: int, held: int, window: int, step: int) -> None:
        """Note that `delivered` tokens reached the client, and tell the replica when that is enough news.

        `window`: how many tokens may be on their way to the client. `read` tokens have left the gateway's queue for it.
        `held` wait for the tokens that follow (a stop string may have begun), not for the client: they do not count
        against the window, or the stream would wait for itself. Several choices share the window: each may go beyond
        the furthest one by what is left of it. `step`: the replica is told each so many tokens.
        """
        unread = self.received - held - read
        self._wish = max(self._received.values(), default=0) + window - unread
        wish = self._wish if self._paid is None else min(self._wish, self._paid)
        limit = max(self._limit, wish)
        first = self._credited == 0 and delivered > 0
        last = limit == self._paid and limit > self._limit
        if first or last or delivered - self._credited >= step or limit - self._limit >= window // 2:
            self._credited, self._limit = delivered, limit
            self._send(Credit(self.request_id, delivered, limit, self.attempt))

    def pay(self, tokens: int, *, delivered: int = 0, wish: int = 0) -> None:
        """Note that `tokens` of each choice are paid for; the replica gets no credit beyond that, and waits there.

        `delivered` tokens reached the client; `wish` is the credit that it might have if all were paid for.
        """
        self._paid, self._wish = tokens, max(self._wish, wish)
        limit = min(self._wish, tokens)
        if limit > self._limit:
            self._credited, self._limit = max(self._credited, delivered), limit
            self._send(Credit(self.request_id, self._credited, limit, self.attempt))

    def choices_at(self, tokens: int) -> list[int]:
        """The choices of which at least so many tokens were received."""
        return [choice for choice, received in self._received.items() if received >= tokens]

    def abort(self, why: str, choice: int | None = None) -> None:
        """Ask the replica to stop, or to stop one choice; `Done` follows."""
        self._send(Abort(self.request_id, why, choice, self.attempt))

    def acknowledge(self, sequence: int) -> None:
        """The usage is durable."""
        self._send(Ack(self.request_id, sequence))

    def _send(self, message: ToReplica) -> None:
        if self.link is not None:
            self.link.send(message)
