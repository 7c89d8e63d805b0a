"""/admin/v1/payments and what came in for a tenant: receipts, refunds, disputes, tasks for finance, reconciliations."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias
from uuid import UUID

from msgspec import Meta, Struct

from billing.money import format_minor
from billing.payments.bank.importing import StatementImport, import_statement
from billing.payments.cash import CashBook, Receipt
from billing.payments.disputes import Dispute, Disputes
from billing.payments.pushing import DocumentPusher, PushedDocument
from billing.payments.reconciliation import PaymentReconciliation, Reconciler
from billing.payments.refunds import Refund, Refunds
from billing.payments.tasks import FinanceTask, FinanceTasks
from gateway.admin.access import visible_tenant
from gateway.admin.invoices.invoices import AT, EXAMPLE, InvoiceOfTenant
from gateway.admin.operation import Call, Query, operation
from gateway.admin.refusals import minor_at, uuid_at
from gateway.http.policies import demands
from gateway.http.shapes import Instant, InvoiceId, Page, PageQuery, TenantId, show
from gateway.services import Gateway
from tenancy.tables import Tenant

_TENANT, _PAYMENTS = "/admin/v1/tenants/{tenant:str}", "/admin/v1/payments"
_ID = "019aa1f0-0000-7000-8000-0000000000aa"
ReceiptState: TypeAlias = Literal["applied", "unapplied", "returned"]


class Application(Struct, frozen=True, forbid_unknown_fields=True):
    """What unapplied money is for: an invoice of the tenant (its number), or without one its balance."""

    tenant: str
    reason: str
    invoice: str | None = None


class Decision(Struct, frozen=True, forbid_unknown_fields=True):
    """`reason`: for the audit log."""

    reason: str


class NewTopUpRefund(Struct, frozen=True, forbid_unknown_fields=True):
    """How much of a top-up goes back to the card: all that is left of it without an amount. `id`: a UUIDv7 of your own;
    used again, it is one refund."""

    reason: str
    amount: str | None = None
    id: str | None = None


class NewBankStatement(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the bank: camt.053 (XML) or CSV with a header. `name`: what the file is called."""

    name: str
    content: Annotated[str, Meta(max_length=250_000)]
    dry_run: bool = False


class ProviderObject(Struct, frozen=True, kw_only=True):
    """Who collects money. The key is shown by its fingerprint alone. `stand_in`: a stand-in on the gateway's machine
    answers in the provider's place, as in the demonstration: no money moves."""

    object: Literal["payment_provider"] = "payment_provider"
    provider: str | None
    account: str | None
    livemode: bool
    stand_in: bool
    key: str | None


class ReceiptObject(Struct, frozen=True, kw_only=True):
    """Money that came in. `unapplied`: nobody can be said to owe it, for the reason in `problem`."""

    object: Literal["cash_receipt"] = "cash_receipt"
    id: str
    provider: str
    provider_id: str
    tenant_id: TenantId | None
    amount: str
    currency: str
    state: ReceiptState
    purpose: Literal["top_up", "invoice", "unmatched"]
    subject_id: str | None
    payer: str
    reference: str
    problem: str | None
    received_at: Instant


class ReceiptList(Page[ReceiptObject], frozen=True):
    """Money that came in, newest first."""


class TopUpRefundObject(Struct, frozen=True, kw_only=True):
    """Money of a top-up that goes back by the way it came."""

    object: Literal["top_up_refund"] = "top_up_refund"
    id: str
    amount: str
    currency: str
    state: Literal["created", "sent", "succeeded", "failed"]
    reason: str
    problem: str | None
    created_at: Instant


class DisputeObject(Struct, frozen=True, kw_only=True):
    """A cardholder's objection. `moved`: what it took from the tenant's balance."""

    object: Literal["dispute"] = "dispute"
    id: str
    provider_id: str
    tenant_id: TenantId | None
    amount: str
    currency: str
    state: Literal["open", "withdrawn", "won", "lost"]
    reason: str
    moved: str
    created_at: Instant


