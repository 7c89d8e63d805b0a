"""What somebody should look at: budgets and balances near their end, keys that expire, what is disabled or waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from uuid import UUID

from msgspec import Struct

from billing.approvals.approvals import Approvals
from billing.budgets.windows import BudgetWindow
from billing.calendar import format_instant
from billing.ledger.entries import Balance
from billing.reports.overviews import refused_records
from gateway.services import Gateway
from storage.database.public_ids import public_id
from tenancy.directory import Directory, tenant_public_id
from tenancy.rights.principals import Principal
from webhooks.endpoints import disabled_endpoints

NoticeCode = Literal[
    "budget_exhausted",
    "budget_near",
    "balance_exhausted",
    "key_expiring",
    "webhook_disabled",
    "approval_waiting",
    "usage_unsettled",
    "usage_refused",
    "replica_down",
    "disk_full",
    "spool_waiting",
]
_WEEK_US = 7 * 86_400_000_000
_SETTLES_US = 15 * 60_000_000
"""A request that is older than this, and not settled, is worth a notice."""
_LAGS_S = 60
_NEAR_PERCENT = 80
_MOST = 20


class Notice(Struct, frozen=True, kw_only=True):
    """`code` is for programs. `subject`: what it is about, by public id or name, empty for the whole tenant or the
    platform. `tenant_id`: whose it is, none of the platform's own."""

    code: NoticeCode
    severity: Literal["warning", "error"]
    text: str
    subject: str = ""
    tenant_id: str | None = None


class Notices:
    """Finds notices, of what a principal may see. Every method may raise DatabaseUnavailable."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._database = gateway.services.database
        self._directory = Directory(gateway.services.database)
        self._approvals = Approvals(gateway.services.database, gateway.services.prices)

    async def of_tenant(
        self,
        principal: Principal,
        tenant_id: UUID,
        *,
        budgets: Sequence[tuple[BudgetWindow, str]],
        balance: Balance | None,
        unsettled_since: int,
        now: int,
    ) -> list[Notice]:
        """A tenant's: of these budgets, each with its subject's name, and of the balance, if one may see it."""
        name = tenant_public_id(tenant_id)
        found = [_of_budget(window, subject, name) for window, subject in budgets]
        if balance is not None and balance.available <= 0:
            text = "Nothing of the balance is available: requests are refused."
            found.append(Notice(code="balance_exhausted", severity="error", text=text, tenant_id=name))
        found += await self._settling(unsettled_since, now, name)
        if principal.may("keys.read", tenant_id):
            found += await self._keys(now, [tenant_id])
        if principal.may("webhooks.read", tenant_id):
            found += await self._webhooks([tenant_id])
        return [notice for notice in found if notice is not None][:_MOST]

    async def of_platform(
        self, principal: Principal, *, exhausted: int, unsettled_since: int, now: int
    ) -> list[Notice]:
        """The platform's own, and the tenants' that may be seen over all. `exhausted`: tenants without money."""
        found = [*self._fleet(principal), *await self._settling(unsettled_since, now, None)]
        if principal.may("platform.read") and (refused := await refused_records(self._database)):
            text = f"{refused} records of usage could not be settled: `turnpike audit money` says why."
            found.append(Notice(code="usage_refused", severity="error", text=text))
        if principal.may("approvals.read"):
            for change in await self._approvals.list("pending"):
                text = f"A change waits for a second person: {change.summary}"
                found.append(Notice(code="approval_waiting", severity="warning", text=text, subject=str(change.id)))
        if exhausted and principal.may("balance.read"):
            who = "One tenant has" if exhausted == 1 else f"{exhausted} tenants have"
            text = f"{who} nothing available: further requests are refused."
            found.append(Notice(code="balance_exhausted", severity="warning", text=text))
        if principal.may("keys.read"):
            found += await self._keys(now, None)
        if principal.may("webhooks.read"):
            found += await self._webhooks(None)
        return found[:_MOST]

    async def _settling(self, since: int, now: int, tenant: str | None) -> list[Notice]:
        if now - since < _SETTLES_US:
            return []
        text = f"A request of {format_instant(since)} is still open: figures are complete up to then."
        return [Notice(code="usage_unsettled", severity="warning", text=text, tenant_id=tenant)]

    async def _keys(self, now: int, tenants: list[UUID] | None) -> list[Notice]:
        found = await self._directory.expiring_keys(now, now + _WEEK_US, tenants, _MOST)
        return [
            Notice(
                code="key_expiring",
                severity="warning",
                text=f"The key {key.public_id} ({key.name}) expires at {format_instant(key.expires_at)}.",
                subject=key.public_id,
                tenant_id=tenant_public_id(key.tenant_id),
            )
            for key in found
        ]

    async def _webhooks(self, tenants: list[UUID] | None) -> list[Notice]:
        return [
            Notice(
                code="webhook_disabled",
                severity="warning",
                text=f"The webhook to {endpoint.url} is disabled: {endpoint.reason or 'by hand'}.",
                subject=str(endpoint.id),
                tenant_id=tenant_public_id(endpoint.tenant_id),
            )
            for endpoint in await disabled_endpoints(self._database, tenants, _MOST)
        ]

    def _fleet(self, principal: Principal) -> list[Notice]:
        """What this worker knows of itself and its replicas."""
        if not principal.may("fleet.read"):
            return []
        services, found = self._gateway.services, []
        for link in services.fleet.links:
            if not link.healthy():
                text = f"The replica {link.replica} takes no requests: {link.problem or 'it is silent'}."
                found.append(Notice(code="replica_down", severity="error", text=text, subject=link.replica))
        if self._gateway.disk.full:
            text = "The disk of spool or database is full: requests are refused."
            found.append(Notice(code="disk_full", severity="error", text=text))
        if services.settler.lag_s > _LAGS_S:
            text = f"{services.settler.lag} records of usage of {services.name} wait for the database."
            found.append(Notice(code="spool_waiting", severity="warning", text=text, subject=services.name))
        return found


def _of_budget(window: BudgetWindow, name: str, tenant: str) -> Notice | None:
    used = window.spent + window.held
    if window.limit_pico <= 0 or used * 100 < window.limit_pico * _NEAR_PERCENT:
        return None
    over = used >= window.limit_pico
    percent = used * 100 // window.limit_pico
    subject = f"{window.scope} {name}".strip()
    return Notice(
        code="budget_exhausted" if over else "budget_near",
        severity="error" if over and window.action == "block" else "warning",
        text=f"The {window.span} budget of the {subject} is used to {percent} %.",
        subject=public_id("budget", window.budget_id),
        tenant_id=tenant,
    )
