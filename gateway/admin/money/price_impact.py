"""/admin/v1/prices/sheets/{number}/impact: what a month would have cost at a sheet's prices."""

from __future__ import annotations

from typing import Any, Literal

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from billing.money import format_pico
from billing.periods.periods import Periods
from billing.prices.approval import PriceSheets
from billing.prices.errors import UnknownSheet
from billing.reports.price_impact import price_impact
from gateway.admin.refusals import money, refusals
from gateway.dialects.query_parameters import Parameters
from gateway.errors import NotFound
from gateway.http.operations import describes, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway


class ImpactObject(Struct, frozen=True, kw_only=True):
    """What a month's requests cost, and what they would have cost, without cache storage and before contracts.
    `would_cost`: none where it cannot be told exactly; `inexact` says why. `left_out`: how many tenants have prices of
    their own over these. `closed`: whether the month's usage is complete."""

    object: Literal["price_sheet.impact"] = "price_sheet.impact"
    sheet: int
    period: str
    closed: bool
    currency: str
    requests: int
    tenants: int
    left_out: int
    cost: str
    would_cost: str | None
    inexact: str


def price_impact_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The route, for one worker."""
    database, catalog = gateway.services.database, gateway.services.prices
    sheets, periods = PriceSheets(database), Periods(database)

    @get(
        "/admin/v1/prices/sheets/{number:int}/impact",
        opt=demands("prices.read", platform=True)
        | describes(ImpactObject, query=(query("period", str, "The month.", required=True, example="2026-11"),)),
    )
    async def price_sheet_impact(request: Request[Any, Any, Any], number: FromPath[int]) -> Response[bytes]:
        """What a month would have cost at the prices of a sheet, from the units that were billed."""
        parameters = Parameters.of(request)
        period = parameters.required("period")
        parameters.reject_unknown()
        try:
            sheet = await sheets.get(number)
        except UnknownSheet as error:
            raise NotFound(f"There is no price sheet {error.sheet}.") from error
        with refusals():
            _, after, currency = await sheets.effect(sheet)
            found = await price_impact(database, catalog, sheet, after, period)
            month = await periods.get(period)
        return json_response(
            ImpactObject(
                sheet=number,
                period=period,
                closed=month.state == "closed",
                currency=currency,
                requests=found.requests,
                tenants=found.tenants,
                left_out=found.left_out,
                cost=format_pico(found.cost_pico),
                would_cost=money(found.would_cost_pico),
                inexact=found.inexact,
            )
        )

    return [price_sheet_impact]
