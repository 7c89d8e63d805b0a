"""Lets requests through their rate limits, and says with every answer what these have left.

A request that is refused for what it says counts as one too: reading it is work, and a client learns how it stands.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from litestar import Request

from gateway.admission.admission import database_unavailable
from gateway.admission.cache_leases import needs_leases
from gateway.admission.prepared_request import Payer, PreparedRequest
from gateway.errors import GatewayError
from gateway.http.responses import dialect_of
from gateway.limits.headers import limit_headers
from gateway.limits.limiter import Answer
from gateway.limits.permit import AskedPermit, Permit
from gateway.request_context import request_context
from gateway.services import Gateway
from storage.database.database import DatabaseUnavailable
from tracing.spans import RequestFacts
from waterfall.marks import ANSWER
from waterfall.record import Record
from waterfall.writer import Entry

_OURS = 500
"""Statuses from here on say that something is wrong with us: such a request is not counted."""


async def ask_limits(
    gateway: Gateway, request: Request[Any, Any, Any], prepared: Sequence[PreparedRequest]
) -> AskedPermit:
    """Ask the limits of a generating request. Raises RateLimited, Unavailable.

    If there is probably room, the answer comes while the hold is taken, and `AskedPermit` waits for it. Otherwise, and
    for a request with leases, the answer is there when this returns: else others would wait for the prefix of a writer
    that is refused.
    """
    payer = prepared[0].payer
    asking = _permit(gateway, request, prepared)
    beside = gateway.services.limiter.expects_room(tenant=payer.tenant_id, project=payer.project_id, key=payer.key_id)
    if beside and not any(needs_leases(part.plan) for part in prepared):
        return AskedPermit(asking=asyncio.create_task(asking, name=prepared[0].request_id.hex))
    return AskedPermit(await asking)


async def _permit(
    gateway: Gateway, request: Request[Any, Any, Any], prepared: Sequence[PreparedRequest]
) -> Permit | None:
    payer, context = prepared[0].payer, request_context(request.scope)
    asked = [part.asked for part in prepared]
    try:
        answer = await gateway.services.limiter.reserve(
            context.id, tenant=payer.tenant_id, project=payer.project_id, key=payer.key_id, asked=asked
        )
    except DatabaseUnavailable as error:
        raise database_unavailable() from error
    return _let_through(gateway, request, answer)


async def count_request(gateway: Gateway, request: Request[Any, Any, Any], payer: Payer) -> None:
    """Let a request that generates nothing through its limits. Raises RateLimited, Unavailable."""
    try:
        answer = await _count(gateway, request, payer)
    except DatabaseUnavailable as error:
        raise database_unavailable() from error
    _let_through(gateway, request, answer)


@asynccontextmanager
async def counting_refusals(
    gateway: Gateway, request: Request[Any, Any, Any], payer: Payer
) -> AsyncGenerator[None, None]:
    """Count the request if it is refused within, before its limits were asked. It fails with its own error still."""
    try:
        yield
    except GatewayError as error:
        _note_refusal(gateway, request, payer, error)
        if error.status < _OURS and not request_context(request.scope).limit_headers:
            try:
                answer = await _count(gateway, request, payer)
            except DatabaseUnavailable:
                raise error from None
            _tell(request, answer)
        raise


def _note_refusal(gateway: Gateway, request: Request[Any, Any, Any], payer: Payer, error: GatewayError) -> None:
    """Let the times of a request be written that was refused before it became a task."""
    context = request_context(request.scope)
    marks = context.marks
    if marks.taken or not (gateway.waterfalls.enabled or gateway.traces is not None):
        return
    marks.taken = marks.answered = True
    marks.mark(ANSWER)
    record = Record(
        marks.received_at, (), status="refused", code=error.code or "error", key=payer.key, model=context.model
    )
    entry = Entry(context.id, payer.tenant_id, payer.project_id, marks, record, settles=False, refused=True)
    gateway.waterfalls.note(entry)
    if gateway.traces is not None:
        if marks.trace is None:
            gateway.traces.begin(marks)
        failed = error.status >= _OURS
        gateway.traces.note(entry, failed=failed, facts=lambda: RequestFacts(http_status=error.status))


async def _count(gateway: Gateway, request: Request[Any, Any, Any], payer: Payer) -> Answer | None:
    return await gateway.services.limiter.count(
        request_context(request.scope).id, tenant=payer.tenant_id, project=payer.project_id, key=payer.key_id
    )


def _let_through(gateway: Gateway, request: Request[Any, Any, Any], answer: Answer | None) -> Permit | None:
    if answer is None:
        return None
    _tell(request, answer)
    if answer.refusal is not None:
        gateway.metrics.rate_limited(answer.meter)
        raise answer.refusal
    return answer.permit


def _tell(request: Request[Any, Any, Any], answer: Answer | None) -> None:
    """What the limits have left goes with whatever is answered."""
    if answer is not None:
        context = request_context(request.scope)
        context.limit_headers = limit_headers(answer.standing, dialect_of(request.scope), now=time.time())