class DisputeList(Page[DisputeObject], frozen=True):
    """Disputes, newest first."""


class TaskObject(Struct, frozen=True, kw_only=True):
    """What somebody in finance has to look at."""

    object: Literal["finance_task"] = "finance_task"
    id: str
    kind: str
    subject: str
    tenant_id: TenantId | None
    text: str
    state: Literal["open", "done"]
    created_at: Instant
    closed_at: Instant | None


class TaskList(Page[TaskObject], frozen=True):
    """Tasks, newest first."""


class DifferenceObject(Struct, frozen=True, kw_only=True):
    """Something that one side has otherwise than the other."""

    what: str
    subject: str
    detail: str


class ReconciliationObject(Struct, frozen=True, kw_only=True):
    """A comparison with the provider. `missed_events`: those that came by no webhook, and were taken from its list."""

    object: Literal["payment_reconciliation"] = "payment_reconciliation"
    id: str
    provider: str
    since: Instant
    until: Instant
    payments: int
    invoices: int
    missed_events: int
    differences: list[DifferenceObject]


class ReconciliationList(Page[ReconciliationObject], frozen=True):
    """Comparisons, newest first."""


class CollectionObject(Struct, frozen=True, kw_only=True):
    """An invoice or credit note at the payment provider. `none`: it is not there."""

    object: Literal["invoice.collection"] = "invoice.collection"
    invoice_id: InvoiceId
    provider: str | None
    state: Literal["none", "queued", "drafted", "pushed", "skipped", "differs", "refused"]
    url: str | None
    problem: str | None


class BankStatementObject(Struct, frozen=True, kw_only=True):
    """What a file of the bank brought: entries that were there before are not counted again."""

    object: Literal["bank_statement"] = "bank_statement"
    name: str
    account: str
    entries: int
    new_entries: int
    applied: int
    unapplied: int
    dry_run: bool


