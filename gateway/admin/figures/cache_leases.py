"""/admin/v1/tenants/{tenant}/cache/prefixes, …/leases and …/wasted: what is promised now, and what nobody read.

Only leases are counted, prefix by prefix. KV without a lease is not counted, since nobody notes who reads it. The tier
of a prefix is not here either, since only its replica knows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from uuid import UUID

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Meta, Struct

from billing.calendar import format_instant
from billing.money import format_pico
from billing.reports.cache_savings import LeaseWorth, lease_worth
from gateway.admin.access import partly_visible_tenant
from gateway.admin.usage import project_filter
from gateway.dialects.query_parameters import Parameters
from gateway.errors import InvalidField
from gateway.http.operations import describes, page, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from prompt_cache.promise.lease_report import LabelledLease, LeaseReport, WastedLease
from storage.database.public_ids import PREFIXES, prefixed_id, public_id
from tenancy.directory import Directory, project_public_id

_SECOND = 1_000_000
_DAY_S = 86_400


class PrefixObject(Struct, frozen=True, kw_only=True):
    """A live promise: a prefix of a project's prompts, up to a marker. `reads`: how many requests read it since it was
    first written. `saving`: an estimate of what they saved, at today's prices in the standard lane, less what the write
    of its own tokens cost more; none where there is no price."""

    object: Literal["cache.prefix"] = "cache.prefix"
    id: str
    project_id: str
    project: str | None
    model: str
    labels: list[Annotated[str, Meta(examples=["handbook"])]]
    tokens: int
    own_tokens: int
    reads: int
    ttl: str
    created_at: str
    last_read_at: str | None
    expires_at: str
    currency: str | None
    saving: str | None


class PrefixList(Struct, frozen=True, kw_only=True):
    """Live promises at `as_of`."""

    object: Literal["list"] = "list"
    as_of: str
    data: list[PrefixObject]
    has_more: bool


class WastedObject(Struct, frozen=True, kw_only=True):
    """A promise that ended and that nobody read. `premium`: an estimate of what its write cost beyond computing its own
    tokens, at today's prices in the standard lane."""

    object: Literal["cache.wasted"] = "cache.wasted"
    id: str
    project_id: str
    project: str | None
    model: str
    tokens: int
    own_tokens: int
    ttl: str
    created_at: str
    ended_at: str
    cause: Literal["expired", "purged"]
    currency: str | None
    premium: str | None


class WastedList(Struct, frozen=True, kw_only=True):
    """Promises that ended after `since` without being read, those with most tokens of their own first."""

    object: Literal["list"] = "list"
    as_of: str
    since: str
    data: list[WastedObject]
    has_more: bool


_OF = (
    query("project", str, "Only of this project, by id or name.", repeated=True, example="default"),
    query("model", str, "Only of this model.", repeated=True),
)
_WITHIN = query("within", int, "Only those that end in so many seconds, a day at most; 300 without it.", example=300)


