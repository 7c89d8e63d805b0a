"""/admin/v1/tenants/{tenant}/requests: what was asked, newest first, and all that is known of one request."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal
from uuid import UUID

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from billing.calendar import format_instant
from billing.holds.records import Hold
from billing.money import format_pico
from billing.prices import PriceVersion
from billing.prices.grid import amount
from billing.reports.request_list import EventFilters, ListedEvent, find_event, list_events
from billing.usage import Status
from gateway.admin.access import partly_visible_tenant
from gateway.admin.usage import key_filter, project_filter
from gateway.dialects.cache_explanation import CacheExplanation, explanation_of
from gateway.dialects.query_parameters import Parameters
from gateway.errors import InvalidField, NotFound
from gateway.generation.request_history import request_id_of
from gateway.http.operations import describes, page, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.request_context import public_name
from gateway.services import Gateway
from tenancy.directory import Directory, project_public_id

_STATUSES: tuple[Status, ...] = ("ok", "cancelled", "failed")
_LATEST = 2**60


class RequestObject(Struct, frozen=True, kw_only=True):
    """A finished request, or an adjustment of the request that it `corrects`. `tokens` are those that are billed, by
    meter. `key` is the key's public id. `total_ms`: from admission until the end was recorded."""

    object: Literal["request"] = "request"
    id: str
    project_id: str
    project: str | None
    key: str | None
    model: str
    lane: str
    status: str
    reason: str
    admitted_at: str
    finished_at: str
    total_ms: int
    period: str
    tokens: dict[str, int]
    cost: str
    currency: str
    replica: str
    attempt: int
    corrects: str | None


class RequestList(Struct, frozen=True, kw_only=True):
    """Requests, newest first. `next` is the `after` of the next page. With filters a page may have fewer than were
    asked for, or none, though there are more: it looks at a bounded number of requests."""

    object: Literal["list"] = "list"
    data: list[RequestObject]
    has_more: bool
    next: str | None


class Charge(Struct, frozen=True, kw_only=True):
    """A meter of a request: its units, its price per 1,000,000, and what they cost. The charges are together the cost
    of the request."""

    meter: str
    units: int
    price: str
    cost: str


class HoldObject(Struct, frozen=True, kw_only=True):
    """Money reserved for a request that has no usage (yet): open, released, or expired."""

    state: str
    amount: str
    admitted_at: str
    expires_at: str


class RequestDetails(Struct, frozen=True, kw_only=True):
    """All that is known of a request. `request` is none while it runs, and if it never got to run; `engine` has what
    the engine physically did, in tokens; `cache` says why its prompt missed, as long as the history keeps that."""

    object: Literal["request.details"] = "request.details"
    id: str
    status: Literal["finished", "in_flight", "not_run"]
    request: RequestObject | None
    charges: list[Charge]
    price_version: int | None
    context_from: int | None
    model_digest: str | None
    delivery: str | None
    recorded_by: str | None
    engine: dict[str, int]
    adjustments: list[RequestObject]
    hold: HoldObject | None
    cache: CacheExplanation | None


