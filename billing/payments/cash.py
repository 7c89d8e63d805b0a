"""Money that came in: booked once, under the id that its provider or bank gave it.

The row of a receipt and what it pays for are written in one transaction, so a payment that is told ten times pays once.
Amount, currency and tenant must be those of our own row; what is not goes to the suspense account: an unapplied receipt
and a task for finance.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid5

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.accounts.balances import CurrencyMismatch, begin_balance
from billing.integrity.recorded_tables import AUTO_TOP_UPS, CASH_RECEIPTS, TOP_UPS
from billing.invoices.collection import pay_in
from billing.invoices.errors import NumberRefused
from billing.invoices.parties.parties import InvalidParty
from billing.invoices.parties.store import lock_documents
from billing.invoices.store import InvoiceRecord, Invoices, lock_invoice
from billing.money import InvalidMoney, check_currency, format_minor
from billing.payments.credit import put_in
from billing.payments.errors import PaymentRefused, UnknownPayment
from billing.payments.jobs import queue_job
from billing.payments.notices import GRANTED, tell_of_top_up
from billing.payments.provider import MoneyIn
from billing.payments.recording import change_recorded, insert_recorded
from billing.payments.tasks import add_task
from billing.tables.invoices import invoice
from billing.tables.money import balance
from billing.tables.payments import auto_top_up, cash_receipt, payment_customer, payment_dispute, top_up
from storage.database.database import Database
from storage.free_text import REASON, check_text

_RECEIPT, _TOP_UP = cash_receipt.c, top_up.c
_NAMESPACE = UUID("3d1c4f0a-7a52-5a0e-9b46-0f6a1c9d2e11")
_MOST = 140
_UNBOOKABLE = (InvalidParty, NumberRefused, InvalidMoney, CurrencyMismatch)
"""Why money cannot be put in today, which is its tenant's matter alone: an unknown VAT rate, a refused number."""


class Receipt(msgspec.Struct, frozen=True):
    """Money that came in. `amount` in minor units, instants in microseconds since the Unix epoch."""

    id: UUID
    provider: str
    provider_id: str
    tenant_id: UUID | None
    amount: int
    currency: str
    purpose: str
    subject_id: UUID | None
    payer: str
    reference: str
    state: str
    problem: str
    received_at: int


_COLUMNS = [_RECEIPT[name] for name in Receipt.__struct_fields__]


def receipt_id(provider: str, provider_id: str) -> UUID:
    """The id of a receipt: it follows from what its provider calls it."""
    return uuid5(_NAMESPACE, f"{provider}:{provider_id}")


