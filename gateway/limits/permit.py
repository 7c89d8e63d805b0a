"""A request that was let through by its limits: what it used is settled, and its places are kept until it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Generator
from typing import Protocol
from uuid import UUID

import structlog

from gateway.errors import GatewayError, Interrupted
from gateway.limits.expected_tokens import ExpectedTokens
from gateway.limits.operations import UNLIMITED, Renew, Settle, SettleInput, Subjects

log = structlog.get_logger("gateway.limits")


class _Free:
    """Nothing to wait for."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


FREE = _Free()


class Settling(Protocol):
    """What a permit needs of the limiter."""

    expected: ExpectedTokens

    def settle(self, permit: Permit, operation: SettleInput) -> None:
        """Settle in the background."""
        ...

    def end(self, permit: Permit, operation: Settle) -> Awaitable[object]:
        """Settle; what is returned is done when the request's places are free."""
        ...


class Permit:
    """One HTTP request, of one generation or several (`parts`). Each part says what it used by `began` and `ended`."""

    def __init__(self, limiter: Settling, tenant: UUID, project: UUID, request: UUID, subjects: Subjects) -> None:
        self.tenant = tenant
        self.request = request.hex
        self.subjects = subjects
        self.parts = 1
        self.has_places = any(bounds.concurrent != UNLIMITED for bounds in subjects)
        self._counts_tokens = any(
            bounds.input_tokens != UNLIMITED or bounds.output_tokens != UNLIMITED for bounds in subjects
        )
        self._limiter = limiter
        self._project = project
        self._input: dict[UUID, int] = {}
        """Part -> its uncached input tokens, once it began."""
        self._freed: Awaitable[object] = FREE
        self._output: dict[UUID, int] = {}
        """Part -> its output tokens, once it ended."""

    @property
    def renewal(self) -> Renew:
        """The operation that keeps its places."""
        return Renew(self.request, self.subjects)

    def began(self, part: UUID, conversation: bytes, prompt_tokens: int, uncached: int) -> None:
        """A part was scheduled, and so many of its input tokens count. Only its first attempt does."""
        if part in self._input:
            return
        self._input[part] = uncached
        self._limiter.expected.learn_input(conversation, prompt_tokens, uncached)
        if len(self._input) == self.parts and self._counts_tokens:
            self._limiter.settle(self, SettleInput(self.request, sum(self._input.values()), self.subjects))

    def ended(self, part: UUID, output_tokens: int) -> Awaitable[object]:
        """A part has ended, or never began. Only the first call counts; what it returns is done when the places are
        free for whoever asks next, at any gateway."""
        if part in self._output:
            return self._freed
        self._output[part] = output_tokens
        if output_tokens:
            self._limiter.expected.learn_output(self._project, output_tokens)
        if len(self._output) == self.parts and (self._counts_tokens or self.has_places):
            used = sum(self._input.values()), sum(self._output.values())
            self._freed = self._limiter.end(self, Settle(self.request, *used, self.subjects))
        return self._freed


class AskedPermit:
    """The permit of a request, which may not have come yet: limits are asked while money is held.

    The parts of a request share it. Each hears `refusal` before its replica hears of it, and says `ended`, whatever
    became of it; before `refusal` has answered, `ended` does nothing.
    """

    def __init__(self, permit: Permit | None = None, *, asking: asyncio.Task[Permit | None] | None = None) -> None:
        """`permit`: what was let through; None for a request without limits. `asking`: what will bring it."""
        self._permit = permit
        self._asking = asking
        self._asked, self._answered = time.monotonic_ns(), 0
        if asking is not None:
            asking.add_done_callback(self._note_answer)
        self._refusal: GatewayError | None = None

    @property
    def limited(self) -> bool:
        """Whether there are limits that let it through."""
        return self._permit is not None

    @property
    def beside(self) -> tuple[int, int] | None:
        """When the limits were asked beside the hold, and when they had answered, by the monotonic clock in ns; None if
        they were not asked so, or have not answered."""
        return (self._asked, self._answered) if self._answered else None

    def _note_answer(self, _: object) -> None:
        self._answered = time.monotonic_ns()

    async def refusal(self) -> GatewayError | None:
        """Why the limits refuse the request, once they have answered; None if it may run."""
        if self._asking is not None:
            try:
                self._permit = await asyncio.shield(self._asking)
            except GatewayError as error:
                self._refusal = error
            except Exception:
                log.exception("the limits of a request could not be asked", request_id=self._asking.get_name())
                self._refusal = Interrupted("The limits of this request could not be asked.")
            self._asking = None
        return self._refusal

    def began(self, part: UUID, conversation: bytes, prompt_tokens: int, uncached: int) -> None:
        """As `Permit.began`."""
        if self._permit is not None:
            self._permit.began(part, conversation, prompt_tokens, uncached)

    def ended(self, part: UUID, output_tokens: int) -> Awaitable[object]:
        """As `Permit.ended`."""
        return FREE if self._permit is None else self._permit.ended(part, output_tokens)
