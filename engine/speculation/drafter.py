"""What guesses the next tokens of requests: the interface that every drafter has.

A guess costs rows of a step, never a token: the runner draws in each row what plain decoding would draw there, and a
guess is accepted if it is that token (`engine.execution.model_runner`). So a drafter may be wrong, slow to learn, or
lie; the output is the same. It sees requests of all tenants: what it remembers of one it may tell to its scope alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from engine.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class Query:
    """Asks for at most `most` tokens, one or more, that may follow the tokens that `request` has now."""

    request: Request
    most: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that may follow, in order. `chance`: how likely each is right if those before it are, within 0..1, by
    what the drafter found; the request's own acceptance corrects it."""

    tokens: Sequence[int]
    chance: float = 0.5


class Drafter:
    """Proposes drafts for a batch of requests. One thread makes all calls, between two steps.

    A request is begun when it first decodes here, and ended when it leaves the engine; between them it may be
    preempted, and goes on with the same tokens. A drafter reads its tokens from `Request.tokens`: after a step these
    are what was emitted, whatever was proposed.
    """

    name: ClassVar[str]
    """In settings, logs and metrics."""
    computes: ClassVar[bool] = False
    """Whether its proposals take a time worth weighing before it is asked: `cost_us`."""

    def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        """For each query a proposal of 1 to `most` tokens, or None for no idea. Bounded in time: all requests wait."""
        raise NotImplementedError

    def catch_up(self) -> None:
        """A step was chosen, and who wanted proposals for it has them: compute a bounded piece of what this drafter is
        behind with, such as prompts. Called for each step, also where nothing decodes."""

    def cost_us(self, requests: int, tokens: int) -> float:
        """µs that proposals of so many tokens for each of so many requests are expected to take."""
        return 0.0

    def begin(self, request: Request) -> None:
        """A request decodes for the first time: its prompt is computed, and it may have its first token."""

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        """A step has verified `drafted` tokens that this drafter proposed: the first `accepted` of them were right. One
        token more was emitted behind these; all are in `request.tokens`."""

    def end(self, request: Request) -> None:
        """The request has left the engine; its tokens can still be read. It was begun, unless this drafter `computes`:
        such a one hears of each request."""

    def retain(self, scope: str, seconds: float) -> None:
        """What is remembered of this scope's requests beyond their end may be for so long, from when they ended; 0: for
        no time. Of a scope for which this was never said nothing may be."""

    def purge(self, scope: str) -> None:
        """Drop all that was remembered of this scope's requests beyond those that run. Its retention stays."""

    def forget(self, scope: str) -> None:
        """The scope is gone: drop what was remembered of it, and its retention."""
        self.purge(scope)

    def close(self) -> None:
        """It has failed and is called no more: drop all that it holds, and take from the steps what they do for it."""