class CashBook:
    """Books what came in. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take_top_up(self, money: MoneyIn, top_up_id: UUID | None, customer: str) -> bool:
        """Put in what a top-up has paid; False if it was booked before. What cannot be put in today is suspended."""
        try:
            return await self._take_top_up(money, top_up_id, customer)
        except _UNBOOKABLE as error:  # what was written is rolled back
            return await self.suspend(money, str(error), await self._tenant_of(top_up_id))

    async def _take_top_up(self, money: MoneyIn, top_up_id: UUID | None, customer: str) -> bool:
        async with self._database.transaction() as session:
            if not await self._is_new(session, money):
                return False
            row = await self._lock_top_up(session, top_up_id)
            problem = await self._problem(session, money, row, customer)
            if problem:
                await self._suspend(session, money, problem, None if row is None else row.tenant_id)
                return True
            await self._insert(session, money, row.tenant_id, "top_up", row.id)
            reason = f"top-up by {money.provider}"
            credit = await put_in(self._database, session, row.id, row.tenant_id, row.amount, row.currency, reason)
            await change_recorded(session, TOP_UPS, "top_up.granted", row.id, {
                "state": "granted", "payment_id": money.id, "credit_pico": credit, "code": "",
                "updated_at": self._database.clock,
            })  # fmt: skip
            await self._forget_failures(session, row.tenant_id)
            await tell_of_top_up(self._database, session, GRANTED, row)
            return True

    async def take_invoice_payment(self, money: MoneyIn, tenant_id: UUID, invoice_id: UUID) -> bool:
        """Book what was paid for one of our invoices; what is more than was left of it goes to the tenant's balance.
        False if it was booked before. Where that rest cannot be put in today, all of it is suspended."""
        try:
            async with self._database.transaction() as session:
                if not await self._is_new(session, money):
                    return False
                await self._apply_to_invoice(session, money, tenant_id, invoice_id, is_new=True)
                return True
        except _UNBOOKABLE as error:  # what was written is rolled back
            return await self.suspend(money, str(error), tenant_id)

    async def suspend(self, money: MoneyIn, problem: str, tenant_id: UUID | None = None) -> bool:
        """Keep money that nobody can be said to owe; False if it was booked before."""
        async with self._database.transaction() as session:
            if not await self._is_new(session, money):
                return False
            await self._suspend(session, money, problem, tenant_id)
            return True

    async def apply(self, receipt: UUID, tenant_id: UUID, number: str | None, reason: str) -> Receipt:
        """Let unapplied money pay an invoice of a tenant, or (without a number) go to its balance. Raises
        UnknownPayment, PaymentRefused, UnknownInvoice, CurrencyMismatch, InvalidText."""
        check_text("reason", reason, REASON)
        try:
            await self._apply(receipt, tenant_id, number, reason)
        except (InvalidParty, NumberRefused, InvalidMoney) as error:
            raise PaymentRefused(f"the money cannot be put in: {error}") from error
        return await self.get(receipt)

    async def _apply(self, receipt: UUID, tenant_id: UUID, number: str | None, reason: str) -> None:
        record = None if number is None else await Invoices(self._database).of_tenant(tenant_id, number)
        async with self._database.transaction() as session:
            row = await self._lock_unapplied(session, receipt)
            money = MoneyIn(provider=row.provider, id=row.provider_id, amount=row.amount, currency=row.currency, at=0)
            if record is not None:
                await self._apply_to_invoice(session, money, tenant_id, record.id, is_new=False, reason=reason)
            else:
                text = f"payment by {row.provider}"
                values = {"state": "applied", "purpose": "top_up", "subject_id": row.id, "tenant_id": tenant_id}
                await put_in(self._database, session, row.id, tenant_id, row.amount, row.currency, text)
                await self._change(session, row.id, values, reason)

    async def give_up(self, receipt: UUID, reason: str) -> Receipt:
        """Say that unapplied money was sent back, or is none of ours. Raises UnknownPayment, PaymentRefused."""
        check_text("reason", reason, REASON)
        async with self._database.transaction() as session:
            row = await self._lock_unapplied(session, receipt)
            await self._change(session, row.id, {"state": "returned"}, reason)
        return await self.get(receipt)

    async def get(self, receipt: UUID) -> Receipt:
        """A receipt. Raises UnknownPayment."""
        async with self._database.reading() as session:
            # all tenants: an unapplied receipt may be nobody's yet
            row = (await session.execute(select(*_COLUMNS).where(_RECEIPT.id == receipt))).one_or_none()
        if row is None:
            raise UnknownPayment("there is no such receipt")
        return Receipt(*row)

    async def get_of_top_up(self, tenant_id: UUID, top_up_id: UUID) -> Receipt:
        """The money that came for a tenant's top-up. Raises UnknownPayment."""
        query = select(*_COLUMNS).where(_RECEIPT.tenant_id == tenant_id, _RECEIPT.subject_id == top_up_id)
        async with self._database.reading() as session:
            row = (await session.execute(query.where(_RECEIPT.purpose == "top_up"))).one_or_none()
        if row is None:
            raise UnknownPayment("no money came for such a top-up")
        return Receipt(*row)

    async def list(
        self, *, limit: int, state: str | None = None, tenant_id: UUID | None = None, after: UUID | None = None
    ) -> list[Receipt]:
        """Receipts of a tenant or (None) of all, the newest first, behind the receipt `after`."""
        query = select(*_COLUMNS).order_by(_RECEIPT.received_at.desc(), _RECEIPT.id.desc())
        if tenant_id is not None:
            query = query.where(_RECEIPT.tenant_id == tenant_id)
        if state is not None:
            query = query.where(_RECEIPT.state == state)
        if after is not None:
            last = select(_RECEIPT.received_at).where(_RECEIPT.id == after).scalar_subquery()
            query = query.where(
                (_RECEIPT.received_at < last) | ((_RECEIPT.received_at == last) & (_RECEIPT.id < after))
            )
        async with self._database.reading() as session:
            return [Receipt(*row) for row in await session.execute(query.limit(limit))]

    # ------------------------------------------------------------ inside a transaction

    async def _is_new(self, session: AsyncSession, money: MoneyIn) -> bool:
        """Whether nobody has booked it; others that book it wait for this transaction."""
        identity = receipt_id(money.provider, money.id)
        await self._database.lock_rows_of(session, cash_receipt, identity)
        # all tenants: a provider's id is one for all of them
        return await session.scalar(select(_RECEIPT.id).where(_RECEIPT.id == identity)) is None

    async def _tenant_of(self, top_up_id: UUID | None) -> UUID | None:
        async with self._database.reading() as session:
            # all tenants: the row says whose it is
            tenant_id: UUID | None = await session.scalar(select(_TOP_UP.tenant_id).where(_TOP_UP.id == top_up_id))
        return tenant_id

    async def _lock_top_up(self, session: AsyncSession, top_up_id: UUID | None) -> Any:
        if top_up_id is None:
            return None
        # all tenants: the row says whose it is
        query = self._database.locked(select(top_up).where(_TOP_UP.id == top_up_id))
        return (await session.execute(query)).one_or_none()

    async def _problem(self, session: AsyncSession, money: MoneyIn, row: Any, customer: str) -> str:
        """Why money is not what the top-up asked for; "" if it is."""
        if row is None:
            return "it names no top-up of ours"
        known = select(payment_customer.c.tenant_id).where(
            payment_customer.c.provider == money.provider, payment_customer.c.provider_id == customer
        )
        if await session.scalar(known) != row.tenant_id or row.provider != money.provider:
            return "its customer is not the tenant of the top-up"
        if row.state == "granted" or row.payment_id not in (None, money.id):
            return f"the top-up has another payment, {row.payment_id}"
        if (money.amount, money.currency) != (row.amount, row.currency):
            asked = f"{format_minor(row.amount, row.currency)} {row.currency}"
            return f"{_shown(money)} came, {asked} were asked for"
        try:
            await begin_balance(self._database, session, row.tenant_id, row.currency)
        except CurrencyMismatch as error:
            return str(error)
        has = await session.scalar(select(balance.c.currency).where(balance.c.tenant_id == row.tenant_id))
        return "" if has == row.currency else f"the tenant's balance is in {has}"

    async def _apply_to_invoice(
        self,
        session: AsyncSession,
        money: MoneyIn,
        tenant_id: UUID,
        invoice_id: UUID,
        *,
        is_new: bool,
        reason: str = "",
    ) -> None:
        await lock_documents(self._database, session, tenant_id)
        record = await lock_invoice(self._database, session, tenant_id, invoice_id)
        problem = _problem_of_invoice(record, money)
        if problem and not is_new:
            raise PaymentRefused(problem)
        if problem:
            await self._suspend(session, money, problem, tenant_id)
            return
        identity = receipt_id(money.provider, money.id)
        if is_new:
            await self._insert(session, money, tenant_id, "invoice", record.id)
        else:
            values = {"state": "applied", "purpose": "invoice", "subject_id": record.id, "tenant_id": tenant_id}
            await self._change(session, identity, values, reason)
        amount = min(money.amount, record.left)
        await pay_in(self._database, session, record, payment_reference(money), amount)
        if money.amount > amount:
            over, text = uuid5(identity, "overpaid"), f"paid beyond {record.name}"
            await put_in(self._database, session, over, tenant_id, money.amount - amount, money.currency, text)

    async def _suspend(self, session: AsyncSession, money: MoneyIn, problem: str, tenant_id: UUID | None) -> None:
        await self._insert(session, money, tenant_id, "unmatched", None, problem=problem)
        text = f"{_shown(money)} by {money.provider} ({money.id}): {problem}"
        await add_task(self._database, session, "unmatched_money", money.id, text, tenant_id)

    async def _insert(  # noqa: PLR0917
        self,
        session: AsyncSession,
        money: MoneyIn,
        tenant_id: UUID | None,
        purpose: str,
        subject_id: UUID | None,
        problem: str = "",
    ) -> None:
        try:
            check_currency(money.currency)
        except InvalidMoney as error:
            raise PaymentRefused(str(error)) from error
        row = {
            **{"id": receipt_id(money.provider, money.id), "provider": money.provider, "provider_id": money.id},
            **{"tenant_id": tenant_id, "amount": money.amount, "currency": money.currency, "purpose": purpose},
            **{"subject_id": subject_id, "payer": money.payer[:_MOST], "reference": money.reference[:_MOST]},
            **{"state": "unapplied" if subject_id is None else "applied", "problem": problem[:REASON]},
            **{"received_at": money.at, "updated_at": self._database.clock},
        }
        await insert_recorded(session, CASH_RECEIPTS, "cash.received", row)
        await self._follow_disputes(session, money.provider, receipt_id(money.provider, money.id))

    async def _follow_disputes(self, session: AsyncSession, provider: str, receipt: UUID) -> None:
        """Let disputes take the money that came, or was applied, later than they did."""
        of = payment_dispute.c
        # all tenants: a dispute without a receipt is nobody's yet
        waiting = select(of.provider_id).where(of.provider == provider, of.state != "won", of.moved == 0)
        waiting = waiting.where(of.receipt_id.is_(None) | (of.receipt_id == receipt))
        for dispute in list(await session.scalars(waiting)):
            await queue_job(self._database, session, "dispute", dispute)

    async def _lock_unapplied(self, session: AsyncSession, receipt: UUID) -> Any:
        await self._database.lock_rows_of(session, cash_receipt, receipt)
        # all tenants: an unapplied receipt may be nobody's yet
        query = self._database.locked(select(cash_receipt).where(_RECEIPT.id == receipt))
        row = (await session.execute(query)).one_or_none()
        if row is None:
            raise UnknownPayment("there is no such receipt")
        if row.state != "unapplied":
            raise PaymentRefused(f"the receipt is {row.state} already")
        return row

    async def _change(self, session: AsyncSession, receipt: UUID, values: dict[str, Any], reason: str) -> None:
        # tenant: whoever changes it has locked the receipt
        values |= {"problem": "", "updated_at": self._database.clock}
        await change_recorded(session, CASH_RECEIPTS, f"cash.{values['state']}", receipt, values, reason)
        provider = await session.scalar(select(_RECEIPT.provider).where(_RECEIPT.id == receipt))
        await self._follow_disputes(session, str(provider), receipt)

    async def _forget_failures(self, session: AsyncSession, tenant_id: UUID) -> None:
        of = auto_top_up.c
        failed = select(of.failures).where(of.tenant_id == tenant_id)
        if await session.scalar(failed):
            values = {"failures": 0, "next_at": 0, "updated_at": self._database.clock}
            await change_recorded(session, AUTO_TOP_UPS, "auto_top_up.succeeded", tenant_id, values)


