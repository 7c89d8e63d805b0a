"""A request that was let through by its limits: what it used is settled, and its places are kept until it ends."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from gateway.limits.expected_tokens import ExpectedTokens
from gateway.limits.operations import UNLIMITED, Began, Ended, Renew, Scopes


class Settling(Protocol):
    """What a permit needs of the limiter."""

    expected: ExpectedTokens

    def settle(self, permit: Permit, operation: Began) -> None:
        """Settle in the background."""
        ...

    async def end(self, permit: Permit, operation: Ended) -> None:
        """Settle; returns when the request's places are free, if it had any."""
        ...


class Permit:
    """One HTTP request, of one generation or several (`parts`). Each part says what it used by `began` and `ended`."""

    def __init__(self, limiter: Settling, tenant: UUID, project: UUID, request: UUID, scopes: Scopes) -> None:
        self.tenant = tenant
        self.request = request.hex
        self.scopes = scopes
        self.parts = 1
        self.has_places = any(bounds.concurrent != UNLIMITED for bounds in scopes)
        self._counts_tokens = any(
            bounds.input_tokens != UNLIMITED or bounds.output_tokens != UNLIMITED for bounds in scopes
        )
        self._limiter = limiter
        self._project = project
        self._input: dict[UUID, int] = {}
        """Part -> its uncached input tokens, once it began."""
        self._output: dict[UUID, int] = {}
        """Part -> its output tokens, once it ended."""

    @property
    def renewal(self) -> Renew:
        """The operation that keeps its places."""
        return Renew(self.request, self.scopes)

    def began(self, part: UUID, conversation: bytes, prompt_tokens: int, uncached: int) -> None:
        """A part was scheduled, and so many of its input tokens count. Only its first attempt does."""
        if part in self._input:
            return
        self._input[part] = uncached
        self._limiter.expected.learn_input(conversation, prompt_tokens, uncached)
        if len(self._input) == self.parts and self._counts_tokens:
            self._limiter.settle(self, Began(self.request, sum(self._input.values()), self.scopes))

    async def ended(self, part: UUID, output_tokens: int) -> None:
        """A part has ended, or never began; returns when its places are free. Only the first call counts."""
        if part in self._output:
            return
        self._output[part] = output_tokens
        if output_tokens:
            self._limiter.expected.learn_output(self._project, output_tokens)
        if len(self._output) == self.parts and (self._counts_tokens or self.has_places):
            used = sum(self._input.values()), sum(self._output.values())
            await self._limiter.end(self, Ended(self.request, *used, self.scopes))
