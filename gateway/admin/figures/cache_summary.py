"""/admin/v1/tenants/{tenant}/cache/summary and …/misses: what the cache read and saved, and why prompts missed."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Meta, Struct
from msgspec.structs import replace

from billing.calendar import format_instant
from billing.money import format_pico
from billing.reports.cache_savings import PRICED_BY, ClassSavings, savings_by_class, total_saved
from billing.reports.usage_series import DAY, Selection, complete_until, usage_totals
from billing.usage import METERS
from gateway.admin.figures.cache_advice import Advice, advice_of, shares
from gateway.admin.figures.filters import SPAN, Figures, tenant_figures
from gateway.dialects.query_parameters import Parameters
from gateway.http.operations import describes, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from prompt_cache.history.diagnosis import Cause
from prompt_cache.history.store import UNREACHABLE, MissSums, day_of, miss_sums

_PROMPT = [meter for meter in METERS if meter != "output"]
_ALL_GROUPS = 1_000_000

CACHE_FILTERS = (
    *SPAN,
    query("project", str, "Only of this project, by id or name.", repeated=True, example="default"),
    query("model", str, "Only of this model.", repeated=True),
)


class HitCeiling(Struct, frozen=True, kw_only=True):
    """How much of these very prompts a cache could have read. `rate` is of the `diagnosed_tokens`, those of prompts
    that the history has looked at; `reachable_tokens` were read, or had been sent before."""

    rate: float
    diagnosed_tokens: int
    reachable_tokens: int


class CacheClass(Struct, frozen=True, kw_only=True):
    """Tokens of one class, exactly as billed. `premium`: what writes cost beyond the uncached price; `saved`: what
    reads cost less than it; `net`: the difference."""

    name: str
    read_tokens: int
    write_tokens: int
    premium: dict[str, str]
    saved: dict[str, str]
    net: dict[str, str]


class CacheSummaryObject(Struct, frozen=True, kw_only=True):
    """What the cache did in a span of whole days. `hit_rate`: the part of all prompts' tokens that was read, from 0 to
    1. `missed_cost`: what was missed cost beyond reading it. `marked`: whether any promise was written or read.
    `left_out`: requests that the history had no room for."""

    object: Literal["cache.summary"] = "cache.summary"
    start: str
    end: str
    as_of: str
    complete_until: str
    prompt_tokens: int
    read_tokens: int
    write_tokens: int
    hit_rate: float | None
    hit_ceiling: HitCeiling | None
    saved: dict[str, str]
    missed_cost: dict[str, str]
    marked: bool
    classes: list[CacheClass]
    advice: list[Advice]
    left_out: int


class MissCause(Struct, frozen=True, kw_only=True):
    """Tokens of prompts with one fate. `cause` is `read` for those that were read, and `not_diagnosed` for those that
    the history knows nothing of: prompts that are too short to be cached, requests that it left out. `share`: of all
    in per cent. `cost`: what they cost beyond reading them. `reachable`: whether any cache could have read them."""

    cause: Cause | Literal["read", "not_diagnosed"]
    requests: int | None
    tokens: int
    share: Annotated[str, Meta(examples=["12.50"])]
    cost: dict[str, str]
    reachable: bool | None


class CacheMisses(Struct, frozen=True, kw_only=True):
    """Where all prompts' tokens of a span of whole days went; the shares add up to 100."""

    object: Literal["cache.misses"] = "cache.misses"
    start: str
    end: str
    as_of: str
    complete_until: str
    prompt_tokens: int
    data: list[MissCause]
    left_out: int


