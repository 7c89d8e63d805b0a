"""/admin/v1/tenants/{tenant}/overview and /admin/v1/overview: how a tenant, or all, stand, from the roll-ups."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal
from uuid import UUID

from msgspec import Struct

from billing.accounts.balances import Balances
from billing.accounts.budgets import BudgetSettings
from billing.calendar import period_bounds, period_of
from billing.events.rollups import HOUR
from billing.money import format_pico
from billing.reports.cache_savings import PRICED_BY, savings_by_class, total_saved
from billing.reports.overviews import MoneyOfTenants, money_of_tenants
from billing.reports.request_list import EventFilters, count_by_status
from billing.reports.usage_series import DAY, Selection, Sums, complete_until, usage_totals
from billing.service_levels.service_hours import served
from billing.usage import METERS
from gateway.admin.access import PartOfTenant, allowed_tenants
from gateway.admin.figures.notices import Notice, Notices
from gateway.admin.figures.service_objects import ServiceObject, service_object
from gateway.admin.money.balances import BalanceObject, balance_object
from gateway.admin.money.budgets import BudgetObject, BudgetShapes
from gateway.admin.operation import Call, operation
from gateway.dialects.query_parameters import Parameters
from gateway.http.policies import demands
from gateway.http.shapes import Instant, TenantId
from gateway.services import Gateway
from tenancy.directory import Directory

_ALL_GROUPS = 1_000_000


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


class Started(Struct, frozen=True, kw_only=True):
    """How far a new tenant is: whether it ever had a project's key, and a request (of those that one may see)."""

    key: bool
    request: bool


class Overview(Struct, frozen=True, kw_only=True):
    """How a tenant stands at `at`; usage is complete until `complete_until`. `today` is by UTC, `month` what is billed
    in this one, `service` of the last 24 hours. `balance` is none for who may not see it, `budgets` are those that one
    may see."""

    object: Literal["overview"] = "overview"
    tenant_id: TenantId
    at: Instant
    complete_until: Instant
    period: str
    started: Started
    today: SpendObject
    month: SpendObject
    last_hour: StatusCounts
    service: ServiceObject
    balance: BalanceObject | None
    budgets: list[BudgetObject]
    notices: list[Notice]


class MoneyObject(Struct, frozen=True, kw_only=True):
    """The balances of tenants in one currency, added up. `exhausted`: how many of them have nothing available."""

    currency: str
    tenants: int
    available: str
    held: str
    receivable: str
    exhausted: int


class PlatformOverview(Struct, frozen=True, kw_only=True):
    """How the tenants stand together that one may see whole. `balances` is none for who may not see them."""

    object: Literal["overview.platform"] = "overview.platform"
    at: Instant
    complete_until: Instant
    period: str
    today: SpendObject
    month: SpendObject
    service: ServiceObject
    balances: list[MoneyObject] | None
    notices: list[Notice]


