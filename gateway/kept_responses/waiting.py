"""What a response waits for that is run anew: a replica, a database, room in its limits.

A client who is refused for the lack of them tries again. Of a response in the background nobody does, so it waits: for
all of them together until one deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from gateway.admission.prepared_request import PreparedRequest
from gateway.errors import RateLimited, Unavailable
from gateway.kept_responses.background_run import BEAT_S
from gateway.limits.limiter import Limiter
from gateway.limits.permit import AskedPermit

Result = TypeVar("Result")
StillWanted = Callable[[], Awaitable[bool]]
"""Whether somebody still wants the response to run here, which is asked about once in BEAT_S."""

BEGIN_TIMEOUT_S = 600.0
"""How long a response waits at most before it is run."""


async def while_wanted(work: Coroutine[Any, Any, Result], still_wanted: StillWanted) -> Result | None:
    """Do the work and ask meanwhile whether it is still wanted, so that nobody takes this worker for a silent one. What
    the work returns; None if it was not wanted any more, and was cancelled. Raises what either of them raises."""
    working, asking = asyncio.create_task(work), asyncio.create_task(_until_unwanted(still_wanted))
    try:
        await asyncio.wait((working, asking), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        asking.result()
        return None
    finally:
        working.cancel()
        asking.cancel()
        await asyncio.gather(working, asking, return_exceptions=True)


async def _until_unwanted(still_wanted: StillWanted) -> None:
    wanted = True
    while wanted:
        await asyncio.sleep(BEAT_S)
        wanted = await still_wanted()


async def wait_until_it_begins(check: Callable[[], None], begin: Callable[[float], Awaitable[Result]]) -> Result:
    """What `begin` returns, once neither it nor `check`, which costs less, is refused for what may pass. Raises what
    they raise after `BEGIN_TIMEOUT_S`. `begin` is told when that is, on the monotonic clock."""
    end = time.monotonic() + BEGIN_TIMEOUT_S
    while True:
        try:
            check()
            return await begin(end)
        except (Unavailable, RateLimited) as refusal:
            if time.monotonic() >= end:
                raise
            seconds = refusal.retry_after
        await _pause(seconds, end)


async def wait_for_limits(limiter: Limiter, prepared: PreparedRequest, end: float) -> AskedPermit:
    """The permit of a request, once its limits have room. Raises RateLimited when it is `end` on the monotonic clock,
    DatabaseUnavailable."""
    payer = prepared.payer
    while True:
        answer = await limiter.reserve(
            prepared.request_id,
            tenant=payer.tenant_id,
            project=payer.project_id,
            key=payer.key_id,
            asked=[prepared.asked],
        )
        if answer is None:
            return AskedPermit()
        if answer.refusal is None:
            return AskedPermit(answer.permit)
        if time.monotonic() >= end:
            raise answer.refusal
        await _pause(answer.refusal.retry_after, end)


async def _pause(seconds: float, end: float) -> None:
    """Wait so long, until `end` at most."""
    await asyncio.sleep(max(0.0, min(max(BEAT_S, seconds), end - time.monotonic())))