def request_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    database, wait = gateway.services.database, gateway.management_breakers.requests.wait
    directory, prices = Directory(database), gateway.services.prices

    async def shown(tenant_id: UUID, events: Collection[ListedEvent]) -> list[RequestObject]:
        """The events with the names of their projects and keys."""
        projects, keys = {event.project_id for event in events}, {event.key_id for event in events}
        project_names = await wait(directory.project_names(tenant_id, projects)) if events else {}
        key_names = await wait(directory.key_names(tenant_id, keys)) if events else {}
        versions = {number: await wait(prices.version(number)) for number in {e.price_version for e in events}}
        return [_object(event, project_names, key_names, versions) for event in events]

    @get(
        "/admin/v1/tenants/{tenant:str}/requests",
        opt=demands("requests.read")
        | describes(
            RequestList,
            query=(
                *page(),
                query("since", str, "Only what was admitted from this instant on.", example="2026-11-01T00:00:00Z"),
                query("until", str, "Only what was admitted before it.", example="2026-12-01T00:00:00Z"),
                query("project", str, "Only of this project, by id or name.", repeated=True, example="default"),
                query("key", str, "Only of this key, by its public id.", repeated=True, example="tp_live_x"),
                query("model", str, "Only of this model.", repeated=True),
                query("lane", str, "Only of this lane.", repeated=True, example="standard"),
                query("status", Status, "Only those that ended so.", repeated=True),
            ),
        ),
    )
    async def list_requests(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """A tenant's finished requests, newest first, of the projects that you may see."""
        owner, visible = await partly_visible_tenant(gateway, request, tenant, "requests.read")
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(), parameters.text("after")
        filters = EventFilters(
            since=parameters.instant("since"),
            until=parameters.instant("until"),
            projects=await project_filter(gateway, owner.id, parameters, visible),
            keys=await key_filter(gateway, owner.id, parameters),
            models=parameters.texts("model"),
            lanes=parameters.texts("lane"),
            statuses=parameters.choices("status", _STATUSES),
        )
        parameters.reject_unknown()
        place = None if after is None else _place(after)
        found = await wait(list_events(database, owner.id, filters, limit=limit, after=place))
        return json_response(
            RequestList(
                data=await shown(owner.id, found.events),
                has_more=found.after is not None,
                next=None if found.after is None else f"{found.after[0]:x}-{found.after[1].hex}",
            )
        )

    @get(
        "/admin/v1/tenants/{tenant:str}/requests/{name:str}",
        opt=demands("requests.read") | describes(RequestDetails, path={"name": "req_019aa1f00000700080000000000000aa"}),
    )
    async def retrieve_request(
        request: Request[Any, Any, Any], tenant: FromPath[str], name: FromPath[str]
    ) -> Response[bytes]:
        """One request by its id, `req_…`, or its response's: event, charges, adjustments, hold, and why it missed."""
        owner, visible = await partly_visible_tenant(gateway, request, tenant, "requests.read")
        request_id = request_id_of(name)
        missing = NotFound(f"There is no request {name[:80]!r}.")
        if request_id is None:
            raise missing
        event, adjustments = await wait(find_event(database, owner.id, request_id))
        hold = None if event is not None else await wait(gateway.services.holds.get(request_id))
        if hold is not None and hold.tenant_id != owner.id:
            hold = None
        project_id = event.project_id if event is not None else None if hold is None else hold.project_id
        if project_id is None or (visible is not None and project_id not in visible):
            raise missing
        finding = await gateway.management_breakers.caches.wait(gateway.history.finding(owner.id, project_id, name))
        cache = None if finding is None else explanation_of(finding)
        if event is None:
            assert hold is not None, "one of both has the project"
            return json_response(_unfinished(request_id, hold, cache))
        version = await wait(prices.version(event.price_version))
        return json_response(
            RequestDetails(
                id=public_name(request_id),
                status="finished",
                request=(await shown(owner.id, [event]))[0],
                charges=_charges(event, version),
                price_version=event.price_version,
                context_from=event.context_from,
                model_digest=event.dimensions["model_digest"],
                delivery=event.dimensions["delivery"],
                recorded_by=event.dimensions["source"],
                engine=event.counts,
                adjustments=await shown(owner.id, adjustments),
                hold=None,
                cache=cache,
            )
        )

    return [list_requests, retrieve_request]


def _unfinished(request_id: UUID, hold: Hold, cache: CacheExplanation | None) -> RequestDetails:
    return RequestDetails(
        id=public_name(request_id),
        status="in_flight" if hold.state == "open" else "not_run",
        request=None,
        charges=[],
        price_version=hold.price_version,
        context_from=None,
        model_digest=None,
        delivery=None,
        recorded_by=None,
        engine={},
        adjustments=[],
        hold=HoldObject(
            state=hold.state,
            amount=format_pico(hold.amount_pico),
            admitted_at=format_instant(hold.admitted_at),
            expires_at=format_instant(hold.expires_at),
        ),
        cache=cache,
    )


def _charges(event: ListedEvent, version: PriceVersion) -> list[Charge]:
    lane, charges = event.dimensions["lane"], []
    for meter, units in event.meters.items():
        price = version.price(meter, lane, event.context_from)
        charges.append(Charge(meter=meter, units=units, price=amount(price), cost=format_pico(units * price)))
    return charges


def _object(
    event: ListedEvent, projects: Mapping[UUID, str], keys: Mapping[UUID, str], versions: Mapping[int, PriceVersion]
) -> RequestObject:
    says = event.dimensions
    return RequestObject(
        id=public_name(event.id),
        project_id=project_public_id(event.project_id),
        project=projects.get(event.project_id),
        key=keys.get(event.key_id),
        model=says["model"],
        lane=says["lane"],
        status=says["status"],
        reason=says["reason"],
        admitted_at=format_instant(event.admitted_at),
        finished_at=format_instant(event.finished_at),
        total_ms=max(0, event.finished_at - event.admitted_at) // 1000,
        period=event.period,
        tokens=event.meters,
        cost=format_pico(event.cost_pico),
        currency=versions[event.price_version].currency,
        replica=says["replica"],
        attempt=event.attempt,
        corrects=None if event.corrects is None else public_name(event.corrects),
    )


def _place(cursor: str) -> tuple[int, UUID]:
    """The cursor of a page. Raises InvalidField."""
    at, _, identity = cursor.partition("-")
    try:
        place = int(at[:16], 16), UUID(identity)
    except ValueError as error:
        raise InvalidField("after", "it is not one that was returned here") from error
    if not 0 <= place[0] < _LATEST:
        raise InvalidField("after", "it is not one that was returned here")
    return place
