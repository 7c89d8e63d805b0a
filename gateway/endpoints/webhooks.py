"""/v1/webhooks: a tenant's administrator says who is told of budgets, balances and invoices, and sees what was told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal
from uuid import UUID

import msgspec
from litestar import MediaType, Request, Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import UNSET, Struct, UnsetType

from gateway.dialects.json_paths import decode
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.errors import InvalidRequest, NotFound
from gateway.http.authentication import admin_principal
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

_MOST = 100
_LONGEST_OVERLAP_S = 30 * 86_400


class NewEndpoint(Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked for."""

    url: str
    topics: tuple[str, ...] = ("*",)
    description: str = ""


class Rotation(Struct, frozen=True, forbid_unknown_fields=True):
    """How long the old secret signs too, in seconds."""

    overlap_s: int = OVERLAP_S


class EndpointObject(Struct, frozen=True, kw_only=True):
    """An endpoint; `secret` is there only when it is new. Instants in seconds since the Unix epoch."""

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
    """A delivery; `attempts` are listed where one is asked for. Instants in seconds since the Unix epoch."""

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
    body: msgspec.Raw
    attempts: list[AttemptObject] | UnsetType = UNSET


class Listing(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[EndpointObject] | list[DeliveryObject]
    has_more: bool = False


class Removed(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["webhook_endpoint.deleted"] = "webhook_endpoint.deleted"
    deleted: bool = True


_NEW, _ROTATION = msgspec.json.Decoder(NewEndpoint), msgspec.json.Decoder(Rotation)


def webhook_routes(gateway: Gateway) -> list[HTTPRouteHandler]:  # noqa: PLR0915  # ten routes
    """The routes, for one worker."""
    endpoints, patience = gateway.services.webhooks, gateway.services.options.patience
    wait = gateway.patience.webhooks.wait

    def tenant(request: Request[Any, Any, Any]) -> UUID:
        return admin_principal(request.scope).tenant_id

    @post("/v1/webhooks", status_code=201)
    async def create_endpoint(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Add an endpoint. Its secret is in this answer, and never again."""
        mine = tenant(request)
        asked = decode(_NEW, await read_management_body(request, patience))
        with _refusing():
            endpoint, secret = await wait(endpoints.add(mine, asked.url, list(asked.topics), asked.description))
        return _answer(_endpoint(endpoint, secret), 201)

    @get("/v1/webhooks")
    async def list_endpoints(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The tenant's endpoints."""
        return _answer(Listing(data=[_endpoint(each) for each in await wait(endpoints.known(tenant(request)))]))

    @get("/v1/webhooks/{name:str}")
    async def retrieve_endpoint(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """One endpoint."""
        mine = tenant(request)
        with _refusing():
            return _answer(_endpoint(await wait(endpoints.get(mine, _id(name)))))

    @delete("/v1/webhooks/{name:str}", status_code=200)
    async def remove_endpoint(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """Remove an endpoint."""
        mine = tenant(request)
        with _refusing():
            await wait(endpoints.remove(mine, _id(name)))
        return _answer(Removed(id=str(_id(name))))

    @post("/v1/webhooks/{name:str}/rotate", status_code=200)
    async def rotate_secret(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """A new secret, in this answer and never again."""
        mine = tenant(request)
        asked = decode(_ROTATION, await read_management_body(request, patience) or b"{}")
        if not 0 <= asked.overlap_s <= _LONGEST_OVERLAP_S:
            problem = f"$.overlap_s: it is not between 0 and {_LONGEST_OVERLAP_S}."
            raise InvalidRequest(problem, path="$.overlap_s", code="invalid_value")
        with _refusing():
            secret = await wait(endpoints.rotate(mine, _id(name), asked.overlap_s))
            return _answer(_endpoint(await wait(endpoints.get(mine, _id(name))), secret))

    @post("/v1/webhooks/{name:str}/enable", status_code=200)
    async def enable_endpoint(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """Tell a disabled endpoint again."""
        mine = tenant(request)
        with _refusing():
            return _answer(_endpoint(await wait(endpoints.enable(mine, _id(name)))))

    @post("/v1/webhooks/{name:str}/test", status_code=202)
    async def test_endpoint(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """Queue a test message."""
        mine = tenant(request)
        with _refusing():
            queued = await wait(endpoints.test(mine, _id(name)))
            delivery, attempts = await wait(endpoints.delivery(mine, queued))
        return _answer(_delivery(delivery, attempts), 202)

    @get("/v1/webhook_deliveries")
    async def list_deliveries(request: Request[Any, Any, Any]) -> Response[bytes]:
        """What was, or is to be, delivered: the newest first."""
        mine = tenant(request)
        given = Parameters(request.query_params.dict())
        limit, after, endpoint = given.whole("limit") or 20, given.one("after"), given.one("endpoint_id")
        given.nothing_else()
        if limit > _MOST:
            raise InvalidRequest(f"limit: it is more than {_MOST}.", path="limit", code="invalid_value")
        found = await wait(
            endpoints.deliveries(
                mine, (endpoint and _id(endpoint)) or None, limit=limit + 1, after=None if after is None else _id(after)
            )
        )
        return _answer(Listing(data=[_delivery(each) for each in found[:limit]], has_more=len(found) > limit))

    @get("/v1/webhook_deliveries/{name:str}")
    async def retrieve_delivery(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """One delivery, and each attempt at it."""
        mine = tenant(request)
        with _refusing():
            return _answer(_delivery(*await wait(endpoints.delivery(mine, _id(name)))))

    @post("/v1/webhook_deliveries/{name:str}/resend", status_code=202)
    async def resend_delivery(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """Send the same message again."""
        mine = tenant(request)
        with _refusing():
            return _answer(_delivery(await wait(endpoints.resend(mine, _id(name)))), 202)

    return [
        create_endpoint,
        list_endpoints,
        retrieve_endpoint,
        remove_endpoint,
        rotate_secret,
        enable_endpoint,
        test_endpoint,
        list_deliveries,
        retrieve_delivery,
        resend_delivery,
    ]


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except InvalidWebhook as error:
        path = f"$.{error.field}"
        raise InvalidRequest(f"{path}: {error.problem}.", path=path, code="invalid_value") from error
    except WebhookNotFound as error:
        raise NotFound(f"{str(error).capitalize()}.") from error


def _id(name: str) -> UUID:
    try:
        return UUID(name)
    except ValueError as error:
        raise NotFound(f"There is no {name[:80]!r}.") from error


def _endpoint(endpoint: WebhookEndpoint, secret: str | UnsetType = UNSET) -> EndpointObject:
    return EndpointObject(
        id=str(endpoint.id),
        url=endpoint.url,
        topics=endpoint.topics,
        description=endpoint.description,
        status=endpoint.state,
        reason=endpoint.reason,
        created_at=_seconds(endpoint.created_at),
        previous_secret_until=None if endpoint.previous_until is None else _seconds(endpoint.previous_until),
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
        created_at=_seconds(delivery.created_at),
        next_attempt_at=_seconds(delivery.next_at) if delivery.state == "pending" else None,
        finished_at=None if delivery.finished_at is None else _seconds(delivery.finished_at),
        last_status_code=delivery.status,
        last_error=delivery.error,
        body=msgspec.Raw(delivery.body.encode()),
        attempts=UNSET if attempts is None else [_attempt(each) for each in attempts],
    )


def _attempt(attempt: DeliveryAttempt) -> AttemptObject:
    return AttemptObject(
        number=attempt.number,
        at=_seconds(attempt.at),
        status_code=attempt.status,
        error=attempt.error,
        milliseconds=attempt.milliseconds,
    )


def _seconds(instant: int) -> int:
    return instant // 1_000_000


def _answer(body: Struct, status: int = 200) -> Response[bytes]:
    return Response(msgspec.json.encode(body), status_code=status, media_type=MediaType.JSON)
