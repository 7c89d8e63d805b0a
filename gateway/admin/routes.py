"""The routes of /admin/v1 that do what commands do, together."""

from __future__ import annotations

from litestar.handlers import HTTPRouteHandler

from gateway.admin.balances import balance_routes
from gateway.admin.budgets import budget_routes
from gateway.admin.fleet import fleet_routes
from gateway.admin.grants import grant_routes
from gateway.admin.invoice_changes import invoice_change_routes
from gateway.admin.invoice_files import invoice_file_routes
from gateway.admin.invoice_lines import invoice_line_routes
from gateway.admin.invoices import invoice_routes
from gateway.admin.named_tenant import NamedTenant
from gateway.admin.overview import overview_routes
from gateway.admin.parties import party_routes
from gateway.admin.periods import period_routes
from gateway.admin.platform import platform_routes
from gateway.admin.price_books import price_book_routes
from gateway.admin.prices import price_routes
from gateway.admin.requests import request_routes
from gateway.admin.tenants import tenant_routes
from gateway.admin.terms import terms_routes
from gateway.admin.usage import usage_routes
from gateway.endpoints.exports import export_routes
from gateway.endpoints.webhooks import webhook_routes
from gateway.services import Gateway


def admin_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    parts = (
        *(tenant_routes, balance_routes, grant_routes, budget_routes, price_routes),
        *(usage_routes, request_routes, overview_routes),
        *(invoice_routes, invoice_line_routes, invoice_file_routes, invoice_change_routes),
        *(party_routes, terms_routes, price_book_routes, period_routes, platform_routes, fleet_routes),
    )
    tenants = NamedTenant(gateway)
    shared = (*export_routes(gateway, tenants), *webhook_routes(gateway, tenants))
    return [*(route for part in parts for route in part(gateway)), *shared]
