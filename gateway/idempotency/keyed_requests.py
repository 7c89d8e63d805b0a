"""Answers generating requests that carry an `Idempotency-Key`: each key's request runs once, and is billed once.

While it runs, a request with the same key, body and headers joins its answer from the start; afterwards it is given the
kept answer, byte for byte. The request does not end with its client: it goes on for a minute without one.
Sources: draft-ietf-httpapi-idempotency-key-header-07; https://docs.stripe.com/api/idempotent_requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import structlog

from gateway.admission.prepared_request import Payer
from gateway.errors import AnswerNotKept, KeyReused, RateLimited, Unavailable
from gateway.generation.running_tasks import RunningTasks
from gateway.idempotency.recording import ALONE_S, MOST_KEPT, Recording
from gateway.idempotency.request_key import HEADER
from gateway.kept_responses.keeper import ResponseKeeper
from gateway.request_context import public_name
from prompt_cache.promise.scope_keys import ScopeKeyUnreadable
from response_store.idempotency import Claim, ClaimKey, IdempotencyClaims, KeptAnswer, NewClaim
from storage.database.circuit_breaker import CircuitBreaker
from storage.database.database import DatabaseUnavailable

log = structlog.get_logger("gateway.idempotency")

MOST_BYTES = 256 * 1024 * 1024
"""Of recordings that a worker holds, shared evenly between tenants; what comes beyond that cannot be kept."""
MOST_READERS = 16
"""Of one running answer at once, and of its key while it runs elsewhere."""
_BEAT_S = 2.0
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.1, 1.0
_LONGEST_WAIT_S = 600.0
"""How long a request waits for one that runs in another worker."""
_LONGEST_END_S = 10.0
"""How long it is tried to end a claim: after that it counts as that of a dead worker (`IdempotencyClaims`)."""
_FAILED = 300
Result = TypeVar("Result")


class KeyedRun:
    """The request that runs for a key, here. `digest`: of all that decides over its answer."""

    def __init__(self, claim: NewClaim, recording: Recording) -> None:
        self.claim = claim
        self.recording = recording
        self.model = self.lane = ""
        self.task: asyncio.Task[None] | None = None


class KeyedRequests:
    """The requests with keys of one worker. `keeper` says what a project keeps."""

    def __init__(
        self,
        claims: IdempotencyClaims,
        requests: RunningTasks,
        breaker: CircuitBreaker,
        keeper: ResponseKeeper,
    ) -> None:
        self._claims = claims
        self._requests = requests
        self._breaker = breaker
        self._keeper = keeper
        self._running: dict[ClaimKey, KeyedRun] = {}
        self._claiming: dict[ClaimKey, tuple[asyncio.Lock, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: Counter[ClaimKey] = Counter()
        self._bytes: Counter[UUID] = Counter()
        self.most_bytes = MOST_BYTES
        self.alone_s = ALONE_S

    async def beat(self) -> None:
        """Say again and again which claims this worker still runs, until cancelled."""
        while True:
            await asyncio.sleep(_BEAT_S)
            running = [run.claim.request_id for run in self._running.values()]
            if running:
                with contextlib.suppress(DatabaseUnavailable):
                    await self._breaker.wait(self._claims.beat(running))

    async def close(self) -> None:
        """Wait for the ends of what has run, when nothing runs any more."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def join(
        self,
        claim: NewClaim,
        payer: Payer,
        start: Callable[[NewClaim], KeyedRun],
        wait: Callable[[], Awaitable[None]],
    ) -> KeyedRun | KeptAnswer:
        """The run that this request is, or joins, or the answer that is kept. `wait` is awaited before it waits for one
        that runs elsewhere, and again after that. Raises KeyReused, AnswerNotKept, Unavailable, RateLimited,
        DatabaseUnavailable, and what `wait` raises."""
        # A claim that is made is run, also when its client leaves meanwhile.
        found = await _to_its_end(self._claim(claim, start))
        if isinstance(found, KeyedRun):
            return found
        if found.worker is not None:
            await wait()
            found = await self._wait(claim, start)
            await wait()
        return found if isinstance(found, KeyedRun) else await self._kept(found, claim, payer)

    async def _claim(self, claim: NewClaim, start: Callable[[NewClaim], KeyedRun]) -> KeyedRun | Claim:
        """The run of the claim here, begun now or before, or the claim as it stands."""
        async with self._lock(claim.key):
            if (run := self._running.get(claim.key)) is not None:
                _check(claim, run.claim.request_digest)
                return run
            standing = await self._breaker.wait(self._claims.claim(claim))
            if standing is None:
                run = self._running[claim.key] = start(claim)
                return run
        _check(claim, standing.request_digest)
        return standing

    async def _wait(self, claim: NewClaim, start: Callable[[NewClaim], KeyedRun]) -> KeyedRun | Claim:
        """Wait until the request of a key has ended elsewhere, or its worker is dead."""
        if self._waiting[claim.key] >= MOST_READERS:
            raise RateLimited("Too many requests wait for the answer of this idempotency key at once.")
        self._waiting[claim.key] += 1
        until, pause = time.monotonic() + _LONGEST_WAIT_S, _FIRST_LOOK_S
        try:
            while not self._requests.draining and time.monotonic() < until:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_LOOK_S)
                if await self._breaker.wait(self._claims.runs(claim.key)):
                    continue
                found = await _to_its_end(self._claim(claim, start))
                if isinstance(found, KeyedRun) or found.worker is None:
                    return found
        finally:
            self._waiting[claim.key] -= 1
            if not self._waiting[claim.key]:
                del self._waiting[claim.key]
        raise Unavailable("The request of this idempotency key still runs; try again.", retry_after=1.0)

    async def _kept(self, standing: Claim, claim: NewClaim, payer: Payer) -> KeptAnswer:
        payer.check(standing.model)
        try:
            opening = self._claims.open(claim.tenant_id, claim.project_id, standing)
            answer = await self._breaker.wait(opening)
        except ScopeKeyUnreadable:
            answer = None
        if answer is None:
            raise AnswerNotKept(HEADER, public_name(standing.request_id))
        payer.check(standing.model, answer.lane or None)
        return answer

    def recording(self, tenant: UUID) -> Recording:
        """A recording whose bytes are counted for a tenant."""
        share = self.most_bytes // (len(self._bytes) + (tenant not in self._bytes))
        most = MOST_KEPT if self._bytes[tenant] < share else 0
        if not self._bytes[tenant]:
            del self._bytes[tenant]  # the look-up made an entry
        return Recording(partial(self._sized, tenant), self.alone_s, most)

    def run(self, run: KeyedRun, payer: Payer, work: Callable[[], Awaitable[bool]], *, kept: bool) -> None:
        """Run `work`, which fills the recording and says whether its answer stands; then end the claim."""
        task = run.task = asyncio.create_task(self._run(run, payer, work, kept=kept))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, run: KeyedRun, payer: Payer, work: Callable[[], Awaitable[bool]], *, kept: bool) -> None:
        recording, failure = run.recording, None
        stands = False
        try:
            stands = await work()
        except Exception as error:  # whoever waits for the answer is told
            failure, stands = error, 0 < recording.status < _FAILED
        try:
            await self._end(run, payer, stands=stands, kept=kept and recording.complete)
        finally:
            self._running.pop(run.claim.key, None)
            if recording.complete:
                recording.end()
            else:
                recording.fail(failure or Unavailable("The request ended before its answer did."))
            recording.forget()

    async def _end(self, run: KeyedRun, payer: Payer, *, stands: bool, kept: bool) -> None:
        """End the claim. While the database is away it is tried again, for as long as the claim's worker may be silent:
        the claim would go to the next who asks, and run again."""
        claim, answer = run.claim, None
        until = time.monotonic() + _LONGEST_END_S
        while True:
            try:
                if not stands:
                    await self._breaker.wait(self._claims.release(claim.key, claim.request_id))
                    return
                if answer is None and kept and await self._keeper.keeps(payer):
                    answer = run.recording.answer(run.lane)
                    if answer is not None:
                        self._keeper.count(payer.project_id, answer.body)
                await self._breaker.wait(self._claims.finish(claim, run.model, answer))
                return
            except (DatabaseUnavailable, ScopeKeyUnreadable) as error:
                if isinstance(error, ScopeKeyUnreadable) or time.monotonic() >= until:
                    log.warning(
                        "what an idempotency key stands for is not kept",
                        request_id=public_name(claim.request_id),
                        cause=type(error).__name__,
                    )
                    return
            await asyncio.sleep(_FIRST_LOOK_S)

    def _sized(self, tenant: UUID, more: int) -> None:
        self._bytes[tenant] += more
        if not self._bytes[tenant]:
            del self._bytes[tenant]

    @asynccontextmanager
    async def _lock(self, key: ClaimKey) -> AsyncIterator[None]:
        """One after the other for a key: the second finds the run of the first."""
        lock, users = self._claiming.get(key, (asyncio.Lock(), 0))
        self._claiming[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._claiming.pop(key)
            if users > 1:
                self._claiming[key] = (lock, users - 1)


async def _to_its_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Do this even if whoever waits for it leaves."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


def _check(claim: NewClaim, other: bytes) -> None:
    if claim.request_digest != other:
        raise KeyReused(HEADER)