def payment_reference(money: MoneyIn) -> str:
    """What an invoice's payment is called: of this money there is one."""
    return f"{money.provider} {money.id}"


def _problem_of_invoice(record: InvoiceRecord, money: MoneyIn) -> str:
    if record.kind != "invoice" or record.state == "draft":
        return f"{record.name} is no issued invoice"
    if record.currency != money.currency:
        return f"{_shown(money)} came, {record.name} is in {record.currency}"
    if not record.left:
        return f"nothing is left to pay of {record.name}, which is {record.state}"
    return ""


def _shown(money: MoneyIn) -> str:
    return f"{format_minor(money.amount, money.currency)} {money.currency}"


async def find_open_invoices(database: Database, currency: str) -> list[tuple[UUID, UUID, str, int]]:
    """The invoices that are to be paid in a currency: tenant, id, number, and what is left in minor units."""
    row = invoice.c
    query = select(row.tenant_id, row.id, row.number, row.payable - row.paid - row.credited)
    open_ones = row.state.in_(("finalized", "partially_paid", "uncollectible")) & (row.kind == "invoice")
    async with database.reading() as session:  # all tenants: a bank's entry may be anybody's
        rows = await session.execute(query.where(open_ones, row.currency == currency))
        return [(tenant, identity, number, left) for tenant, identity, number, left in rows if left > 0]