def cache_lease_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    database = gateway.services.database
    report, shapes = LeaseReport(database), _Shapes(gateway)

    async def asked(request: Request[Any, Any, Any], tenant: str) -> tuple[UUID, dict[UUID, str], Parameters]:
        """The tenant, its projects that are asked for with their names, the parameters."""
        owner, visible = await partly_visible_tenant(gateway, request, tenant, "caches.read")
        parameters = Parameters.of(request)
        only = await project_filter(gateway, owner.id, parameters.texts("project"), visible)
        names = await Directory(database).all_project_names(owner.id)
        return owner.id, {key: name for key, name in names.items() if only is None or key in only}, parameters

    @get(
        "/admin/v1/tenants/{tenant:str}/cache/prefixes",
        opt=demands("caches.read") | describes(PrefixList, query=(*_OF, query("limit", int, "1 to 100."))),
    )
    async def list_cache_prefixes(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """The promised prefixes that most tokens were read of."""
        tenant_id, projects, parameters = await asked(request, tenant)
        limit, models = parameters.page_size(), parameters.texts("model")
        parameters.reject_unknown()
        found = await report.most_read(list(projects), models, limit + 1)
        return json_response(await shapes.page(tenant_id, projects, found, limit))

    @get(
        "/admin/v1/tenants/{tenant:str}/cache/leases",
        opt=demands("caches.read") | describes(PrefixList, query=(*page(), *_OF, _WITHIN)),
    )
    async def list_ending_leases(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """The promises that are about to end, the earliest first."""
        tenant_id, projects, parameters = await asked(request, tenant)
        limit, models, after = parameters.page_size(), parameters.texts("model"), parameters.text("after")
        within = parameters.integer("within")
        parameters.reject_unknown()
        if within is not None and within > _DAY_S:
            raise InvalidField("within", f"it must be at most {_DAY_S}")
        before = None if after is None else prefixed_id(after, PREFIXES["cache"])
        if after is not None and before is None:
            raise InvalidField("after", "there is no such promise")
        until = await database.now() + (300 if within is None else within) * _SECOND
        found = await report.ending(list(projects), models, until=until, limit=limit + 1, after=before)
        return json_response(await shapes.page(tenant_id, projects, found, limit))

    @get(
        "/admin/v1/tenants/{tenant:str}/cache/wasted",
        opt=demands("caches.read") | describes(WastedList, query=(*_OF, query("limit", int, "1 to 100."))),
    )
    async def list_wasted_writes(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """What was promised, and ended within the last day without being read."""
        tenant_id, projects, parameters = await asked(request, tenant)
        limit, models = parameters.page_size(), parameters.texts("model")
        parameters.reject_unknown()
        now = await database.now()
        since = now - _DAY_S * _SECOND
        found = await report.wasted(list(projects), models, since=since, limit=limit + 1)
        data = [await shapes.wasted(tenant_id, projects, one) for one in found[:limit]]
        as_of, more = format_instant(now), len(found) > limit
        return json_response(WastedList(as_of=as_of, since=format_instant(since), data=data, has_more=more))

    return [list_cache_prefixes, list_ending_leases, list_wasted_writes]


class _Shapes:
    """Leases as answers have them."""

    def __init__(self, gateway: Gateway) -> None:
        self._database, self._prices = gateway.services.database, gateway.services.prices

    async def page(
        self, tenant_id: UUID, projects: Mapping[UUID, str], found: list[LabelledLease], limit: int
    ) -> PrefixList:
        now = await self._database.now()
        data = [await self._prefix(tenant_id, projects, one) for one in found[:limit]]
        return PrefixList(as_of=format_instant(now), data=data, has_more=len(found) > limit)

    async def _prefix(self, tenant_id: UUID, projects: Mapping[UUID, str], found: LabelledLease) -> PrefixObject:
        one = found.lease
        worth = await self._worth(tenant_id, one.model, one.lease_class, one.tokens)
        saving = None
        if worth is not None:
            saving = format_pico(one.reads * one.tokens * worth.saved_pico - one.new_tokens * worth.premium_pico)
        return PrefixObject(
            id=public_id("cache", one.id),
            project_id=project_public_id(one.project_id),
            project=projects.get(one.project_id),
            model=one.model,
            labels=found.labels,
            tokens=one.tokens,
            own_tokens=one.new_tokens,
            reads=one.reads,
            ttl=one.lease_class,
            created_at=format_instant(one.created_at),
            last_read_at=None if one.read_at is None else format_instant(one.read_at),
            expires_at=format_instant(one.expires_at),
            currency=None if worth is None else worth.currency,
            saving=saving,
        )

    async def wasted(self, tenant_id: UUID, projects: Mapping[UUID, str], one: WastedLease) -> WastedObject:
        worth = await self._worth(tenant_id, one.model, one.lease_class, one.tokens)
        return WastedObject(
            id=public_id("cache", one.id),
            project_id=project_public_id(one.project_id),
            project=projects.get(one.project_id),
            model=one.model,
            tokens=one.tokens,
            own_tokens=one.new_tokens,
            ttl=one.lease_class,
            created_at=format_instant(one.created_at),
            ended_at=format_instant(one.ended_at),
            cause=one.cause,
            currency=None if worth is None else worth.currency,
            premium=None if worth is None else format_pico(one.new_tokens * worth.premium_pico),
        )

    async def _worth(self, tenant_id: UUID, model: str, lease_class: str, tokens: int) -> LeaseWorth | None:
        return await lease_worth(self._prices, model, lease_class, tokens, tenant_id=tenant_id)
