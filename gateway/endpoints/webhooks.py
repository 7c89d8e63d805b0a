"""Webhooks, below /v1 and /admin/v1: a tenant manages the endpoints that get its messages, and sees the deliveries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.endpoints.tenant_scope import OwnTenant, TenantScope
from gateway.errors import InvalidField, NotFound
from gateway.http.operations import describes, page, query
from gateway.http.responses import json_response
from gateway.http.shapes import Page
from gateway.services import Gateway
from webhooks.dispatch import event_name
from webhooks.endpoints import (
    OVERLAP_S,
    DeliveryAttempt,
    InvalidWebhook,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookNotFound,
)

_LONGEST_OVERLAP_S = 30 * 86_400


class NewEndpoint(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a new endpoint."""

    url: str
    topics: tuple[str, ...] = ("*",)
    description: str = ""


class Rotation(Struct, frozen=True, forbid_unknown_fields=True):
    """`overlap_s`: for how many seconds the old secret also signs."""

    overlap_s: int = OVERLAP_S


class EndpointObject(Struct, frozen=True, kw_only=True):
    """An endpoint; with its `secret` only when that is new. Instants are in seconds since the Unix epoch."""

    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    url: str
    topics: list[str]
    description: str
    status: str
    reason: str
    created_at: int
    previous_secret_until: int | None
    secret: str | UnsetType = UNSET


class AttemptObject(Struct, frozen=True, kw_only=True):
    number: int
    at: int
    status_code: int | None
    error: str
    milliseconds: int


class DeliveryObject(Struct, frozen=True, kw_only=True):
    """A delivery; with its `attempts` only when it is retrieved alone. Instants are in seconds since the Unix epoch."""

    id: str
    object: Literal["webhook_delivery"] = "webhook_delivery"
    endpoint_id: str
    event_id: str
    topic: str
    status: str
    attempt_count: int
    created_at: int
    next_attempt_at: int | None
    finished_at: int | None
    last_status_code: int | None
    last_error: str
    body: Annotated[
        msgspec.Raw,
        Meta(
            description="The message as it is sent.",
            extra_json_schema={"type": "object", "additionalProperties": True},
            examples=[{"type": "webhook.test", "timestamp": "2026-11-22T09:30:00Z", "data": {}}],
        ),
    ]
    attempts: list[AttemptObject] | UnsetType = UNSET


Listed = TypeVar("Listed", EndpointObject, DeliveryObject)


class ObjectList(Page[Listed], frozen=True, kw_only=True):
    """A page of endpoints or deliveries."""

    has_more: bool = False


class RemovedEndpoint(Struct, frozen=True, kw_only=True):
    """An endpoint that was removed."""

    id: str
    object: Literal["webhook_endpoint.deleted"] = "webhook_endpoint.deleted"
    deleted: bool = True


_PATH = {"name": "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"}
_NEW, _ROTATION = msgspec.json.Decoder(NewEndpoint), msgspec.json.Decoder(Rotation)


