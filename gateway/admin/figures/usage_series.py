"""/admin/v1/tenants/{tenant}/usage/series and /admin/v1/usage/series: usage for charts and tables, as JSON or CSV."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec.structs import replace

from billing.calendar import format_instant
from billing.events.rollups import HOUR
from billing.reports.usage_series import (
    BUCKETS,
    DAY,
    Bucket,
    Measure,
    Series,
    SeriesGroup,
    complete_until,
    fitting_bucket,
    usage_series,
    usage_totals,
)
from gateway.admin.figures.filters import (
    PLATFORM_FILTERS,
    TENANT_FILTERS,
    Figures,
    platform_figures,
    tenant_figures,
)
from gateway.admin.figures.series_objects import (
    GroupName,
    Names,
    UsageSeries,
    coarser_note,
    csv_of,
    digest_of,
    line_objects,
    previous_span,
    sums_object,
)
from gateway.dialects.query_parameters import Parameters
from gateway.errors import Conflict, InvalidField
from gateway.http.operations import describes, files, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from tenancy.directory import Directory

_COLUMNS: dict[str, SeriesGroup] = {
    "tenant": "tenant_id",
    "project": "project_id",
    "key": "key_id",
    "model": "model",
    "lane": "lane",
}
_MEASURES: tuple[Measure, ...] = ("cost", "requests", "tokens")
_MOST_LINES = 50
_LONG_HOURS, _LONG_DAYS = 4 * DAY, 200 * DAY
"""From which length of a span on buckets are days, and months, where none are asked for."""
_CSV = "text/csv; charset=utf-8; header=present"
_SHAPE = (
    query("bucket", Literal["hour", "day", "month"], "The width of a bucket, in UTC; one that fits without it."),
    query("measure", Literal["cost", "requests", "tokens"], "By what the largest groups are found; cost without it."),
    query("top", int, f"How many groups have a line, 1 to {_MOST_LINES}; the others are the rest. 10 without it."),
    query("compare", Literal["previous"], "Add the span before."),
    query("format", Literal["json", "csv"], "`json` without it."),
    query("digest", str, "With `format=csv`: of the answer that the file must have the figures of."),
)
_EXAMPLE = (
    "start,end,complete,model,rest,requests,uncached,output,currency,cost\r\n"
    "2026-11-01T00:00:00Z,2026-11-02T00:00:00Z,true,tiny,false,7,812,96,USD,0.000478\r\n"
)
_FILE = files(_CSV, description="The same figures as rows; every meter has a column.", example=_EXAMPLE)
_ERRORS = {"usage_changed": 409}


def usage_series_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    explorer = _Explorer(gateway)

    @get(
        "/admin/v1/tenants/{tenant:str}/usage/series",
        opt=demands("usage.read")
        | describes(
            (UsageSeries, _FILE),
            query=(
                *TENANT_FILTERS,
                query("group_by", Literal["project", "key", "model", "lane"], "What is summed apart.", repeated=True),
                *_SHAPE,
            ),
            errors=_ERRORS,
        ),
    )
    async def tenant_usage_series(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """A tenant's usage as series: the largest groups, the rest, and the span before, of what you may see."""
        parameters = Parameters.of(request)
        figures, _ = await tenant_figures(gateway, request, tenant, parameters)
        return await explorer.answer(figures, parameters, ["project", "key", "model", "lane"])

    @get(
        "/admin/v1/usage/series",
        opt=demands("usage.read")
        | describes(
            (UsageSeries, _FILE),
            query=(
                *PLATFORM_FILTERS,
                query("group_by", Literal["tenant", "project", "model", "lane"], "Summed apart.", repeated=True),
                *_SHAPE,
            ),
            errors=_ERRORS,
        ),
    )
    async def usage_series_over_tenants(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The usage of all tenants that you may see whole, as series."""
        parameters = Parameters.of(request)
        figures = await platform_figures(gateway, request, parameters)
        return await explorer.answer(figures, parameters, ["tenant", "project", "model", "lane"])

    return [tenant_usage_series, usage_series_over_tenants]


class _Explorer:
    """Makes answers of selections."""

    def __init__(self, gateway: Gateway) -> None:
        self._database = gateway.services.database
        self._directory = Directory(gateway.services.database)

    async def answer(self, figures: Figures, parameters: Parameters, groups: list[str]) -> Response[bytes]:
        """The series that the parameters ask for, as JSON or CSV. Raises InvalidField, Conflict,
        DatabaseUnavailable."""
        group_by: list[GroupName] = list(dict.fromkeys(parameters.choices("group_by", groups) or []))
        if "project" in group_by and figures.tenant_id is None and "tenant" not in group_by:
            group_by.insert(0, "tenant")  # a project's name is one in its tenant
        asked: Bucket = parameters.choice("bucket", BUCKETS) or _usual(figures)
        measure: Measure = parameters.choice("measure", _MEASURES) or "cost"
        top = _top(parameters)
        compares = parameters.choice("compare", ("previous",)) is not None
        form, digest = parameters.choice("format", ("json", "csv")) or "json", parameters.text("digest")
        parameters.reject_unknown()
        columns = [_COLUMNS[name] for name in group_by]
        selection = figures.selection
        until = await complete_until(self._database, selection.tenants, figures.now)
        end_at = min(selection.end_at, _hour_after(figures.now))  # there is no usage after that
        shown = replace(selection, end_at=max(selection.start_at + HOUR, end_at))
        bucket = fitting_bucket(asked, shown.start_at, shown.end_at, top + 1 if columns else 1)
        series = await usage_series(self._database, shown, bucket=bucket, group_by=columns, top=top, measure=measure)
        earlier, before = shown.earlier, None
        previous = None
        if compares:
            whole = await usage_series(self._database, earlier, bucket=bucket)
            previous = previous_span(whole, earlier.start_at)
            before = await usage_totals(self._database, earlier, columns) if columns else {}
        answer = UsageSeries(
            bucket=bucket,
            asked=asked,
            note=coarser_note(asked, bucket),
            period=selection.period,
            start=format_instant(shown.start_at),
            end=format_instant(shown.end_at),
            starts=[format_instant(start) for start in series.starts],
            group_by=group_by,
            measure=measure,
            as_of=format_instant(figures.now),
            complete_until=format_instant(until),
            complete=sum(end <= until for end in [*series.starts[1:], series.end_at]),
            groups=series.groups,
            total=sums_object(series.total),
            lines=line_objects(series, group_by, await self._names(series, group_by, figures.tenant_id), before),
            previous=previous,
        )
        answer = replace(answer, digest=digest_of(answer))
        if form == "json":
            return json_response(answer)
        if digest is not None and digest != answer.digest:
            raise Conflict("The usage has changed since it was shown; load it again.", code="usage_changed")
        name = f"usage-{answer.start[:10]}-{answer.end[:10]}.csv"
        headers = {"content-disposition": f'attachment; filename="{name}"', "content-type": _CSV}
        return Response(csv_of(answer).encode(), headers=headers, media_type=_CSV)

    async def _names(self, series: Series, group_by: list[GroupName], tenant_id: UUID | None) -> Names:
        groups = [dict(zip(group_by, line.group, strict=True)) for line in series.lines if line.group is not None]
        tenants = {group["tenant"] for group in groups if "tenant" in group}
        projects: dict[UUID, str] = {}
        for owner in tenants or ({tenant_id} if tenant_id is not None else ()):
            ids = {group["project"] for group in groups if "project" in group and group.get("tenant", owner) == owner}
            if ids and owner is not None:
                projects |= await self._directory.project_names(owner, ids)
        keys = {group["key"] for group in groups if "key" in group}
        return Names(
            await self._directory.tenant_names(tenants) if tenants else {},
            projects,
            await self._directory.named_keys(tenant_id, keys) if keys and tenant_id is not None else {},
        )


def _usual(figures: Figures) -> Bucket:
    length = figures.selection.end_at - figures.selection.start_at
    return "hour" if length <= _LONG_HOURS else "day" if length <= _LONG_DAYS else "month"


def _top(parameters: Parameters) -> int:
    top = parameters.integer("top")
    if top is not None and not 1 <= top <= _MOST_LINES:
        raise InvalidField("top", f"it must be from 1 to {_MOST_LINES}")
    return top or 10


def _hour_after(instant: int) -> int:
    return instant - instant % HOUR + HOUR
