"""A statement of account: what a tenant had or owed when a month began, what changed it, and what it had or owed after.

An account is what the ledger has of the tenant's money: credit that it paid for, less what it owes for usage and for
what invoices ask beyond usage. Months are those of the journal, so a statement agrees with the journal's rows of
`prepaid`, `receivable` and `invoiced` to the pico-unit. Usage counts when it happens, a day a line; an invoice then
asks for the rest (VAT, minimums, fees, rounding). Usage that a gift pays for does not touch the account.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Literal
from uuid import UUID, uuid5

from msgspec import Struct
from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.calendar import check_period, period_bounds
from billing.exports.datasets import Column, Dataset, ExportQuery, ExportSnapshot, Row
from billing.exports.journal import before_month, of_month, of_tenant
from billing.invoices.accounting.posting import step_id
from billing.ledger.entries import OF_EVENTS
from billing.tables.invoices import invoice, invoice_payment
from billing.tables.money import ledger_entry, ledger_txn
from billing.tables.payments import payment_dispute, payment_refund
from storage.database.database import Database

ACCOUNTS = ("prepaid", "receivable", "invoiced")
"""The ledger's accounts that a statement is about."""
_DAY = 86_400_000_000
AccountLineKind = Literal[
    "opening", "usage", "invoice", "advance", "credit_note", "void", "payment", "refund", "dispute", "return", "expiry",
    "other", "closing",
]  # fmt: skip
"""What a line says: the balance before and after the month, and what changed it. `advance`: the VAT of an
advance-payment invoice. `return`: what contract terms gave back. `dispute`: what a payer's bank took, or gave back."""


class AccountLine(Struct, frozen=True):
    """What changed an account (more than zero: for the tenant), and the balance after it, in pico-units. `number` is
    the document's, or that of the invoice that was paid; `text` the payment's reference, or the reason."""

    at: int
    kind: AccountLineKind
    number: str
    text: str
    amount_pico: int
    balance_pico: int


class AccountStatement(Struct, frozen=True):
    """The account of one tenant in one currency; the first line is `opening`, the last `closing`."""

    tenant_id: UUID
    currency: str
    lines: list[AccountLine]


async def account_statements(database: Database, tenant_id: UUID, period: str) -> list[AccountStatement]:
    """The tenant's statements of a month, one for each currency in which it ever had money. Raises InvalidPeriod,
    DatabaseUnavailable."""
    async with database.reading() as session:
        return await _statements(session, tenant_id, check_period(period))


async def _statements(session: AsyncSession, tenant_id: UUID, period: str) -> list[AccountStatement]:
    entry, (first, after) = ledger_entry.c, period_bounds(period)
    begun = select(entry.currency, _moved()).join_from(ledger_entry, ledger_txn, entry.txn_id == ledger_txn.c.id)
    begun = begun.where(entry.tenant_id == tenant_id, before_month(period)).group_by(entry.currency)
    opening = {row.currency: int(row.moved) for row in await session.execute(begun)}
    changes: dict[str, list[AccountLine]] = {currency: [] for currency in opening}
    documents = await _Documents.read(session, tenant_id)
    for row in [*await _usage(session, tenant_id, period), *await _others(session, tenant_id, period)]:
        kind, number, text = documents.explain(row)
        # A transaction of a period may be posted a moment after its month ended.
        at = min(max(row.at, first), after - 1)
        changes.setdefault(row.currency, []).append(AccountLine(at, kind, number, text, int(row.moved), 0))
    return [
        AccountStatement(tenant_id, currency, _with_balances(opening.get(currency, 0), changes[currency], first, after))
        for currency in sorted(changes)
    ]


