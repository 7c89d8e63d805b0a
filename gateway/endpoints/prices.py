"""GET /v1/prices: the prices that apply to the asking tenant at an instant.

The format is ours, since no vendor has one. A price comes as a decimal string per 1,000,000 units, and as the integer
of micro-units that costs are computed from: `cost in pico-units = units × price_micro`. All of a request is priced by
the rows of its lane with the largest `context_from` that its prompt reaches in tokens.
"""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from billing.calendar import InvalidInstant, format_instant, parse_instant
from billing.money import MICRO
from billing.prices import EVERY_LANE, LANES, PriceMissing, PriceVersion
from billing.prices.grid import amount, in_order
from billing.prices.version import HOURLY
from gateway.errors import InvalidField, Unavailable
from gateway.http.operations import describes, query
from gateway.http.policies import Access, demands
from gateway.http.responses import json_response
from gateway.request_context import request_context
from gateway.services import Gateway
from storage.database.database import DatabaseUnavailable


class Price(Struct, frozen=True):
    """The price of a meter in a lane, for prompts from `context_from` tokens on."""

    meter: str
    lane: str
    context_from: int
    price: str
    price_micro: int


class ModelPrices(Struct, frozen=True, kw_only=True):
    """The prices of a model: a price version, which usage events name as `price_version` and which never changes."""

    object: str = "model.prices"
    model: str
    version: int
    currency: str
    per: int = MICRO
    effective_at: str
    prices: list[Price]


class PriceList(Struct, frozen=True, kw_only=True):
    """The prices of the served models that have prices at the instant."""

    object: str = "list"
    at: str
    data: list[ModelPrices]


def list_prices(gateway: Gateway) -> HTTPRouteHandler:
    """The route, for one worker."""
    services = gateway.services
    wait = gateway.questions.wait
    access: Access = "keyless" if services.options.public_prices else "authenticated"

    @get(
        "/v1/prices",
        opt=demands("prices.read", access=access)
        | describes(PriceList, query=[query("at", str, "An instant (RFC 3339).", example="2026-11-22T09:30:00Z")]),
    )
    async def get_prices(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The prices of every served model, at the instant `at` or now."""
        principal = request_context(request.scope).principal
        tenant = principal.tenant_id if principal else None
        instants = request.query_params.getall("at", [])
        data = []
        try:
            at = parse_instant(instants[-1]) if instants else await wait(services.prices.now())
            for model in services.models:
                try:
                    data.append(_model_prices(await wait(services.prices.current(model.name, at, tenant))))
                except PriceMissing:
                    continue
        except InvalidInstant as error:
            raise InvalidField("at", str(error)) from error
        except DatabaseUnavailable as error:
            raise Unavailable("The database is unavailable; try again shortly.", retry_after=2.0) from error
        return json_response(PriceList(at=format_instant(at), data=data))

    return get_prices


def _model_prices(version: PriceVersion) -> ModelPrices:
    priced_lanes = {lane for _, lane, _ in version.rows}
    prices = [
        Price(meter, lane, context_from, amount(micro), micro)
        for (meter, row_lane, context_from), micro in in_order(version.rows)
        for lane in (LANES if row_lane == EVERY_LANE and meter not in HOURLY else (row_lane,))
        if row_lane != EVERY_LANE or lane not in priced_lanes or meter in HOURLY
    ]
    order = {lane: position for position, lane in enumerate((*LANES, EVERY_LANE))}
    return ModelPrices(
        model=version.model,
        version=version.id,
        currency=version.currency,
        effective_at=format_instant(version.effective_at),
        prices=sorted(prices, key=lambda price: (order[price.lane], price.context_from)),
    )