def cache_summary_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    database, prices = gateway.services.database, gateway.services.prices
    wait = gateway.management_breakers.reports.wait

    async def asked(request: Request[Any, Any, Any], tenant: str) -> tuple[Figures, UUID]:
        """What is asked for, in whole days, and of which tenant."""
        parameters = Parameters.of(request)
        for name in ("key", "lane"):
            parameters.reject(name, "why prompts missed is kept by project and model")
        figures, _ = await tenant_figures(gateway, request, tenant, parameters)
        parameters.reject_unknown()
        assert figures.tenant_id is not None, "these are one tenant's"
        return replace(figures, selection=_days(figures.selection, figures.now)), figures.tenant_id

    async def missed(selection: Selection, tenant_id: UUID) -> MissSums:
        first, last = day_of(selection.start_at), day_of(selection.end_at - 1)
        projects, models = selection.projects, selection.models
        return await wait(miss_sums(database, tenant_id, first, last, projects=projects, models=models))

    @get(
        "/admin/v1/tenants/{tenant:str}/cache/summary",
        opt=demands("usage.read") | describes(CacheSummaryObject, query=CACHE_FILTERS),
    )
    async def show_cache_summary(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """Hit rate and hit ceiling, what each class saved and cost, and advice with amounts."""
        figures, tenant_id = await asked(request, tenant)
        selection = figures.selection
        until = await wait(complete_until(database, [tenant_id], figures.now))
        sums = await wait(usage_totals(database, selection, PRICED_BY, most=_ALL_GROUPS))
        classes = await wait(savings_by_class(prices, sums))
        misses = await missed(selection, tenant_id)
        prompt = sum(used.tokens.get(meter, 0) for used in sums.values() for meter in _PROMPT)
        read, written = sum(one.read for one in classes.values()), sum(one.written for one in classes.values())
        currencies = {currency for used in sums.values() for currency in used.cost_pico}
        ceiling = None
        if misses.diagnosed:
            rate = _rate(misses.reachable, misses.diagnosed)
            ceiling = HitCeiling(rate=rate, diagnosed_tokens=misses.diagnosed, reachable_tokens=misses.reachable)
        return json_response(
            CacheSummaryObject(
                **_span(figures, until),
                prompt_tokens=prompt,
                read_tokens=read,
                write_tokens=written,
                hit_rate=_rate(read, prompt) if prompt else None,
                hit_ceiling=ceiling,
                saved=_amounts(dict.fromkeys(currencies, 0) | total_saved(classes.values())),
                missed_cost=_amounts(_cost(misses)),
                marked=any(name != "automatic" for name in classes),
                classes=[_class(name, one) for name, one in classes.items()],
                advice=advice_of(classes, misses),
                left_out=misses.left_out,
            )
        )

    @get(
        "/admin/v1/tenants/{tenant:str}/cache/misses",
        opt=demands("usage.read") | describes(CacheMisses, query=CACHE_FILTERS),
    )
    async def show_cache_misses(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """Every token of the prompts by what became of it: read, or missed for one cause."""
        figures, tenant_id = await asked(request, tenant)
        until = await wait(complete_until(database, [tenant_id], figures.now))
        misses = await missed(figures.selection, tenant_id)
        (sums,) = (await wait(usage_totals(database, figures.selection))).values() or (None,)
        billed = 0 if sums is None else sum(sums.tokens.get(meter, 0) for meter in _PROMPT)
        # the history may know of requests whose usage is not settled yet
        prompt = max(billed, misses.diagnosed)
        tokens = [misses.read, *(one.tokens for one in misses.causes), prompt - misses.diagnosed]
        parts = shares(tokens)
        data = [
            MissCause(cause="read", requests=None, tokens=misses.read, share=parts[0], cost={}, reachable=True),
            *(
                MissCause(
                    cause=one.cause,
                    requests=one.requests,
                    tokens=one.tokens,
                    share=share,
                    cost=_amounts(one.cost_pico),
                    reachable=one.cause not in UNREACHABLE,
                )
                for one, share in zip(misses.causes, parts[1:], strict=False)
            ),
            MissCause(
                cause="not_diagnosed", requests=None, tokens=tokens[-1], share=parts[-1], cost={}, reachable=None
            ),
        ]
        return json_response(
            CacheMisses(**_span(figures, until), prompt_tokens=prompt, data=data, left_out=misses.left_out)
        )

    return [show_cache_summary, show_cache_misses]


def _days(selection: Selection, now: int) -> Selection:
    """The whole days of a selection up to now: why prompts missed is kept by day."""
    start = selection.start_at - selection.start_at % DAY
    end = max(start + DAY, min(-(-selection.end_at // DAY) * DAY, now - now % DAY + DAY))
    return replace(selection, start_at=start, end_at=end, period=None)


def _span(figures: Figures, until: int) -> dict[str, Any]:
    return {
        "start": format_instant(figures.selection.start_at),
        "end": format_instant(figures.selection.end_at),
        "as_of": format_instant(figures.now),
        "complete_until": format_instant(until),
    }


def _rate(part: int, whole: int) -> float:
    return round(part / whole, 6)


def _cost(misses: MissSums) -> dict[str, int]:
    cost: dict[str, int] = {}
    for one in misses.causes:
        for currency, pico in one.cost_pico.items():
            cost[currency] = cost.get(currency, 0) + pico
    return cost


def _class(name: str, one: ClassSavings) -> CacheClass:
    return CacheClass(
        name=name,
        read_tokens=one.read,
        write_tokens=one.written,
        premium=_amounts(one.premium_pico),
        saved=_amounts(one.saved_pico),
        net=_amounts(one.net_pico()),
    )


def _amounts(pico: dict[str, int]) -> dict[str, str]:
    return {currency: format_pico(amount) for currency, amount in sorted(pico.items())}
