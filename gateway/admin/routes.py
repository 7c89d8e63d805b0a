"""The routes of /admin/v1 that do what commands do, together."""

from __future__ import annotations

from litestar.handlers import HTTPRouteHandler

from gateway.admin.balances import balance_routes
from gateway.admin.budgets import budget_routes
from gateway.admin.grants import grant_routes
from gateway.admin.overview import overview_routes
from gateway.admin.prices import price_routes
from gateway.admin.requests import request_routes
from gateway.admin.tenants import tenant_routes
from gateway.admin.usage import usage_routes
from gateway.services import Gateway


def admin_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    parts = (
        *(tenant_routes, balance_routes, grant_routes, budget_routes, price_routes),
        *(usage_routes, request_routes, overview_routes),
    )
    return [route for part in parts for route in part(gateway)]