def webhook_routes(gateway: Gateway, at: TenantScope | None = None) -> list[HTTPRouteHandler]:  # noqa: PLR0915  # ten routes
    """The routes, for one worker; `at`: where, below /v1 without it."""
    at = at or OwnTenant()
    endpoints, client_timeout = gateway.services.webhooks, gateway.services.options.client_timeout

    @post(
        f"{at.base}/webhooks",
        status_code=201,
        opt=at.demands("webhooks.write")
        | describes(
            EndpointObject, status=201, body=NewEndpoint("https://example.com/turnpike", ("invoice.finalized",))
        ),
    )
    async def create_webhook_endpoint(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Add an endpoint. Only this response has its secret."""
        tenant = await at.tenant(request, "webhooks.write")
        body = await read_management_body(request, client_timeout, _NEW)
        with _webhook_errors():
            endpoint, secret = await endpoints.add(tenant, body.url, list(body.topics), body.description)
        return json_response(_endpoint(endpoint, secret), 201)

    @get(f"{at.base}/webhooks", opt=at.demands("webhooks.read") | describes(ObjectList[EndpointObject]))
    async def list_webhook_endpoints(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The tenant's endpoints."""
        return json_response(
            ObjectList[EndpointObject](
                data=[
                    _endpoint(endpoint)
                    for endpoint in await endpoints.list_all(await at.tenant(request, "webhooks.read"))
                ]
            )
        )

    @get(f"{at.base}/webhooks/{{name:str}}", opt=at.demands("webhooks.read") | describes(EndpointObject, path=_PATH))
    async def retrieve_webhook_endpoint(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """One endpoint."""
        tenant = await at.tenant(request, "webhooks.read")
        with _webhook_errors():
            return json_response(_endpoint(await endpoints.get(tenant, _id(name))))

    @delete(
        f"{at.base}/webhooks/{{name:str}}",
        status_code=200,
        opt=at.demands("webhooks.write") | describes(RemovedEndpoint, path=_PATH),
    )
    async def remove_webhook_endpoint(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """Remove an endpoint."""
        tenant = await at.tenant(request, "webhooks.write")
        with _webhook_errors():
            await endpoints.remove(tenant, _id(name))
        return json_response(RemovedEndpoint(id=str(_id(name))))

    @post(
        f"{at.base}/webhooks/{{name:str}}/rotate",
        status_code=200,
        opt=at.demands("webhooks.write")
        | describes(EndpointObject, body=Rotation(3600), body_required=False, path=_PATH),
    )
    async def rotate_webhook_secret(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """Replace the secret. Only this response has the new one."""
        tenant = await at.tenant(request, "webhooks.write")
        rotation = await read_management_body(request, client_timeout, _ROTATION, default=b"{}")
        if not 0 <= rotation.overlap_s <= _LONGEST_OVERLAP_S:
            raise InvalidField("$.overlap_s", f"it must be from 0 to {_LONGEST_OVERLAP_S}")
        with _webhook_errors():
            secret = await endpoints.rotate(tenant, _id(name), rotation.overlap_s)
            return json_response(_endpoint(await endpoints.get(tenant, _id(name)), secret))

    @post(
        f"{at.base}/webhooks/{{name:str}}/enable",
        status_code=200,
        opt=at.demands("webhooks.write") | describes(EndpointObject, path=_PATH),
    )
    async def enable_webhook_endpoint(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """Enable a disabled endpoint."""
        tenant = await at.tenant(request, "webhooks.write")
        with _webhook_errors():
            return json_response(_endpoint(await endpoints.enable(tenant, _id(name))))

    @post(
        f"{at.base}/webhooks/{{name:str}}/test",
        status_code=202,
        opt=at.demands("webhooks.write") | describes(DeliveryObject, status=202, path=_PATH),
    )
    async def test_webhook_endpoint(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """Queue a test message."""
        tenant = await at.tenant(request, "webhooks.write")
        with _webhook_errors():
            delivery_id = await endpoints.send_test(tenant, _id(name))
            delivery, attempts = await endpoints.delivery(tenant, delivery_id)
        return json_response(_delivery(delivery, attempts), 202)

    @get(
        f"{at.base}/webhook_deliveries",
        opt=at.demands("webhooks.read")
        | describes(
            ObjectList[DeliveryObject],
            query=(*page(least=0), query("endpoint_id", str, "Only those to this endpoint.")),
            errors={"not_found": 404},
        ),
    )
    async def list_webhook_deliveries(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The tenant's deliveries, newest first."""
        tenant = await at.tenant(request, "webhooks.read")
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(least=0), parameters.text("after")
        endpoint = parameters.text("endpoint_id")
        parameters.reject_unknown()
        found = await endpoints.deliveries(
            tenant,
            (endpoint and _id(endpoint)) or None,
            limit=limit + 1,
            after=None if after is None else _id(after),
        )
        return json_response(
            ObjectList[DeliveryObject](
                data=[_delivery(delivery) for delivery in found[:limit]], has_more=len(found) > limit
            )
        )

    @get(
        f"{at.base}/webhook_deliveries/{{name:str}}",
        opt=at.demands("webhooks.read") | describes(DeliveryObject, path=_PATH),
    )
    async def retrieve_webhook_delivery(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """One delivery and its attempts."""
        tenant = await at.tenant(request, "webhooks.read")
        with _webhook_errors():
            return json_response(_delivery(*await endpoints.delivery(tenant, _id(name))))

    @post(
        f"{at.base}/webhook_deliveries/{{name:str}}/resend",
        status_code=202,
        opt=at.demands("webhooks.write") | describes(DeliveryObject, status=202, path=_PATH),
    )
    async def resend_webhook_delivery(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """Send the same message again."""
        tenant = await at.tenant(request, "webhooks.write")
        with _webhook_errors():
            return json_response(_delivery(await endpoints.resend(tenant, _id(name))), 202)

    return [
        create_webhook_endpoint,
        list_webhook_endpoints,
        retrieve_webhook_endpoint,
        remove_webhook_endpoint,
        rotate_webhook_secret,
        enable_webhook_endpoint,
        test_webhook_endpoint,
        list_webhook_deliveries,
        retrieve_webhook_delivery,
        resend_webhook_delivery,
    ]


@contextmanager
def _webhook_errors() -> Iterator[None]:
    """Turn the errors of `webhooks.endpoints` into errors of the request."""
    try:
        yield
    except InvalidWebhook as error:
        raise InvalidField(f"$.{error.field}", error.problem) from error
    except WebhookNotFound as error:
        raise NotFound(f"{str(error).capitalize()}.") from error


def _id(name: str) -> UUID:
    try:
        return UUID(name)
    except ValueError as error:
        raise NotFound(f"{name[:80]!r} is not the id of a webhook endpoint or delivery.") from error


def _endpoint(endpoint: WebhookEndpoint, secret: str | UnsetType = UNSET) -> EndpointObject:
    return EndpointObject(
        id=str(endpoint.id),
        url=endpoint.url,
        topics=endpoint.topics,
        description=endpoint.description,
        status=endpoint.state,
        reason=endpoint.reason,
        created_at=_unix_seconds(endpoint.created_at),
        previous_secret_until=None if endpoint.previous_until is None else _unix_seconds(endpoint.previous_until),
        secret=secret,
    )


def _delivery(delivery: WebhookDelivery, attempts: list[DeliveryAttempt] | None = None) -> DeliveryObject:
    return DeliveryObject(
        id=str(delivery.id),
        endpoint_id=str(delivery.endpoint_id),
        event_id=event_name(delivery.event_id),
        topic=delivery.topic,
        status=delivery.state,
        attempt_count=delivery.attempts,
        created_at=_unix_seconds(delivery.created_at),
        next_attempt_at=_unix_seconds(delivery.next_at) if delivery.state == "pending" else None,
        finished_at=None if delivery.finished_at is None else _unix_seconds(delivery.finished_at),
        last_status_code=delivery.status,
        last_error=delivery.error,
        body=msgspec.Raw(delivery.body.encode()),
        attempts=UNSET if attempts is None else [_attempt(attempt) for attempt in attempts],
    )


def _attempt(attempt: DeliveryAttempt) -> AttemptObject:
    return AttemptObject(
        number=attempt.number,
        at=_unix_seconds(attempt.at),
        status_code=attempt.status,
        error=attempt.error,
        milliseconds=attempt.milliseconds,
    )


def _unix_seconds(instant: int) -> int:
    return instant // 1_000_000
