"""Lets requests through their limits: in Redis with all other workers, or in this process where there is no Redis.

Operations are batched without a timer, as holds are: what comes while Redis is asked goes into the next call. A
request without any limit asks nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from uuid import UUID

import structlog
from msgspec import Struct
from msgspec.structs import replace

from gateway.errors import RateLimited
from gateway.limits.expected_tokens import ExpectedTokens
from gateway.limits.memory_buckets import MemoryBuckets
from gateway.limits.operations import (
    CONCURRENT,
    LIMITED,
    MICRO,
    UNLIMITED,
    Bounds,
    Levels,
    Operation,
    Reserve,
    Settle,
    SettleInput,
    Subjects,
    Verdict,
)
from gateway.limits.outage import Outage
from gateway.limits.permit import FREE, Permit
from gateway.limits.redis_buckets import RedisBuckets
from storage.database.batcher import MicroBatcher
from storage.redis_script import ScriptUnavailable
from tenancy.rate_limits import LimitCache, SubjectLimits

log = structlog.get_logger("gateway.limits")

LEASE_US = 15 * MICRO
"""A place whose gateway died is free after so long."""
KEEP_US = 3600 * MICRO
"""A reservation that was never settled is forgotten after so long; buckets are full again by then."""
_RENEW_S = 5.0
_BATCH = 256
_UNITS = ("requests a minute", "uncached input tokens a minute", "output tokens a minute", "requests at once")


class Asked(Struct, frozen=True):
    """What one part of a request asks for: its conversation's key, prompt tokens, and output tokens at most."""

    conversation: bytes
    prompt_tokens: int
    max_output: int


class Standing(Struct, frozen=True):
    """What a request's limits have left, for the headers of its answer."""

    subjects: Subjects
    levels: tuple[Levels, ...]


class Answer(Struct, frozen=True):
    """Whether a request may run, and what its limits have left. A refused one has a `refusal` and the `meter` that it
    has to wait for."""

    permit: Permit
    standing: Standing
    refusal: RateLimited | None = None
    meter: str = ""