def _with_balances(opening: int, changes: Iterable[AccountLine], first: int, after: int) -> list[AccountLine]:
    """The lines in their order, parts of one payment or credit note made one, between opening and closing."""
    lines = [AccountLine(first, "opening", "", "", 0, opening)]
    merged: dict[tuple[Any, ...], AccountLine] = {}
    for line in sorted(changes, key=lambda one: one.at):
        key = (line.at // _DAY, line.kind, line.number, line.text)
        before = merged.get(key)
        amount = line.amount_pico + (0 if before is None else before.amount_pico)
        merged[key] = AccountLine(line.at, line.kind, line.number, line.text, amount, 0)
    balance = opening
    for line in merged.values():
        if line.amount_pico:
            balance += line.amount_pico
            lines.append(AccountLine(line.at, line.kind, line.number, line.text, line.amount_pico, balance))
    return [*lines, AccountLine(after - 1, "closing", "", "", 0, balance)]


def _moved() -> ColumnElement[Any]:
    """What entries change in the account."""
    entry = ledger_entry.c
    credit, debit = (case((side.in_(ACCOUNTS), entry.amount_pico), else_=0) for side in (entry.credit, entry.debit))
    return func.sum(credit - debit).label("moved")


async def _usage(session: AsyncSession, tenant_id: UUID, period: str) -> Sequence[Any]:
    txn, entry = ledger_txn.c, ledger_entry.c
    day = txn.posted_at.op("/")(_DAY).label("day")
    query = (
        select(entry.currency, day, func.max(txn.posted_at).label("at"), _moved())
        .join_from(ledger_entry, ledger_txn, entry.txn_id == txn.id)
        .where(entry.tenant_id == tenant_id, of_month(period), txn.kind.in_(OF_EVENTS))
        .group_by(entry.currency, day)
        .order_by(entry.currency, day)
    )
    return (await session.execute(query)).all()


async def _others(session: AsyncSession, tenant_id: UUID, period: str) -> Sequence[Any]:
    txn, entry = ledger_txn.c, ledger_entry.c
    columns = (txn.id, txn.kind, txn.memo, txn.posted_at.label("at"), entry.currency)
    gift = func.max(case((entry.debit == "goodwill", 1), else_=0)).label("gift")
    query = (
        select(*columns, _moved(), gift)
        .join_from(ledger_entry, ledger_txn, entry.txn_id == txn.id)
        .where(entry.tenant_id == tenant_id, of_month(period), txn.kind.not_in(OF_EVENTS))
        .group_by(txn.id, txn.kind, txn.memo, txn.posted_at, entry.currency)
        .order_by(txn.posted_at, txn.id)
    )
    return (await session.execute(query)).all()


class _Documents:
    """Knows what a transaction belongs to, by the ids that follow from documents, payments and disputes."""

    def __init__(self) -> None:
        self._of: dict[UUID, tuple[AccountLineKind, str, str]] = {}

    @classmethod
    async def read(cls, session: AsyncSession, tenant_id: UUID) -> _Documents:
        """Those of a tenant."""
        found, row, payment = cls(), invoice.c, invoice_payment.c
        issued = select(row.id, row.kind, row.number).where(row.tenant_id == tenant_id, row.number.is_not(None))
        for document, kind, number in await session.execute(issued):
            found._of[step_id(document, "finalize")] = (kind, number, "")
            found._of[step_id(document, "void")] = ("void", number, "")
            found._of[document] = (kind, number, "")  # what a credit note puts into the balance
        paid = select(payment.id, payment.reference, payment.invoice_id, row.number)
        paid = paid.join_from(invoice_payment, invoice, payment.invoice_id == row.id)
        for identity, reference, document, number in await session.execute(paid.where(payment.tenant_id == tenant_id)):
            for one in (identity, step_id(document, f"payment:{reference}:rest"), step_id(document, "payment:rest")):
                found._of[one] = ("payment", str(number), reference)
        await found._read_disputes(session, tenant_id)
        return found

    async def _read_disputes(self, session: AsyncSession, tenant_id: UUID) -> None:
        dispute, refund = payment_dispute.c, payment_refund.c
        disputed = select(dispute.id, dispute.provider_id, dispute.receipt_id).where(dispute.tenant_id == tenant_id)
        disputes = (await session.execute(disputed)).all()
        failed = select(refund.id, refund.receipt_id).where(refund.tenant_id == tenant_id, refund.state == "failed")
        again: dict[UUID | None, list[UUID]] = {}  # credit that came back of a payment, which its bank may take too
        for identity, receipt in await session.execute(failed):
            again.setdefault(receipt, []).append(uuid5(identity, "failed"))
        for row in disputes:
            again.setdefault(row.receipt_id, []).extend(uuid5(row.id, step) for step in ("won", "won:used"))
        for row in disputes:
            withdrawn, won = uuid5(row.id, "withdrawn"), uuid5(row.id, "won")
            steps = [withdrawn, *(uuid5(withdrawn, str(grant)) for grant in again[row.receipt_id])]
            for step in (*steps, won, uuid5(won, "rounded"), uuid5(row.id, "won:used")):
                self._of[step] = ("dispute", "", row.provider_id)

    def explain(self, row: Any) -> tuple[AccountLineKind, str, str]:
        """Kind, number and text of the line of a transaction, or of a day's usage."""
        if not hasattr(row, "id"):
            return "usage", "", ""
        if row.id in self._of:
            return self._of[row.id]
        kinds: dict[str, AccountLineKind] = {"refund": "refund", "return": "return", "expiry": "expiry"}
        if row.kind == "grant" and not row.gift:
            return "payment", "", row.memo
        return kinds.get(row.kind, "other"), "", row.memo


async def _rows(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    entry = ledger_entry.c
    tenants = select(entry.tenant_id).where(*of_tenant(wanted, entry.tenant_id)).distinct().order_by(entry.tenant_id)
    for tenant_id in (await snapshot.session.scalars(tenants)).all():
        name = wanted.names.tenants.get(tenant_id)
        yield [
            (wanted.period, tenant_id, name, line.at, line.kind, line.number or None, line.text or None,
             statement.currency, line.amount_pico, line.balance_pico)
            for statement in await _statements(snapshot.session, tenant_id, wanted.period)
            for line in statement.lines
        ]  # fmt: skip


ACCOUNT = Dataset(
    name="account",
    title="Statements of account",
    about="what each tenant had or owed, what changed it, and what it has or owes after the month",
    columns=(
        Column("month", "text"),
        Column("tenant_id", "id"),
        Column("tenant", "text"),
        Column("date", "date", "day in UTC, within the month"),
        Column(
            "kind",
            "text",
            "opening, usage, invoice, advance, credit_note, void, payment, refund, dispute, return, expiry or closing",
        ),
        Column("number", "text", "of the document, or of the invoice that was paid"),
        Column("reference", "text", "of the payment, or the reason that was given"),
        Column("currency", "text"),
        Column("amount", "money", "more than 0: for the tenant"),
        Column("balance", "money", "after it; less than 0: the tenant owes it"),
    ),
    rows=_rows,
    sums=("amount",),
)
