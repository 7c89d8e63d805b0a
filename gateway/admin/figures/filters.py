"""The filters that all figures share: a span of whole hours or a month, projects, keys, models and lanes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from litestar import Request
from msgspec import Struct

from billing.calendar import InvalidPeriod, check_period, period_bounds, period_of
from billing.events.rollups import HOUR
from billing.reports.usage_series import MOST_MONTHS, Selection, starts_of
from gateway.admin.access import allowed_tenants, partly_visible_tenant, principal_of, seen_tenant
from gateway.admin.usage import key_filter, project_filter
from gateway.dialects.query_parameters import Parameters
from gateway.errors import InvalidField, NotFound
from gateway.http.operations import QueryParameter, query
from gateway.services import Gateway
from tenancy.rights.permissions import Permission

_MOST = 50
"""Values of one filter."""

SPAN: tuple[QueryParameter, ...] = (
    query("period", str, "What is billed in a month, this one without any span.", example="2026-11"),
    query("since", str, "In place of a period: the first instant, rounded down to its hour.",
          example="2026-11-01T00:00:00Z"),
    query("until", str, "The end, rounded up to its hour; now without it.", example="2026-12-01T00:00:00Z"),
)  # fmt: skip
_USED = (
    query("model", str, "Only of this model.", repeated=True),
    query("lane", str, "Only of this lane.", repeated=True, example="standard"),
)
TENANT_FILTERS: tuple[QueryParameter, ...] = (
    *SPAN,
    query("project", str, "Only of this project, by id or name.", repeated=True, example="default"),
    query("key", str, "Only of this key, by its public id.", repeated=True, example="tp_live_x"),
    *_USED,
)
PLATFORM_FILTERS: tuple[QueryParameter, ...] = (
    *SPAN,
    query("tenant", str, "Only of this tenant, by id or name.", repeated=True, example="demo"),
    *_USED,
)


class Figures(Struct, frozen=True):
    """What is asked for: the selection, the instant of asking, and of how many tenants it is (None: one)."""

    selection: Selection
    now: int
    tenant_id: UUID | None
    """The one tenant; None for figures over several."""


async def tenant_figures(
    gateway: Gateway, request: Request[Any, Any, Any], tenant: str, parameters: Parameters
) -> tuple[Figures, frozenset[UUID] | None]:
    """The selection of one tenant's figures by a request's parameters, and of which projects those may be whom the
    principal may see (None: of all). Raises NotFound, NotAllowed, InvalidField, DatabaseUnavailable."""
    owner, visible = await partly_visible_tenant(gateway, request, tenant, "usage.read")
    start_at, end_at, period, now = await _span(gateway, parameters)
    selection = Selection(
        start_at=start_at,
        end_at=end_at,
        period=period,
        tenants=[owner.id],
        projects=await project_filter(gateway, owner.id, parameters.texts("project"), visible),
        keys=await key_filter(gateway, owner.id, parameters.texts("key")),
        models=_few(parameters.texts("model")),
        lanes=_few(parameters.texts("lane")),
    )
    return Figures(selection, now, owner.id), visible


async def platform_figures(
    gateway: Gateway, request: Request[Any, Any, Any], parameters: Parameters, permission: Permission = "usage.read"
) -> Figures:
    """The same over the tenants that the principal may see whole. Raises InvalidField, DatabaseUnavailable."""
    start_at, end_at, period, now = await _span(gateway, parameters)
    principal = principal_of(request)
    tenants: Iterable[UUID] | None = allowed_tenants(principal, permission)
    if (names := _few(parameters.texts("tenant"))) is not None:
        tenants = [await _named(gateway, request, name) for name in dict.fromkeys(names)]
    if tenants is not None:
        tenants = [one for one in tenants if principal.may(permission, one)]
    selection = Selection(
        start_at=start_at,
        end_at=end_at,
        period=period,
        tenants=tenants,
        models=_few(parameters.texts("model")),
        lanes=_few(parameters.texts("lane")),
    )
    return Figures(selection, now, None)


async def _named(gateway: Gateway, request: Request[Any, Any, Any], name: str) -> UUID:
    try:
        return (await seen_tenant(gateway, request, name)).id
    except NotFound as error:
        raise InvalidField("tenant", f"there is no tenant {name[:80]!r}") from error


async def _span(gateway: Gateway, parameters: Parameters) -> tuple[int, int, str | None, int]:
    """The first instant, the end, the period if it is one, and now."""
    now = await gateway.services.database.now()
    period, since, until = parameters.text("period"), parameters.instant("since"), parameters.instant("until")
    if since is None and until is None:
        try:
            period = period_of(now) if period is None else check_period(period)
        except InvalidPeriod as error:
            raise InvalidField("period", str(error)) from error
        return *period_bounds(period), period, now
    if period is not None:
        raise InvalidField("period", "it is a span of its own: leave it out, or since and until")
    end = now if until is None else min(until, period_bounds(period_of(now))[1])  # nothing is used after this month
    start = period_bounds(period_of(max(0, end - 1)))[0] if since is None else since
    start, end = start - start % HOUR, -(-end // HOUR) * HOUR
    if start >= end:
        raise InvalidField("since", "it is not before the end")
    if len(starts_of("month", start, min(end, start + 2 * MOST_MONTHS * 31 * 24 * HOUR))) > MOST_MONTHS:
        raise InvalidField("since", f"the span has more than {MOST_MONTHS} months")
    return start, end, None, now


def _few(values: list[str] | None) -> list[str] | None:
    if values is not None and len(values) > _MOST:
        raise InvalidField("$", f"a filter has at most {_MOST} values")
    return values
