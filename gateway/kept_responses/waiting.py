"""What a response waits for that is run anew: a replica, a database, room in its limits.

A client who is refused for the lack of them tries again. Of a response in the background nobody does, so it waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.admission.admission import PreparedRequest
from gateway.errors import RateLimited, Unavailable
from gateway.kept_responses.background_run import BEAT_S
from gateway.limits.limiter import Limiter
from gateway.limits.permit import AskedPermit

Result = TypeVar("Result")
StillWanted = Callable[[], Awaitable[bool]]
"""Whether somebody still wants the response to run here, which is asked about once in BEAT_S."""

PATIENCE_S = 600.0
"""How long a response waits at most."""


async def wait_until_it_begins(
    check: Callable[[], None], begin: Callable[[], Awaitable[Result]], still_wanted: StillWanted
) -> Result | None:
    """What `begin` returns, once neither it nor `check`, which costs less, is refused for what may pass; None if it is
    not wanted any more. Raises what they raise when its patience has ended."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            check()
            return await begin()
        except (Unavailable, RateLimited) as refusal:
            if time.monotonic() >= end:
                raise
            seconds = refusal.retry_after
        if not await _pause(seconds, still_wanted):
            return None


async def wait_for_limits(limiter: Limiter, prepared: PreparedRequest, still_wanted: StillWanted) -> AskedPermit | None:
    """The permit of a request, once its limits have room; None if it is not wanted any more. Raises RateLimited when
    its patience has ended, DatabaseUnavailable."""
    payer, end = prepared.payer, time.monotonic() + PATIENCE_S
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
        if not await _pause(answer.refusal.retry_after, still_wanted):
            return None


async def _pause(seconds: float, still_wanted: StillWanted) -> bool:
    """Wait so long, and say whether it is still wanted."""
    again = time.monotonic() + max(BEAT_S, seconds)
    while (left := again - time.monotonic()) > 0:
        if not await still_wanted():
            return False
        await asyncio.sleep(min(BEAT_S, left))
    return True
