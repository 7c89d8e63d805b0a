"""/admin/v1/tenants/{tenant}/overview: how a tenant stands, in one call from the roll-ups."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from billing.accounts.balances import DEFAULT_CURRENCY, Balances
from billing.accounts.budgets import BudgetSettings
from billing.calendar import format_instant, period_bounds, period_of
from billing.events.rollups import HOUR
from billing.ledger.entries import Balance
from billing.money import format_pico
from billing.reports.request_list import EventFilters, count_by_status
from billing.reports.saved_money import SAVED_BY, cache_summary
from billing.reports.usage_report import Result, usage_buckets
from gateway.admin.access import partly_visible_tenant, principal_of
from gateway.admin.balances import BalanceObject, balance_object
from gateway.admin.budgets import BudgetObject, BudgetShapes
from gateway.http.operations import describes
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from tenancy.directory import tenant_public_id

_DAY = 24 * HOUR


class SpendObject(Struct, frozen=True, kw_only=True):
    """Requests and cost of a span, by currency. `hit_rate`: the part of the prompts' tokens that was read from the
    cache, from 0 to 1; none without prompts. `saved`: what caching saved against uncached prompts, less than zero if
    writing cost more."""

    requests: int
    cost: dict[str, str]
    prompt_tokens: int
    read_tokens: int
    output_tokens: int
    hit_rate: float | None
    saved: dict[str, str]


class StatusCounts(Struct, frozen=True, kw_only=True):
    """How the requests of the last hour ended. `complete` is false where there were too many to be counted: then the
    latest of them are."""

    ok: int
    cancelled: int
    failed: int
    complete: bool


class Overview(Struct, frozen=True, kw_only=True):
    """How a tenant stands at `at`. `balance` is none for who may not see it, `budgets` are those that one may see."""

    object: Literal["overview"] = "overview"
    tenant_id: str
    at: str
    today: SpendObject
    month: SpendObject
    last_hour: StatusCounts
    balance: BalanceObject | None
    budgets: list[BudgetObject]


def overview_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The route, for one worker."""
    database, prices = gateway.services.database, gateway.services.prices
    wait, balances, budgets = gateway.management_breakers.reports.wait, Balances(database), BudgetSettings(database)
    shapes = BudgetShapes(database)

    async def spend(results: list[Result]) -> SpendObject:
        summary = await cache_summary(prices, results)
        cost: dict[str, int] = {}
        for result in results:
            for currency, pico in result.costs_pico.items():
                cost[currency] = cost.get(currency, 0) + pico
        rate = summary.hit_rate
        return SpendObject(
            requests=sum(result.requests for result in results),
            cost={currency: format_pico(pico) for currency, pico in cost.items()},
            prompt_tokens=summary.prompt,
            read_tokens=summary.read,
            output_tokens=sum(result.usage.output for result in results),
            hit_rate=None if rate is None else round(rate, 6),
            saved={currency: format_pico(pico) for currency, pico in summary.saved_pico.items()},
        )

    async def read(tenant_id: UUID, projects: frozenset[UUID] | None, *, may_see_money: bool) -> Overview:
        now = await database.now()
        today, (month, _) = now - now % _DAY, period_bounds(period_of(now))
        usage = await usage_buckets(
            database,
            tenant_id,
            start_at=month,
            end_at=now - now % HOUR + HOUR,
            width="1d",
            project_ids=None if projects is None else list(projects),
            group_by=SAVED_BY,
            limit=31,
        )
        counts, complete = await count_by_status(database, tenant_id, EventFilters(since=now - HOUR, projects=projects))
        own = {str(project) for project in projects or ()}
        windows = [
            window
            for window in await budgets.list(tenant_id)
            if projects is None or (window.scope == "project" and window.subject in own)
        ]
        balance = await balances.get(tenant_id) or Balance(tenant_id, DEFAULT_CURRENCY, 0, 0, 0, 0)
        return Overview(
            tenant_id=tenant_public_id(tenant_id),
            at=format_instant(now),
            today=await spend([r for bucket in usage.buckets if bucket.start_at >= today for r in bucket.results]),
            month=await spend([result for bucket in usage.buckets for result in bucket.results]),
            last_hour=StatusCounts(**counts, complete=complete),
            balance=balance_object(balance) if may_see_money else None,
            budgets=await shapes.of(tenant_id, windows, balance.currency),
        )

    @get("/admin/v1/tenants/{tenant:str}/overview", opt=demands("usage.read") | describes(Overview))
    async def tenant_overview(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """How the tenant stands: spend against budgets, balance, requests and errors, hit rate, saved money."""
        owner, projects = await partly_visible_tenant(gateway, request, tenant, "usage.read")
        may_see_money = principal_of(request).may("balance.read", owner.id)
        return json_response(await wait(read(owner.id, projects, may_see_money=may_see_money)))

    return [tenant_overview]
