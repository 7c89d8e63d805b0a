"""/admin/v1/usage over tenants and /admin/v1/tenants/{tenant}/usage in buckets of time: sums of the hourly roll-ups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias
from uuid import UUID

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import UNSET, Struct, UnsetType

from billing.calendar import InvalidPeriod, check_period, format_instant, period_bounds, period_of
from billing.events.rollups import HOUR
from billing.money import format_pico
from billing.reports.tenant_usage import TenantGroup, TenantUsage, usage_of_tenants
from billing.reports.usage_report import Group, InvalidReport, UsageBucket, Width, usage_buckets
from gateway.admin.access import list_visible_tenants, partly_visible_tenant, principal_of, seen_tenant
from gateway.dialects.query_parameters import Parameters
from gateway.errors import InvalidField, NotFound
from gateway.http.operations import describes, page, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from tenancy.directory import Directory, NamedKey, project_public_id, tenant_public_id

Names: TypeAlias = Mapping[UUID, str]
_GROUPS: dict[str, Group] = {"project": "project_id", "key": "api_key_id", "model": "model", "lane": "lane"}
_TENANT_GROUPS: dict[str, TenantGroup] = {"project": "project_id", "model": "model", "lane": "lane"}
_DAYS_US = 7 * 24 * HOUR


class UsageResult(Struct, frozen=True, kw_only=True):
    """What one group used: requests, tokens by meter (those that are not 0), and the exact cost by currency. It has the
    fields that the report is grouped by; `project` and `key_name` are names, `key` is the public id."""

    project_id: str | UnsetType | None = UNSET
    project: str | UnsetType | None = UNSET
    key: str | UnsetType | None = UNSET
    key_name: str | UnsetType | None = UNSET
    model: str | UnsetType = UNSET
    lane: str | UnsetType = UNSET
    requests: int
    tokens: dict[str, int]
    cost: dict[str, str]


class UsageBucketObject(Struct, frozen=True, kw_only=True):
    """Usage of requests admitted from `start` (included) to `end` (excluded)."""

    object: Literal["usage.bucket"] = "usage.bucket"
    start: str
    end: str
    results: list[UsageResult]


class UsageReport(Struct, frozen=True, kw_only=True):
    """Consecutive buckets, empty ones included; `next` is the `after` of the next page."""

    object: Literal["list"] = "list"
    bucket: Width
    data: list[UsageBucketObject]
    has_more: bool
    next: str | None


class TenantUsageObject(Struct, frozen=True, kw_only=True):
    """What a tenant used in the span."""

    object: Literal["usage.tenant"] = "usage.tenant"
    tenant_id: str
    tenant: str
    results: list[UsageResult]


class TenantUsageReport(Struct, frozen=True, kw_only=True):
    """Tenants by name, those without usage too."""

    object: Literal["list"] = "list"
    start: str
    end: str
    data: list[TenantUsageObject]
    has_more: bool


_SPAN = (
    query("since", str, "The first instant, rounded down to its hour.", example="2026-11-01T00:00:00Z"),
    query("until", str, "The end, rounded up to its hour; now without it.", example="2026-12-01T00:00:00Z"),
)


def usage_routes(gateway: Gateway) -> list[HTTPRouteHandler]:  # noqa: PLR0915  # two reports
    """The routes, for one worker."""
    database = gateway.services.database
    directory = Directory(database)

    @get(
        "/admin/v1/tenants/{tenant:str}/usage",
        opt=demands("usage.read")
        | describes(
            UsageReport,
            query=(
                *page(168, 31),
                *_SPAN,
                query("bucket", Literal["1h", "1d"], "The width of a bucket; a day without it."),
                query("group_by", Literal["project", "key", "model", "lane"], "What is summed apart.", repeated=True),
                query("project", str, "Only of this project, by id or name.", repeated=True, example="default"),
                query("key", str, "Only of this key, by its public id.", repeated=True, example="tp_live_x"),
                query("model", str, "Only of this model.", repeated=True),
                query("lane", str, "Only of this lane.", repeated=True, example="standard"),
            ),
        ),
    )
    async def tenant_usage(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """A tenant's usage in buckets of time, of the projects that you may see."""
        owner, visible = await partly_visible_tenant(gateway, request, tenant, "usage.read")
        parameters = Parameters.of(request)
        width: Width = parameters.choice("bucket", ("1h", "1d")) or "1d"
        group_by = parameters.choices("group_by", list(_GROUPS)) or []
        start_at, end_at = await span(parameters)
        models, lanes = parameters.texts("model"), parameters.texts("lane")
        limit, after = parameters.integer("limit"), parameters.text("after")
        projects = await project_filter(gateway, owner.id, parameters, visible)
        keys = await key_filter(gateway, owner.id, parameters)
        parameters.reject_unknown()
        try:
            found = await usage_buckets(
                database,
                owner.id,
                start_at=start_at,
                end_at=end_at,
                width=width,
                project_ids=projects,
                key_ids=keys,
                models=models,
                lanes=lanes,
                group_by=[_GROUPS[name] for name in group_by],
                limit=limit,
                limits=(31, 168),
                page=after,
            )
        except InvalidReport as error:
            names = {"page": "after", "start_time": "since"}
            raise InvalidField(names.get(error.parameter, error.parameter), error.problem) from error
        ids = [result.group for bucket in found.buckets for result in bucket.results]
        project_ids = {group["project_id"] for group in ids if "project_id" in group}
        key_ids = {group["api_key_id"] for group in ids if "api_key_id" in group}
        named = await directory.project_names(owner.id, project_ids) if project_ids else {}
        keyed = await directory.named_keys(owner.id, key_ids) if key_ids else {}
        return json_response(
            UsageReport(
                bucket=width,
                data=[_bucket(bucket, named, keyed) for bucket in found.buckets],
                has_more=found.next_page is not None,
                next=found.next_page,
            )
        )

    @get(
        "/admin/v1/usage",
        opt=demands("usage.read")
        | describes(
            TenantUsageReport,
            query=(
                *page(),
                *_SPAN,
                query("period", str, "A month in place of since and until; this one without any.", example="2026-11"),
                query("group_by", Literal["project", "model", "lane"], "What is summed apart.", repeated=True),
            ),
        ),
    )
    async def usage_over_tenants(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The usage of the tenants that you may see, a line a tenant."""
        parameters = Parameters.of(request)
        group_by = parameters.choices("group_by", list(_TENANT_GROUPS)) or []
        limit, after, period = parameters.page_size(), parameters.text("after"), parameters.text("period")
        start_at, end_at = await span(parameters) if period is None else _month(period)
        if period is None and parameters.instant("since") is None:
            start_at, _ = period_bounds(period_of(max(0, end_at - 1)))
        parameters.reject_unknown()
        if after is not None:
            try:
                after = (await seen_tenant(gateway, request, after)).name
            except NotFound as error:
                raise InvalidField("after", "there is no such tenant") from error
        tenants, more = await list_visible_tenants(gateway, request, "usage.read", limit, after)
        principal = principal_of(request)
        whole = [tenant.id for tenant in tenants if principal.may("usage.read", tenant.id)]
        groups = [_TENANT_GROUPS[name] for name in group_by]
        lines = await usage_of_tenants(database, whole, start_at=start_at, end_at=end_at, group_by=groups)
        project_names = dict[UUID, str]()
        if "project_id" in groups:
            for tenant_id in {line.tenant_id for line in lines}:
                ids = {line.group["project_id"] for line in lines if line.tenant_id == tenant_id}
                project_names |= await directory.project_names(tenant_id, ids)
        data = [
            TenantUsageObject(
                tenant_id=tenant_public_id(tenant.id),
                tenant=tenant.name,
                results=[_tenant_result(line, project_names) for line in lines if line.tenant_id == tenant.id],
            )
            for tenant in tenants
            if tenant.id in whole
        ]
        return json_response(
            TenantUsageReport(start=format_instant(start_at), end=format_instant(end_at), data=data, has_more=more)
        )

    async def span(parameters: Parameters) -> tuple[int, int]:
        """Whole hours, which the roll-ups have: by default the last seven days."""
        since, until = parameters.instant("since"), parameters.instant("until")
        end = await database.now() if until is None else until
        start = end - _DAYS_US if since is None else since
        return start - start % HOUR, -(-end // HOUR) * HOUR

    return [tenant_usage, usage_over_tenants]


async def project_filter(
    gateway: Gateway, tenant_id: UUID, parameters: Parameters, visible: frozenset[UUID] | None
) -> list[UUID] | None:
    """The projects of the parameter `project`, of those that are visible; None for all. Raises InvalidField."""
    names = parameters.texts("project")
    if names is None:
        return None if visible is None else list(visible)
    directory = Directory(gateway.services.database)
    found = []
    for name in dict.fromkeys(names[:_MOST_FILTERS]):
        project = await directory.project(tenant_id, name)
        if project is None or (visible is not None and project.id not in visible):
            raise InvalidField("project", f"there is no project {name[:80]!r}")
        found.append(project.id)
    return found


async def key_filter(gateway: Gateway, tenant_id: UUID, parameters: Parameters) -> list[UUID] | None:
    """The keys of the parameter `key`; None for all. Raises InvalidField."""
    names = parameters.texts("key")
    if names is None:
        return None
    directory = Directory(gateway.services.database)
    found = []
    for name in dict.fromkeys(names[:_MOST_FILTERS]):
        key = await directory.key(tenant_id, name)
        if key is None:
            raise InvalidField("key", f"there is no key {name[:80]!r}")
        found.append(key)
    return found


_MOST_FILTERS = 50
"""Values of one filter that are looked at."""


def _month(period: str) -> tuple[int, int]:
    try:
        return period_bounds(check_period(period))
    except InvalidPeriod as error:
        raise InvalidField("period", str(error)) from error


def _bucket(bucket: UsageBucket, projects: Names, keys: Mapping[UUID, NamedKey]) -> UsageBucketObject:
    return UsageBucketObject(
        start=format_instant(bucket.start_at),
        end=format_instant(bucket.end_at),
        results=[
            UsageResult(
                **_fields(result.group, projects, keys),
                requests=result.requests,
                tokens=dict(result.usage.used()),
                cost={currency: format_pico(cost) for currency, cost in result.costs_pico.items()},
            )
            for result in bucket.results
        ],
    )


def _tenant_result(line: TenantUsage, projects: Names) -> UsageResult:
    return UsageResult(
        **_fields(line.group, projects, {}),
        requests=line.requests,
        tokens=line.meters,
        cost={line.currency: format_pico(line.cost_pico)},
    )


def _fields(group: Mapping[str, Any], projects: Names, keys: Mapping[UUID, NamedKey]) -> dict[str, Any]:
    """The fields of a group, as answers have them."""
    fields = {name: group[name] for name in ("model", "lane") if name in group}
    if "project_id" in group:
        fields |= {
            "project_id": project_public_id(group["project_id"]),
            "project": projects.get(group["project_id"]),
        }
    if "api_key_id" in group:
        key = keys.get(group["api_key_id"])
        fields |= {"key": key and key.public_id, "key_name": key and key.name}
    return fields
