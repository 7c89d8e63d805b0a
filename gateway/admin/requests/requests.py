"""/admin/v1/tenants/{tenant}/requests: what was asked, newest first, and all that is known of one request."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Struct

from billing.calendar import format_instant
from billing.money import format_pico
from billing.prices import PriceVersion
from billing.prices.grid import amount
from billing.reports.request_list import EventFilters, ListedEvent, list_events
from billing.usage import Status
from gateway.admin.access import PartOfTenant
from gateway.admin.operation import Query, operation
from gateway.admin.requests.lookup import KnownRequest, find_request
from gateway.admin.usage import key_filter, project_filter
from gateway.dialects.cache_explanation import CacheExplanation, explanation_of
from gateway.errors import InvalidField
from gateway.http.policies import demands
from gateway.http.shapes import Instant, PageQuery
from gateway.request_context import public_name
from gateway.services import Gateway
from tenancy.directory import Directory, NamedKey, project_public_id
from waterfall.bars import waterfall

_LATEST = 2**60


class RequestObject(Struct, frozen=True, kw_only=True):
    """A finished request, or an adjustment of the request that it `corrects`. `tokens` are those that are billed, by
    meter. `key` is the key's public id, `key_name` what people call it. `total_ms`: from admission until the end was
    recorded; `first_token_us`: until the gateway had the first token, where its times are kept. `cache`: whether
    something was read, or only written. `cursor`: its place in the list, for `after` and `before`."""

    object: Literal["request"] = "request"
    id: str
    project_id: str
    project: str | None
    key: str | None
    key_name: str | None
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
    first_token_us: int | None
    cache: Literal["read", "written", "none"]
    cursor: str


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
    """All that is known of a request. `request` is none while it runs, and if it never got to run; of one that was
    refused, `code` is the error's. `engine` has what the engine physically did, in tokens; `cache` says why its prompt
    missed, as long as the history keeps that."""

    object: Literal["request.details"] = "request.details"
    id: str
    status: Literal["finished", "in_flight", "not_run", "refused"]
    code: str | None
    project_id: str
    project: str | None
    key: str | None
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


_PATH = "/admin/v1/tenants/{tenant:str}/requests"


class RequestOperations:
    """Lists requests, and tells all that is known of one."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._database = gateway, gateway.services.database
        self._directory, self._prices = Directory(self._database), gateway.services.prices

    @operation("GET", _PATH, demands("requests.read"))
    async def list_requests(  # noqa: PLR0917  # all by name
        self,
        tenant: PartOfTenant,
        page: PageQuery,
        since: Annotated[
            Instant | None,
            Query("Only what was admitted from this instant on.", example="2026-11-01T00:00:00Z"),
        ] = None,
        until: Annotated[
            Instant | None, Query("Only what was admitted before it.", example="2026-12-01T00:00:00Z")
        ] = None,
        project: Annotated[list[str] | None, Query("Only of this project, by id or name.", example="default")] = None,
        key: Annotated[list[str] | None, Query("Only of this key, by its public id.", example="tp_live_x")] = None,
        model: Annotated[list[str] | None, Query("Only of this model.")] = None,
        lane: Annotated[list[str] | None, Query("Only of this lane.", example="standard")] = None,
        status: Annotated[list[Status] | None, Query("Only those that ended so.")] = None,
        min_total_ms: Annotated[
            int | None, Query("Only what took so many milliseconds or more, until its end was recorded.")
        ] = None,
        before: Annotated[
            str | None, Query("The cursor of a request: those directly before it in the list, which are newer.")
        ] = None,
    ) -> RequestList:
        """A tenant's finished requests, newest first, of the projects that you may see."""
        if page.after is not None and before is not None:
            raise InvalidField("before", "it cannot be combined with after")
        owner, visible = tenant
        filters = EventFilters(
            since=since,
            until=until,
            projects=await project_filter(self._gateway, owner.id, project, visible),
            keys=await key_filter(self._gateway, owner.id, key),
            models=model,
            lanes=lane,
            statuses=status,
            least_ms=min_total_ms,
        )
        newest = None if page.after is None else _place("after", page.after)
        oldest = None if before is None else _place("before", before)
        listed = await list_events(self._database, owner.id, filters, limit=page.limit, after=newest, before=oldest)
        return RequestList(
            data=await self._shown(owner.id, listed.events),
            has_more=listed.after is not None,
            next=None if listed.after is None else _cursor(*listed.after),
        )

    @operation(
        "GET", f"{_PATH}/{{name:str}}", demands("requests.read"), path={"name": "req_019aa1f00000700080000000000000aa"}
    )
    async def retrieve_request(self, tenant: PartOfTenant, name: str) -> RequestDetails:
        """One request by its id, `req_…`, or its response's: event, charges, adjustments, hold, and why it missed."""
        owner, visible = tenant
        known = await find_request(self._gateway, owner.id, name, visible)
        event, project_id = known.event, known.project_id
        finding = await self._gateway.history.finding(owner.id, project_id, name)
        cache = None if finding is None else explanation_of(finding)
        projects = await self._directory.project_names(owner.id, {project_id})
        if event is None:
            return _unfinished(known, projects.get(project_id), cache)
        version = await self._prices.version(event.price_version)
        own = (await self._shown(owner.id, [event]))[0]
        return RequestDetails(
            id=own.id,
            status="finished",
            code=None if known.record is None else known.record.code or None,
            project_id=own.project_id,
            project=own.project,
            key=own.key,
            request=own,
            charges=_charges(event, version),
            price_version=event.price_version,
            context_from=event.context_from,
            model_digest=event.dimensions["model_digest"],
            delivery=event.dimensions["delivery"],
            recorded_by=event.dimensions["source"],
            engine=event.counts,
            adjustments=await self._shown(owner.id, known.adjustments),
            hold=None,
            cache=cache,
        )

    async def _shown(self, tenant_id: UUID, events: Collection[ListedEvent]) -> list[RequestObject]:
        """The events with the names of their projects and keys."""
        projects, keys = {event.project_id for event in events}, {event.key_id for event in events}
        project_names = await self._directory.project_names(tenant_id, projects) if events else {}
        key_names = await self._directory.named_keys(tenant_id, keys) if events else {}
        versions = {number: await self._prices.version(number) for number in {e.price_version for e in events}}
        ids = [event.id for event in events if event.corrects is None]
        times = await self._gateway.waterfalls.store.find_many(tenant_id, ids)
        first = {request_id: waterfall(record).first_token for request_id, record in times.items()}
        return [_object(event, project_names, key_names, versions, first.get(event.id)) for event in events]


