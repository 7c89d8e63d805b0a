"""/admin/v1/usage over tenants and /admin/v1/tenants/{tenant}/usage in buckets of time: sums of the hourly roll-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from msgspec import UNSET, Struct, UnsetType

from billing.calendar import InvalidPeriod, check_period, period_bounds, period_of
from billing.events.rollups import HOUR
from billing.money import format_pico
from billing.reports.tenant_usage import TenantGroup, TenantUsage, usage_of_tenants
from billing.reports.usage_report import Group, InvalidReport, UsageBucket, Width, usage_buckets
from gateway.admin.access import PartOfTenant, list_visible_tenants, seen_tenant
from gateway.admin.operation import Call, PageSizes, Query, operation
from gateway.errors import InvalidField, NotFound
from gateway.http.policies import demands
from gateway.http.shapes import Instant, PageQuery, TenantId
from gateway.services import Gateway
from tenancy.directory import Directory, NamedKey, project_public_id

Names: TypeAlias = Mapping[UUID, str]
_GROUPS: dict[str, Group] = {"project": "project_id", "key": "api_key_id", "model": "model", "lane": "lane"}
_TENANT_GROUPS: dict[str, TenantGroup] = {"project": "project_id", "model": "model", "lane": "lane"}
_DAYS_US = 7 * 24 * HOUR


class UsageResult(Struct, frozen=True, kw_only=True):
    """What one group used: requests, tokens by meter (those that are not 0), and the exact cost by currency. It has the
    fields that the report is grouped by; `project` and `key_name` are names, `key` is the public id. `drafted_tokens`
    were guessed and verified by the replicas, and `accepted_tokens` of them became output: they cost nothing."""

    project_id: str | UnsetType | None = UNSET
    project: str | UnsetType | None = UNSET
    key: str | UnsetType | None = UNSET
    key_name: str | UnsetType | None = UNSET
    model: str | UnsetType = UNSET
    lane: str | UnsetType = UNSET
    requests: int
    tokens: dict[str, int]
    drafted_tokens: int
    accepted_tokens: int
    cost: dict[str, str]


class UsageBucketObject(Struct, frozen=True, kw_only=True):
    """Usage of requests admitted from `start` (included) to `end` (excluded)."""

    object: Literal["usage.bucket"] = "usage.bucket"
    start: Instant
    end: Instant
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
    tenant_id: TenantId
    tenant: str
    results: list[UsageResult]


class TenantUsageReport(Struct, frozen=True, kw_only=True):
    """Tenants by name, those without usage too."""

    object: Literal["list"] = "list"
    start: Instant
    end: Instant
    data: list[TenantUsageObject]
    has_more: bool


Since: TypeAlias = Annotated[
    Instant | None, Query("The first instant, rounded down to its hour.", example="2026-11-01T00:00:00Z")
]
Until: TypeAlias = Annotated[
    Instant | None, Query("The end, rounded up to its hour; now without it.", example="2026-12-01T00:00:00Z")
]
_SUMMED = Query("What is summed apart.")


class UsageOperations:
    """Reports the usage of tenants."""

    def __init__(self, gateway: Gateway) -> None:
        self._database, self._directory = gateway.services.database, Directory(gateway.services.database)

    @operation("GET", "/admin/v1/tenants/{tenant:str}/usage", demands("usage.read"))
    async def tenant_usage(
        self,
        call: Call,
        tenant: PartOfTenant,
        page: Annotated[PageQuery, PageSizes(most=168, default=31)],
        *,
        since: Since = None,
        until: Until = None,
        bucket: Annotated[Literal["1h", "1d"], Query("The width of a bucket; a day without it.")] = "1d",
        group_by: Annotated[list[Literal["project", "key", "model", "lane"]] | None, _SUMMED] = None,
        project: Annotated[list[str] | None, Query("Only of this project, by id or name.", example="default")] = None,
        key: Annotated[list[str] | None, Query("Only of this key, by its public id.", example="tp_live_x")] = None,
        model: Annotated[list[str] | None, Query("Only of this model.")] = None,
        lane: Annotated[list[str] | None, Query("Only of this lane.", example="standard")] = None,
    ) -> UsageReport:
        """A tenant's usage in buckets of time, of the projects that you may see."""
        owner, visible = tenant
        start_at, end_at = await self._span(since, until)
        try:
            buckets = await usage_buckets(
                self._database,
                owner.id,
                start_at=start_at,
                end_at=end_at,
                width=bucket,
                project_ids=await project_filter(call.gateway, owner.id, project, visible),
                key_ids=await key_filter(call.gateway, owner.id, key),
                models=model,
                lanes=lane,
                group_by=[_GROUPS[name] for name in group_by or ()],
                limit=page.limit,
                limits=(31, 168),
                page=page.after,
            )
        except InvalidReport as error:
            names = {"page": "after", "start_time": "since"}
            raise InvalidField(names.get(error.parameter, error.parameter), error.problem) from error
        groups = [result.group for each in buckets.buckets for result in each.results]
        project_ids = {group["project_id"] for group in groups if "project_id" in group}
        key_ids = {group["api_key_id"] for group in groups if "api_key_id" in group}
        projects = await self._directory.project_names(owner.id, project_ids) if project_ids else {}
        keys = await self._directory.named_keys(owner.id, key_ids) if key_ids else {}
        return UsageReport(
            bucket=bucket,
            data=[_bucket(each, projects, keys) for each in buckets.buckets],
            has_more=buckets.next_page is not None,
            next=buckets.next_page,
        )

    @operation("GET", "/admin/v1/usage", demands("usage.read"))
    async def usage_over_tenants(
        self,
        call: Call,
        page: PageQuery,
        *,
        since: Since = None,
        until: Until = None,
        period: Annotated[
            str | None, Query("A month in place of since and until; this one without any.", example="2026-11")
        ] = None,
        group_by: Annotated[list[Literal["project", "model", "lane"]] | None, _SUMMED] = None,
    ) -> TenantUsageReport:
        """The usage of the tenants that you may see, a line a tenant."""
        if period is not None:
            for name, instant in (("since", since), ("until", until)):
                if instant is not None:
                    raise InvalidField(name, "a period has its own", code="unknown_parameter")
            start_at, end_at = _month(period)
        else:
            start_at, end_at = await self._span(since, until)
            if since is None:
                start_at, _ = period_bounds(period_of(max(0, end_at - 1)))
        try:
            after = None if page.after is None else (await seen_tenant(call.gateway, call.request, page.after)).name
        except NotFound as error:
            raise InvalidField("after", "there is no such tenant") from error
        tenants, more = await list_visible_tenants(call.gateway, call.request, "usage.read", page.limit, after)
        whole = [tenant.id for tenant in tenants if call.principal.may("usage.read", tenant.id)]
        groups = [_TENANT_GROUPS[name] for name in group_by or ()]
        lines = await usage_of_tenants(self._database, whole, start_at=start_at, end_at=end_at, group_by=groups)
        project_names = dict[UUID, str]()
        if "project_id" in groups:
            for tenant_id in {line.tenant_id for line in lines}:
                ids = {line.group["project_id"] for line in lines if line.tenant_id == tenant_id}
                project_names |= await self._directory.project_names(tenant_id, ids)
        data = [
            TenantUsageObject(
                tenant_id=TenantId.of(tenant.id),
                tenant=tenant.name,
                results=[_tenant_result(line, project_names) for line in lines if line.tenant_id == tenant.id],
            )
            for tenant in tenants
            if tenant.id in whole
        ]
        return TenantUsageReport(start=Instant(start_at), end=Instant(end_at), data=data, has_more=more)

    async def _span(self, since: int | None, until: int | None) -> tuple[int, int]:
        """Whole hours, which the roll-ups have: by default the last seven days."""
        end = await self._database.now() if until is None else until
        start = end - _DAYS_US if since is None else since
        return start - start % HOUR, -(-end // HOUR) * HOUR


async def project_filter(
    gateway: Gateway, tenant_id: UUID, names: Sequence[str] | None, visible: frozenset[UUID] | None
) -> list[UUID] | None:
    """The projects that the parameter `project` names, of those that are visible; None: all. Raises InvalidField."""
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


async def key_filter(gateway: Gateway, tenant_id: UUID, names: Sequence[str] | None) -> list[UUID] | None:
    """The keys that the parameter `key` names; None: all. Raises InvalidField."""
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
        start=Instant(bucket.start_at),
        end=Instant(bucket.end_at),
        results=[
            UsageResult(
                **_fields(result.group, projects, keys),
                requests=result.requests,
                tokens=dict(result.usage.used()),
                drafted_tokens=result.drafted,
                accepted_tokens=result.accepted,
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
        drafted_tokens=line.drafted,
        accepted_tokens=line.accepted,
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