class CashOperations:
    """Shows what came in, and decides what nobody can be said to owe."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._database = gateway, gateway.services.database
        self._cash, self._refunds, self._disputes = (
            CashBook(self._database),
            Refunds(self._database),
            Disputes(self._database),
        )
        self._tasks, self._pusher = FinanceTasks(self._database), DocumentPusher(self._database)
        self._reconciler = Reconciler(self._database)

    @operation("GET", f"{_PAYMENTS}/provider", demands("payments.read", platform=True))
    async def retrieve_payment_provider(self) -> ProviderObject:
        """Who collects money here."""
        provider = self._gateway.services.payments
        if provider is None:
            return ProviderObject(provider=None, account=None, livemode=False, stand_in=False, key=None)
        return show(ProviderObject, provider, provider=provider.name, key=provider.fingerprint)

    @operation("GET", f"{_PAYMENTS}/receipts", demands("payments.read", platform=True))
    async def list_all_receipts(
        self, page: PageQuery, state: Annotated[ReceiptState | None, Query("Only in this state.")] = None
    ) -> ReceiptList:
        """Money that came in, of all tenants and of nobody yet, newest first."""
        after = uuid_at("after", page.after)
        rows = await self._cash.list(limit=page.limit + 1, state=state, after=after)
        return ReceiptList.of([_receipt(row) for row in rows], page.limit)

    @operation("GET", f"{_TENANT}/cash-receipts", demands("payments.read"))
    async def list_cash_receipts(self, tenant: Tenant, page: PageQuery) -> ReceiptList:
        """Money that came in from the tenant, newest first."""
        after = uuid_at("after", page.after)
        rows = await self._cash.list(limit=page.limit + 1, tenant_id=tenant.id, after=after)
        return ReceiptList.of([_receipt(row) for row in rows], page.limit)

    @operation(
        "POST",
        f"{_PAYMENTS}/receipts/{{receipt:str}}/apply",
        demands("balance.write"),
        example=Application(tenant="acme", reason="the bank says who paid", invoice="INV-2026-000001"),
        path={"receipt": _ID},
        errors={"payment_refused": 409, "wrong_currency": 409},
    )
    async def apply_receipt(self, call: Call, receipt: str, body: Application) -> ReceiptObject:
        """Let unapplied money pay an invoice, or put it into a tenant's balance."""
        owner = await visible_tenant(self._gateway, call.request, body.tenant, "balance.write")
        return _receipt(await self._cash.apply(_uuid("receipt", receipt), owner.id, body.invoice, body.reason))

    @operation(
        "POST",
        f"{_PAYMENTS}/receipts/{{receipt:str}}/return",
        demands("balance.write"),
        example=Decision("sent back to the payer"),
        path={"receipt": _ID},
        errors={"payment_refused": 409},
    )
    async def return_receipt(self, receipt: str, body: Decision) -> ReceiptObject:
        """Say that unapplied money was sent back, or is none of ours."""
        return _receipt(await self._cash.give_up(_uuid("receipt", receipt), body.reason))

    @operation(
        "POST",
        f"{_TENANT}/top-ups/{{top_up:str}}/refunds",
        demands("balance.write"),
        status=201,
        example=NewTopUpRefund(reason="asked for", amount="10.00"),
        path={"top_up": _ID},
        errors={"payment_refused": 409, "refund_refused": 409, "invalid_amount": 400},
    )
    async def refund_top_up(self, tenant: Tenant, top_up: str, body: NewTopUpRefund) -> TopUpRefundObject:
        """Pay a top-up back to the card, as far as its credit is unused. The worker sends it."""
        currency = (await self._cash.get_of_top_up(tenant.id, _uuid("top_up", top_up))).currency
        amount = None if body.amount is None else minor_at("$.amount", body.amount, currency)
        made = await self._refunds.create(
            tenant.id, _uuid("top_up", top_up), amount, body.reason, refund_id=uuid_at("$.id", body.id)
        )
        return _refund(made)

    @operation("GET", f"{_TENANT}/disputes", demands("payments.read"))
    async def list_disputes(self, tenant: Tenant, page: PageQuery) -> DisputeList:
        """The tenant's disputes, newest first."""
        after = uuid_at("after", page.after)
        rows = await self._disputes.list(limit=page.limit + 1, tenant_id=tenant.id, after=after)
        return DisputeList.of([_dispute(row) for row in rows], page.limit)

    @operation("GET", f"{_PAYMENTS}/disputes", demands("payments.read", platform=True))
    async def list_all_disputes(self, page: PageQuery) -> DisputeList:
        """The disputes of all tenants, newest first."""
        rows = await self._disputes.list(limit=page.limit + 1, after=uuid_at("after", page.after))
        return DisputeList.of([_dispute(row) for row in rows], page.limit)

    @operation("GET", f"{_PAYMENTS}/tasks", demands("payments.read", platform=True))
    async def list_finance_tasks(
        self, page: PageQuery, state: Annotated[Literal["open", "done"], Query("Only in this state.")] = "open"
    ) -> TaskList:
        """What somebody in finance has to look at, newest first."""
        rows = await self._tasks.list(limit=page.limit + 1, state=state, after=uuid_at("after", page.after))
        return TaskList.of([_task(row) for row in rows], page.limit)

    @operation(
        "POST",
        f"{_PAYMENTS}/tasks/{{task:str}}/close",
        demands("balance.write"),
        example=Decision("the customer was called"),
        path={"task": _ID},
        errors={"wrong_state": 409},
    )
    async def close_finance_task(self, task: str, body: Decision) -> TaskObject:
        """Say that a task is seen to."""
        return _task(await self._tasks.close(_uuid("task", task), body.reason))

    @operation("GET", f"{_PAYMENTS}/reconciliations", demands("payments.read", platform=True))
    async def list_payment_reconciliations(self, page: PageQuery) -> ReconciliationList:
        """Comparisons with the provider, newest first."""
        rows = await self._reconciler.recent(1000)
        rest = page.rest(rows, lambda row: row.id, lambda text: uuid_at("after", text), "reconciliation")
        return ReconciliationList.of([_reconciliation(row) for row in rest[: page.limit + 1]], page.limit)

    @operation("GET", f"{AT}/collection", demands("payments.read"), path=EXAMPLE)
    async def retrieve_invoice_collection(self, invoice: InvoiceOfTenant) -> CollectionObject:
        """Whether an invoice or credit note is at the payment provider, and where it is paid."""
        return _collection(invoice[1].id, await self._pusher.find(invoice[1].id))

    @operation(
        "POST",
        f"{AT}/push-again",
        demands("invoices.write"),
        example=Decision("the number is free again"),
        path=EXAMPLE,
        errors={"wrong_state": 409},
    )
    async def push_invoice_again(self, invoice: InvoiceOfTenant, body: Decision) -> CollectionObject:
        """Push a document again that differed at the provider, or that it refused."""
        tenant, record = invoice
        await self._pusher.push_again(tenant.id, record.id, body.reason)
        return _collection(record.id, await self._pusher.find(record.id))

    @operation(
        "POST",
        f"{_PAYMENTS}/statements",
        demands("balance.write"),
        example=NewBankStatement(name="november.csv", content="date,amount,currency,payer,reference,id\n"),
        errors={"statement_refused": 400},
    )
    async def import_bank_statement(self, body: NewBankStatement) -> BankStatementObject:
        """Book what came in by bank transfer: an entry counts once. What names one open invoice, and not more than is
        left of it, pays it; all else waits unapplied."""
        done = await import_statement(self._database, body.name, body.content, write=not body.dry_run)
        return _statement(done, dry_run=body.dry_run)