def _unfinished(known: KnownRequest, project: str | None, cache: CacheExplanation | None) -> RequestDetails:
    hold, record = known.hold, known.record
    runs = known.task is not None or (hold is not None and hold.state == "open")
    refused = record is not None and record.status == "refused"
    return RequestDetails(
        id=public_name(known.id),
        status="refused" if refused else "in_flight" if runs else "not_run",
        code=None if record is None else record.code or None,
        project_id=project_public_id(known.project_id),
        project=project,
        key=_key_of(known),
        request=None,
        charges=[],
        price_version=None if hold is None else hold.price_version,
        context_from=None,
        model_digest=None,
        delivery=None,
        recorded_by=None,
        engine={},
        adjustments=[],
        hold=None
        if hold is None
        else HoldObject(
            state=hold.state,
            amount=format_pico(hold.amount_pico),
            admitted_at=format_instant(hold.admitted_at),
            expires_at=format_instant(hold.expires_at),
        ),
        cache=cache,
    )


def _key_of(known: KnownRequest) -> str | None:
    if known.task is not None:
        return known.task.prepared.payer.key
    return None if known.record is None else known.record.key or None


def _charges(event: ListedEvent, version: PriceVersion) -> list[Charge]:
    lane, charges = event.dimensions["lane"], []
    for meter, units in event.meters.items():
        price = version.price(meter, lane, event.context_from)
        charges.append(Charge(meter=meter, units=units, price=amount(price), cost=format_pico(units * price)))
    return charges


def _object(
    event: ListedEvent,
    projects: Mapping[UUID, str],
    keys: Mapping[UUID, NamedKey],
    versions: Mapping[int, PriceVersion],
    first_token_us: int | None,
) -> RequestObject:
    says, key = event.dimensions, keys.get(event.key_id)
    return RequestObject(
        id=public_name(event.id),
        project_id=project_public_id(event.project_id),
        project=projects.get(event.project_id),
        key=None if key is None else key.public_id,
        key_name=None if key is None else key.name,
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
        first_token_us=first_token_us,
        cache=_cache(event),
        cursor=_cursor(event.admitted_at, event.id),
    )


def _cache(event: ListedEvent) -> Literal["read", "written", "none"]:
    meters = event.meters
    if any(meter.startswith("read_") for meter in meters):
        return "read"
    return "written" if any(meter.startswith("write_") for meter in meters) else "none"


def _cursor(admitted_at: int, identity: UUID) -> str:
    return f"{admitted_at:x}-{identity.hex}"


def _place(parameter: str, cursor: str) -> tuple[int, UUID]:
    """The place of a cursor. Raises InvalidField."""
    at, _, identity = cursor.partition("-")
    try:
        place = int(at[:16], 16), UUID(identity)
    except ValueError as error:
        raise InvalidField(parameter, "it is not one that was returned here") from error
    if not 0 <= place[0] < _LATEST:
        raise InvalidField(parameter, "it is not one that was returned here")
    return place
