"""/admin/v1/payments/reminders and those of a tenant: e-mails about invoices that are overdue."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from msgspec import Struct

from billing.money import format_minor
from billing.payments.dunning.due import DueReminder, find_due
from billing.payments.dunning.reminders import Reminder, Reminders, ReminderState
from gateway.admin.money.cash import Decision
from gateway.admin.operation import Query, operation
from gateway.admin.refusals import uuid_at
from gateway.http.policies import demands
from gateway.http.shapes import Instant, InvoiceId, Page, PageQuery, TenantId, show
from gateway.services import Gateway
from tenancy.tables import Tenant

_TENANT, _PAYMENTS = "/admin/v1/tenants/{tenant:str}", "/admin/v1/payments"
_ID = "019aa1f0-0000-7000-8000-0000000000aa"


class ReminderPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the tenant is reminded of invoices that are overdue. `reason`: for the audit log."""

    enabled: bool
    reason: str


class ReminderPolicyObject(Struct, frozen=True, kw_only=True):
    """Whether the tenant is reminded. `days`: days after the due date at which the levels begin."""

    object: Literal["reminder_policy"] = "reminder_policy"
    enabled: bool
    days: list[int]


class ReminderObject(Struct, frozen=True, kw_only=True):
    """An e-mail about an invoice that is overdue. `unknown`: the mail server did not say whether it took it, so it is
    not sent again by itself."""

    object: Literal["payment_reminder"] = "payment_reminder"
    id: str
    tenant_id: TenantId
    invoice_id: InvoiceId
    level: int
    state: ReminderState
    recipient: str
    subject: str
    problem: str | None
    sent_at: Instant | None
    created_at: Instant


class ReminderList(Page[ReminderObject], frozen=True):
    """Reminders, newest first."""


class DueReminderObject(Struct, frozen=True, kw_only=True):
    """A reminder that the worker would send now. `left` is still to be paid."""

    object: Literal["payment_reminder.due"] = "payment_reminder.due"
    tenant_id: TenantId
    invoice_id: InvoiceId
    number: str
    level: int
    recipient: str
    left: str
    currency: str
    due: str


class DueReminderList(Struct, frozen=True, kw_only=True):
    """What the worker would send now, the oldest invoices first: a hundred at most."""

    object: Literal["list"] = "list"
    data: list[DueReminderObject]


class ReminderOperations:
    """Shows reminders and what would be sent, and lets people decide."""

    def __init__(self, gateway: Gateway) -> None:
        self._database, self._days = gateway.services.database, gateway.services.options.reminder_days
        self._reminders = Reminders(self._database)

    @operation("GET", f"{_PAYMENTS}/reminders", demands("payments.read", platform=True))
    async def list_all_reminders(
        self, page: PageQuery, state: Annotated[ReminderState | None, Query("Only in this state.")] = None
    ) -> ReminderList:
        """Reminders of all tenants, newest first."""
        after = uuid_at("after", page.after)
        rows = await self._reminders.list(limit=page.limit + 1, state=state, after=after)
        return ReminderList.of([_reminder(row) for row in rows], page.limit)

    @operation("GET", f"{_PAYMENTS}/due-reminders", demands("payments.read", platform=True))
    async def list_due_reminders(self) -> DueReminderList:
        """What the worker would send now. Nothing is sent, or queued."""
        return DueReminderList(data=[_due(row) for row in await find_due(self._database, self._days)])

    @operation(
        "POST",
        f"{_PAYMENTS}/reminders/{{reminder:str}}/send-again",
        demands("balance.write"),
        example=Decision("the customer has none in its mailbox"),
        path={"reminder": _ID},
        errors={"wrong_state": 409},
    )
    async def send_reminder_again(self, reminder: str, body: Decision) -> ReminderObject:
        """Send a reminder that was refused, or of which nobody knows whether it was sent: it may come twice."""
        identity = uuid_at("reminder", reminder)
        assert identity is not None, "the path has it"
        return _reminder(await self._reminders.send_again(identity, body.reason))

    @operation("GET", f"{_TENANT}/payment-reminders", demands("payments.read"))
    async def list_reminders(self, tenant: Tenant, page: PageQuery) -> ReminderList:
        """The tenant's reminders, newest first."""
        after = uuid_at("after", page.after)
        rows = await self._reminders.list(limit=page.limit + 1, tenant_id=tenant.id, after=after)
        return ReminderList.of([_reminder(row) for row in rows], page.limit)

    @operation("GET", f"{_TENANT}/reminder-policy", demands("payments.read"))
    async def retrieve_reminder_policy(self, tenant: Tenant) -> ReminderPolicyObject:
        """Whether the tenant is reminded of invoices that are overdue."""
        return await self._policy(tenant.id)

    @operation(
        "PUT",
        f"{_TENANT}/reminder-policy",
        demands("payments.write"),
        example=ReminderPolicy(enabled=False, reason="invoices go to our accountant"),
    )
    async def set_reminder_policy(self, tenant: Tenant, body: ReminderPolicy) -> ReminderPolicyObject:
        """Set whether the tenant is reminded: it may opt out."""
        await self._reminders.want(tenant.id, body.reason, enabled=body.enabled)
        return await self._policy(tenant.id)

    async def _policy(self, tenant_id: UUID) -> ReminderPolicyObject:
        return ReminderPolicyObject(enabled=await self._reminders.are_wanted(tenant_id), days=list(self._days))


def _reminder(row: Reminder) -> ReminderObject:
    return show(ReminderObject, row, id=str(row.id), tenant_id=TenantId.of(row.tenant_id),
                invoice_id=InvoiceId.of(row.invoice_id), problem=row.problem or None,
                sent_at=None if row.sent_at is None else Instant(row.sent_at))  # fmt: skip


def _due(row: DueReminder) -> DueReminderObject:
    return show(DueReminderObject, row, tenant_id=TenantId.of(row.tenant_id), invoice_id=InvoiceId.of(row.invoice_id),
                left=format_minor(row.left, row.currency))  # fmt: skip