class Limiter:
    """The limits of one worker, `name`. Call `start` before use and `close` after."""

    def __init__(self, cache: LimitCache, shared: RedisBuckets | None, name: str) -> None:
        self.expected = ExpectedTokens()
        self.cache = cache
        self._shared = shared
        self._name = name
        self._memory = MemoryBuckets(LEASE_US, KEEP_US)
        self._outage = Outage(LEASE_US, KEEP_US)
        self._batcher = MicroBatcher[tuple[UUID, Operation], Verdict | None](self._flush, _BATCH)
        self._placed: dict[str, Permit] = {}
        """Running requests that have places, by id."""
        self._bounds: dict[tuple[SubjectLimits, ...], Subjects] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def degraded(self) -> bool:
        """Whether Redis is away, and this worker keeps its share of every limit by itself."""
        return self._outage.active

    async def start(self) -> None:
        """Hear of changed limits, and keep the places of running requests."""
        await self.cache.start()
        self._task = asyncio.create_task(self._keep_renewing())

    async def close(self) -> None:
        """Settle what is queued, and close the connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._batcher.close()
        await self.cache.close()
        if self._shared is not None:
            await self._shared.close()

    async def reserve(
        self, request: UUID, *, tenant: UUID, project: UUID, key: UUID, asked: Sequence[Asked]
    ) -> Answer | None:
        """Let a request through, or say why not; None if it has no limits. Raises DatabaseUnavailable."""
        found = await self._limits(key, project, tenant)
        if not found:
            return None
        subjects, expected = self._subjects(found), self.expected
        operation = Reserve(
            request.hex,
            sum(expected.uncached(part.conversation, part.prompt_tokens) for part in asked),
            sum(expected.output(project, part.max_output) for part in asked),
            subjects,
        )
        permit = Permit(self, tenant, project, request, subjects)
        permit.parts = len(asked)
        answer = await self._answer(permit, operation, found)
        if permit.has_places and answer.refusal is None:
            self._placed[permit.request] = permit
        return answer

    def expects_room(self, *, tenant: UUID, project: UUID, key: UUID) -> bool:
        """Whether a request has limits that Redis keeps, and will hardly be refused by them. Then it may be asked for
        while something else is done, which is undone if it is refused after all."""
        if self._shared is None or self._outage.active:
            return False
        found = self.cache.known(key, project, tenant)
        return bool(found) and self._outage.saw_room(self._subjects(found or ()))

    async def count(self, request: UUID, *, tenant: UUID, project: UUID, key: UUID) -> Answer | None:
        """Count a request that generates nothing: it takes no tokens and no place. As `reserve` otherwise."""
        found = await self._limits(key, project, tenant)
        if not found:
            return None
        subjects = tuple(replace(bounds, concurrent=UNLIMITED) for bounds in self._subjects(found))
        permit = Permit(self, tenant, project, request, subjects)
        answer = await self._answer(permit, Reserve(request.hex, 0, 0, subjects), found)
        if answer.refusal is None:
            permit.ended(request, 0)
        return answer

    def settle(self, permit: Permit, operation: SettleInput) -> None:
        """Settle in the background, in the order of calls."""
        if self._shared is None:
            self._memory.run(operation)
        elif self._shared.asks:
            self._batcher.submit((permit.tenant, operation))

    def end(self, permit: Permit, operation: Settle) -> Awaitable[object]:
        """Settle and free the request's places; what is returned is done when other workers see them free. This one
        asks in order, so it need not wait for itself."""
        self._placed.pop(permit.request, None)
        if self._shared is None:
            self._memory.run(operation)
            return FREE
        if self._outage.active:
            self._outage.run(operation)
        if self._shared.asks:
            done = self._batcher.submit((permit.tenant, operation))
            if permit.has_places and self._outage.workers > 1:
                return done
        return FREE

    async def _limits(self, key: UUID, project: UUID, tenant: UUID) -> tuple[SubjectLimits, ...]:
        found = self.cache.known(key, project, tenant)
        return await self.cache.load(key, project, tenant) if found is None else found

    async def _answer(self, permit: Permit, operation: Reserve, found: Sequence[SubjectLimits]) -> Answer:
        verdict = await self._ask(permit.tenant, operation)
        standing = Standing(permit.subjects, verdict.levels)
        if verdict.allowed:
            return Answer(permit, standing)
        return Answer(permit, standing, _refusal(verdict, found), LIMITED[verdict.meter])

    async def _ask(self, tenant: UUID, operation: Reserve) -> Verdict:
        if self._shared is None:
            return self._memory.reserve(operation)
        verdict = await self._batcher.submit((tenant, operation)) if self._shared.asks else None
        if verdict is None:
            self._begin_outage()
            return self._outage.reserve(tenant, operation)
        self._outage.saw(operation.subjects, verdict.levels)
        return verdict

    def _begin_outage(self) -> None:
        if not self._outage.active:
            self._outage.begin((permit.request, permit.subjects) for permit in self._placed.values())

    async def _flush(self, items: list[tuple[UUID, Operation]]) -> list[Verdict | Exception | None]:
        """The answers, None for every item while Redis is away."""
        assert self._shared is not None
        charges = self._outage.charges() if self._outage.active else []
        try:
            answers = await self._shared.run([*charges, *items])
        except ScriptUnavailable:
            return [None] * len(items)
        if self._outage.active:
            self._outage.end()
        return list(answers[len(charges) :])

    async def _keep_renewing(self) -> None:
        while True:
            try:
                await self.renew()
            except Exception:  # this must not end: places would be lost while their requests run
                log.exception("places of running requests were not renewed, trying again")
            await asyncio.sleep(_RENEW_S)

    async def renew(self) -> None:
        """Keep the places of what runs, and count the workers."""
        placed = list(self._placed.values())
        if self._shared is not None:
            await self._renew_shared(self._shared, placed)
            return
        for permit in placed:
            self._memory.run(permit.renewal)

    async def _renew_shared(self, shared: RedisBuckets, placed: Sequence[Permit]) -> None:
        if self._outage.active:
            for permit in placed:
                self._outage.run(permit.renewal)
        try:
            self._outage.workers, self._outage.rank = await shared.workers(self._name)
        except ScriptUnavailable:
            return
        except Exception:
            log.exception("the workers could not be counted")
        for permit in placed:
            if permit.request in self._placed:  # it has not ended meanwhile
                self._batcher.submit((permit.tenant, permit.renewal))

    def _subjects(self, found: tuple[SubjectLimits, ...]) -> Subjects:
        subjects = self._bounds.get(found)
        if subjects is None:
            if len(self._bounds) > _BATCH:
                self._bounds.clear()
            subjects = self._bounds[found] = tuple(map(_bounds, found))
        return subjects


def _bounds(found: SubjectLimits) -> Bounds:
    limits = (
        found.limits.requests_per_minute,
        found.limits.input_tokens_per_minute,
        found.limits.output_tokens_per_minute,
        found.limits.concurrent_requests,
    )
    return Bounds(found.subject_id.hex, *(UNLIMITED if limit is None else limit for limit in limits))


def _refusal(verdict: Verdict, found: Sequence[SubjectLimits]) -> RateLimited:
    limited = found[verdict.subject]
    most = _bounds(limited).limits[verdict.meter]
    wait = verdict.wait / MICRO
    when = "when one of them has ended" if verdict.meter == CONCURRENT else f"in {max(1, round(wait + 0.5))} s"
    text = f"The {limited.scope}'s limit of {most} {_UNITS[verdict.meter]} is reached; try again {when}."
    return RateLimited(text, retry_after=wait)
