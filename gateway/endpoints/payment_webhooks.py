"""POST /webhooks/stripe: what the payment provider tells us. Its signature says who asks; nobody has a key here.

It lies outside /admin/v1, whose guard against other sites stops what has no cookie of ours to abuse. A body is bounded
before its signature is checked, and the event is only noted: the worker asks the provider for what it is about.
"""

from __future__ import annotations

from typing import Any, Literal

import structlog
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from billing.payments.inbox import PaymentInbox
from billing.payments.provider import EventRefused
from gateway.endpoints.request_body import read_signed_body
from gateway.errors import InvalidRequest, NotFound
from gateway.http.operations import describes
from gateway.http.policies import public
from gateway.http.responses import json_response
from gateway.services import Gateway

log = structlog.get_logger(__name__)


class EventTaken(Struct, frozen=True):
    """The event was noted, or had been before."""

    object: Literal["payment_event"] = "payment_event"
    received: Literal[True] = True


def payment_webhook_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The route, for one worker."""
    provider, inbox = gateway.services.payments, PaymentInbox(gateway.services.database)

    @post(
        "/webhooks/stripe",
        status_code=200,
        opt=public()
        | describes(
            EventTaken(),
            errors={"event_refused": 400, "not_found": 404},
            tags=("payments",),
            operation_id="receive_payment_event",
        ),
    )
    async def receive_payment_event(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Take an event of the payment provider, which it has signed."""
        if provider is None:
            raise NotFound("No payment provider is set up here.")
        body = await read_signed_body(request, gateway.services.options.client_timeout)
        try:
            event = provider.read_event(body, request.headers)
        except EventRefused as error:
            log.warning("a payment webhook is refused", cause=str(error))
            raise InvalidRequest(f"{error}.", code="event_refused") from error
        await inbox.take(provider.name, event)
        return json_response(EventTaken())

    return [receive_payment_event]
