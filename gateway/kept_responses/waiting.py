"""The rate limits of a response that is run anew: nobody waits for their refusal, so the response waits for room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from gateway.admission.admission import PreparedRequest
from gateway.kept_responses.background_run import BEAT_S
from gateway.limits.limiter import Limiter
from gateway.limits.permit import AskedPermit

PATIENCE_S = 600.0
"""How long a response waits at most."""


async def wait_for_limits(
    limiter: Limiter, prepared: PreparedRequest, still_wanted: Callable[[], Awaitable[bool]]
) -> AskedPermit | None:
    """The permit of a request, once its limits have room; None if it is not wanted any more, which is asked about once
    in BEAT_S. Raises RateLimited when its patience has ended, DatabaseUnavailable."""
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
        again = time.monotonic() + max(BEAT_S, answer.refusal.retry_after)
        while (left := again - time.monotonic()) > 0:
            if not await still_wanted():
                return None
            await asyncio.sleep(min(BEAT_S, left))