def _uuid(path: str, text: str) -> UUID:
    identity = uuid_at(path, text)
    assert identity is not None, "the path has it"
    return identity


def _tenant(identity: UUID | None) -> TenantId | None:
    return None if identity is None else TenantId.of(identity)


def _receipt(row: Receipt) -> ReceiptObject:
    subject = None if row.subject_id is None else str(row.subject_id)
    return show(ReceiptObject, row, id=str(row.id), tenant_id=_tenant(row.tenant_id), subject_id=subject,
                amount=format_minor(row.amount, row.currency), problem=row.problem or None)  # fmt: skip


def _refund(row: Refund) -> TopUpRefundObject:
    return show(TopUpRefundObject, row, id=str(row.id), amount=format_minor(row.amount, row.currency),
                problem=row.problem or None)  # fmt: skip


def _dispute(row: Dispute) -> DisputeObject:
    return show(DisputeObject, row, id=str(row.id), tenant_id=_tenant(row.tenant_id),
                amount=format_minor(row.amount, row.currency), moved=format_minor(row.moved, row.currency))  # fmt: skip


def _task(row: FinanceTask) -> TaskObject:
    return show(TaskObject, row, id=str(row.id), tenant_id=_tenant(row.tenant_id))


def _reconciliation(row: PaymentReconciliation) -> ReconciliationObject:
    differences = [DifferenceObject(what=one.what, subject=one.object, detail=one.detail) for one in row.differences]
    return show(ReconciliationObject, row, id=str(row.id), missed_events=row.missed, differences=differences)


def _collection(identity: UUID, row: PushedDocument | None) -> CollectionObject:
    return CollectionObject(
        invoice_id=InvoiceId.of(identity),
        provider=None if row is None else row.provider,
        state="none" if row is None else row.state,  # type: ignore[arg-type]  # of these
        url=row.url or None if row else None,
        problem=row.problem or None if row else None,
    )


def _statement(done: StatementImport, *, dry_run: bool) -> BankStatementObject:
    return show(BankStatementObject, done, dry_run=dry_run)
