"""The routes of /admin/v1 that do what commands do, together."""

from __future__ import annotations

from litestar.handlers import HTTPRouteHandler

from gateway.admin.access import NamedTenant
from gateway.admin.approvals import ApprovalOperations
from gateway.admin.audit import AuditOperations
from gateway.admin.draining import DrainingOperations
from gateway.admin.figures.cache_leases import cache_lease_routes
from gateway.admin.figures.cache_summary import cache_summary_routes
from gateway.admin.figures.usage_series import usage_series_routes
from gateway.admin.fleet import FleetOperations
from gateway.admin.invoices.changes import InvoiceChangeOperations
from gateway.admin.invoices.files import InvoiceFileOperations
from gateway.admin.invoices.invoices import InvoiceOperations
from gateway.admin.invoices.lines import InvoiceLineOperations
from gateway.admin.invoices.parties import PartyOperations
from gateway.admin.invoices.periods import PeriodOperations
from gateway.admin.invoices.verification import InvoiceVerificationOperations
from gateway.admin.keys.keys import KeyOperations
from gateway.admin.keys.operator_keys import OperatorKeyOperations
from gateway.admin.money.balances import BalanceOperations
from gateway.admin.money.budgets import BudgetOperations
from gateway.admin.money.cash import CashOperations
from gateway.admin.money.grants import GrantOperations
from gateway.admin.money.price_books import BookOperations
from gateway.admin.money.prices import PriceOperations
from gateway.admin.money.reminders import ReminderOperations
from gateway.admin.money.terms import TermsOperations
from gateway.admin.money.top_ups import TopUpOperations
from gateway.admin.operation import operations_of
from gateway.admin.overview import OverviewOperations
from gateway.admin.platform import PlatformOperations
from gateway.admin.playground import playground_routes
from gateway.admin.requests.adapters import AdapterOperations, adapter_upload_routes
from gateway.admin.requests.batches import BatchOperations
from gateway.admin.requests.file_contents import file_content_routes
from gateway.admin.requests.files import FileOperations
from gateway.admin.requests.refused import RefusedRequestOperations
from gateway.admin.requests.requests import RequestOperations
from gateway.admin.requests.waterfalls import RequestWaterfallOperations
from gateway.admin.tenants.limits import LimitOperations
from gateway.admin.tenants.receipt_policies import ReceiptPolicyOperations
from gateway.admin.tenants.stored_responses import StoredResponseOperations
from gateway.admin.tenants.suspensions import SuspensionOperations
from gateway.admin.tenants.tenants import TenantOperations
from gateway.admin.usage import UsageOperations
from gateway.admin.users.account import AccountOperations
from gateway.admin.users.directories import DirectoryOperations
from gateway.admin.users.identity_providers import OwnIdentityOperations, identity_provider_routes
from gateway.admin.users.identity_sign_in import identity_sign_in_routes
from gateway.admin.users.members import member_routes
from gateway.admin.users.one_time_links import one_time_link_routes
from gateway.admin.users.sign_in import sign_in_routes
from gateway.admin.users.users import UserOperations
from gateway.endpoints.exports import export_routes
from gateway.endpoints.receipts import receipt_routes
from gateway.endpoints.webhooks import webhook_routes
from gateway.services import Gateway, guarded


def admin_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    parts = (
        *(usage_series_routes, cache_summary_routes, cache_lease_routes),
        *(sign_in_routes, one_time_link_routes, member_routes, file_content_routes),
        *(identity_sign_in_routes, identity_provider_routes),
    )
    tenants = NamedTenant(gateway)
    shared = (
        *export_routes(gateway, tenants),
        *webhook_routes(gateway, tenants),
        *receipt_routes(gateway, tenants),
    )
    typed = (
        *(BudgetOperations, KeyOperations, OperatorKeyOperations, LimitOperations),
        *(BalanceOperations, GrantOperations, PriceOperations, BookOperations, TermsOperations),
        *(InvoiceOperations, InvoiceLineOperations, InvoiceFileOperations, InvoiceChangeOperations),
        *(TopUpOperations, CashOperations, ReminderOperations),
        *(InvoiceVerificationOperations, PartyOperations, PeriodOperations),
        *(ApprovalOperations, DrainingOperations, PlatformOperations, FleetOperations),
        *(OverviewOperations, UsageOperations, AuditOperations),
        *(TenantOperations, SuspensionOperations, UserOperations, AccountOperations, StoredResponseOperations),
        *(OwnIdentityOperations, DirectoryOperations),
        *(ReceiptPolicyOperations, BatchOperations, FileOperations, AdapterOperations),
        *(RequestOperations, RequestWaterfallOperations, RefusedRequestOperations),
    )
    routes = [
        *(route for part in typed for route in operations_of(gateway, part)),
        *(route for part in parts for route in part(gateway)),
        *shared,
    ]
    return [*guarded(gateway, routes), *playground_routes(gateway), *adapter_upload_routes(gateway)]
