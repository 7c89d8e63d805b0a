"""GET /v1/prices: what applies to the tenant who asks, at an instant.

The shape is ours: no vendor has one. An amount comes as a decimal string per 1,000,000 units and as the integer of
micro-units that costs are computed from: `cost in pico-units = units × price_micro`. A request is priced whole by the
rows of its lane whose `context_from` is the largest that its prompt's tokens reach.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import MediaType, Request, Response, get
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from billing.calendar import InvalidInstant, format_instant, parse_instant
from billing.money import MICRO
from billing.prices import EVERY_LANE, LANES, PriceMissing, PriceVersion
from billing.prices.grid import amount, in_order
from billing.prices.version import STORAGE
from gateway.errors import InvalidRequest, Unavailable
from gateway.http.authentication import KEYLESS
from gateway.request_context import of
from gateway.services import Gateway
from storage.database.database import DatabaseUnavailable


class Price(Struct, frozen=True):
    """One cell of the grid."""

    meter: str
    lane: str
    context_from: int
    price: str
    price_micro: int


class ModelPrices(Struct, frozen=True, kw_only=True):
    """A price version: what events refer to as `price_version`, unchanged for ever."""

    object: str = "model.prices"
    model: str
    version: int
    currency: str
    per: int = MICRO
    effective_at: str
    prices: list[Price]


class PriceList(Struct, frozen=True, kw_only=True):
    """The served models that had prices then."""

    object: str = "list"
    at: str
    data: list[ModelPrices]


def list_prices(gateway: Gateway) -> HTTPRouteHandler:
    """The route, for one worker."""
    services = gateway.services
    wait = gateway.patience.prices.wait

    @get("/v1/prices", opt={KEYLESS: services.options.public_prices})
    async def get_prices(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Every served model's prices, at `at` or now."""
        principal = of(request.scope).principal
        tenant = principal.tenant_id if principal else None
        given = request.query_params.getall("at", [])
        data = []
        try:
            at = parse_instant(given[-1]) if given else await wait(services.prices.now())
            for model in services.models:
                try:
                    data.append(_model(await wait(services.prices.current(model.name, at, tenant))))
                except PriceMissing:
                    continue
        except InvalidInstant as error:
            raise InvalidRequest(f"at: {error}.", path="at", code="invalid_value") from error
        except DatabaseUnavailable as error:
            raise Unavailable("The database is away; try again shortly.", retry_after=2.0) from error
        return Response(msgspec.json.encode(PriceList(at=format_instant(at), data=data)), media_type=MediaType.JSON)

    return get_prices


def _model(version: PriceVersion) -> ModelPrices:
    own = {lane for _, lane, _ in version.rows}
    prices = [
        Price(meter, each, context_from, amount(micro), micro)
        for (meter, lane, context_from), micro in in_order(version.rows)
        for each in (LANES if lane == EVERY_LANE and meter != STORAGE else (lane,))
        if lane != EVERY_LANE or each not in own or meter == STORAGE
    ]
    order = {lane: n for n, lane in enumerate((*LANES, EVERY_LANE))}
    return ModelPrices(
        model=version.model,
        version=version.id,
        currency=version.currency,
        effective_at=format_instant(version.effective_at),
        prices=sorted(prices, key=lambda price: (order[price.lane], price.context_from)),
    )
