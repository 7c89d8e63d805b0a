"""Lets requests through their rate limits, and says with every answer what these have left.

A request that is refused for what it says counts as one too: reading it is work, and a client learns how it stands.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from litestar import Request

from gateway.admission.admission import Payer, PreparedRequest, database_unavailable
from gateway.errors import GatewayError
from gateway.http.responses import speaks_anthropic
from gateway.limits.headers import limit_headers
from gateway.limits.limiter import Answer, Asked
from gateway.limits.permit import Permit
from gateway.request_context import request_context
from gateway.services import Gateway
from storage.database.database import DatabaseUnavailable

_OURS = 500
"""Statuses from here on say that something is wrong with us: such a request is not counted."""


async def permit_request(
    gateway: Gateway, request: Request[Any, Any, Any], prepared: Sequence[PreparedRequest]
) -> Permit | None:
    """Let a generating request through its limits, None if it has none. Raises RateLimited, Unavailable."""
    payer, context = prepared[0].payer, request_context(request.scope)
    asked = [
        Asked(part.conversation, len(part.prompt.tokens), part.sampling.max_tokens * part.generation.choices)
        for part in prepared
    ]
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
        if error.status < _OURS and not request_context(request.scope).limit_headers:
            try:
                answer = await _count(gateway, request, payer)
            except DatabaseUnavailable:
                raise error from None
            _tell(request, answer)
        raise


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
        request_context(request.scope).limit_headers = limit_headers(
            answer.standing, anthropic=speaks_anthropic(request.scope), now=time.time()
        )