class OverviewOperations:
    """Shows how tenants stand."""

    def __init__(self, gateway: Gateway) -> None:
        database = self._database = gateway.services.database
        self._prices = gateway.services.prices
        self._balances, self._budgets = Balances(database), BudgetSettings(database)
        self._shapes, self._notices, self._directory = BudgetShapes(database), Notices(gateway), Directory(database)

    @operation("GET", "/admin/v1/tenants/{tenant:str}/overview", demands("usage.read"))
    async def tenant_overview(self, call: Call, tenant: PartOfTenant) -> Overview:
        """How the tenant stands: spend against budgets, balance, requests, waits, hit rate, saved money, notices."""
        Parameters.of(call.request).reject_unknown()
        owner, projects = tenant
        tenant_id, principal, now = owner.id, call.principal, await self._database.now()
        counts, complete = await count_by_status(
            self._database, tenant_id, EventFilters(since=now - HOUR, projects=projects)
        )
        own = {str(project) for project in projects or ()}
        windows = [
            window
            for window in await self._budgets.list(tenant_id)
            if projects is None or (window.scope == "project" and window.subject in own)
        ]
        balance = await self._balances.get_or_empty(tenant_id)
        seen = balance if principal.may("balance.read", tenant_id) else None
        budgets = await self._shapes.of(tenant_id, windows, balance.currency)
        until = await complete_until(self._database, [tenant_id], now)
        today, month = await self._spend([tenant_id], projects, now)
        used = month.requests > 0 or await self._directory.any_key(tenant_id, projects, used=True)
        return Overview(
            tenant_id=TenantId.of(tenant_id),
            at=Instant(now),
            complete_until=Instant(until),
            period=period_of(now),
            started=Started(key=used or await self._directory.any_key(tenant_id, projects), request=used),
            today=today,
            month=month,
            last_hour=StatusCounts(**counts, complete=complete),
            service=await self._service([tenant_id], projects, now),
            balance=None if seen is None else balance_object(seen),
            budgets=budgets,
            notices=await self._notices.of_tenant(
                principal,
                tenant_id,
                budgets=[(window, shown.name) for window, shown in zip(windows, budgets, strict=True)],
                balance=seen,
                unsettled_since=until,
                now=now,
            ),
        )

    @operation("GET", "/admin/v1/overview", demands("usage.read"))
    async def platform_overview(self, call: Call) -> PlatformOverview:
        """How all tenants that you may see stand together, and what waits for somebody."""
        Parameters.of(call.request).reject_unknown()
        principal, now = call.principal, await self._database.now()
        tenants = allowed_tenants(principal, "usage.read")
        if tenants is not None:
            tenants = frozenset(one for one in tenants if principal.may("usage.read", one))
        until = await complete_until(self._database, tenants, now)
        today, month = await self._spend(tenants, None, now)
        with_money = allowed_tenants(principal, "balance.read")
        if with_money is not None:
            with_money = frozenset(one for one in with_money if principal.may("balance.read", one))
        money = await money_of_tenants(self._database, with_money) if with_money is None or with_money else None
        return PlatformOverview(
            at=Instant(now),
            complete_until=Instant(until),
            period=period_of(now),
            today=today,
            month=month,
            service=await self._service(tenants, None, now),
            balances=None if money is None else [_money(one) for one in money],
            notices=await self._notices.of_platform(
                principal, exhausted=sum(one.exhausted for one in money or ()), unsettled_since=until, now=now
            ),
        )

    async def _spend(
        self, tenants: Collection[UUID] | None, projects: Collection[UUID] | None, now: int
    ) -> tuple[SpendObject, SpendObject]:
        """Of today, and of what is billed in this month."""
        day, period = now - now % DAY, period_of(now)
        start, end = period_bounds(period)
        month = Selection(start_at=start, end_at=end, period=period, tenants=tenants, projects=projects)
        today = Selection(start_at=day, end_at=day + DAY, tenants=tenants, projects=projects)
        return await self._spent(today), await self._spent(month)

    async def _spent(self, selection: Selection) -> SpendObject:
        sums = await usage_totals(self._database, selection, PRICED_BY, most=_ALL_GROUPS)
        whole = Sums()
        for used in sums.values():
            whole.add(used)
        prompt = sum(tokens for meter, tokens in whole.tokens.items() if meter != "output")
        read = sum(whole.tokens.get(meter, 0) for meter in METERS if meter.startswith("read_"))
        saved = total_saved((await savings_by_class(self._prices, sums)).values())
        return SpendObject(
            requests=whole.requests,
            cost={currency: format_pico(pico) for currency, pico in sorted(whole.cost_pico.items())},
            prompt_tokens=prompt,
            read_tokens=read,
            output_tokens=whole.tokens.get("output", 0),
            hit_rate=round(read / prompt, 6) if prompt else None,
            saved={currency: format_pico(saved.get(currency, 0)) for currency in sorted(whole.cost_pico)},
        )

    async def _service(
        self, tenants: Collection[UUID] | None, projects: Collection[UUID] | None, now: int
    ) -> ServiceObject:
        since = now - now % HOUR - 23 * HOUR
        return service_object(
            since, await served(self._database, tenants, start_at=since, end_at=now + HOUR, projects=projects)
        )


def _money(one: MoneyOfTenants) -> MoneyObject:
    return MoneyObject(
        currency=one.currency,
        tenants=one.tenants,
        available=format_pico(one.available_pico),
        held=format_pico(one.held_pico),
        receivable=format_pico(one.receivable_pico),
        exhausted=one.exhausted,
    )
