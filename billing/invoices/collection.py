"""Collecting an issued invoice: payments, voiding, and writing off what is not collected."""

from __future__ import annotations

from uuid import UUID

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.accounts.balances import settle_payment
from billing.integrity.row_seals import seal_rows
from billing.invoices.accounting.draws import return_draws
from billing.invoices.accounting.losses import (
    VAT_RELIEF,
    WRITE_OFF,
    is_posted,
    post_recovery,
    vat_relief_entries,
    write_off_entries,
)
from billing.invoices.accounting.posting import balanced_entries, entries_of, post, reversed_entries, step_id
from billing.invoices.errors import AmountRefused, DocumentRefused, ReferenceTaken, WrongState
from billing.invoices.parties.store import lock_documents
from billing.invoices.recording import TOPICS, record_document, send_notice
from billing.invoices.store import (
    InvoiceRecord,
    InvoiceState,
    check_transition,
    lock_invoice,
    settled_state,
    update_invoice,
)
from billing.ledger.entries import Entry
from billing.money import format_minor, minor_to_pico
from billing.tables.invoices import invoice_payment
from billing.transaction.money_transaction import Grant
from storage.database.database import Database
from storage.free_text import check_text

MOST_TEXT = 200
"""Characters of a payment's reference and of a credit note's reason."""

_RECORDED: dict[InvoiceState, str] = {"void": "invoice.voided", "uncollectible": "invoice.marked_uncollectible"}
_VAT_RELIEVED = "invoice.vat_relieved"


async def pay(
    database: Database, record: InvoiceRecord, reference: str, amount: int | None = None, *, write: bool = True
) -> InvoiceRecord:
    """Record a payment of an invoice, and return the invoice afterwards.

    `amount` is in minor units; None pays all that is left. `reference` identifies the payment: recording it again
    changes nothing. What pays for usage goes to the tenant's balance in the same transaction. Without `write` this is a
    dry run.

    Raises WrongState, DocumentRefused, ReferenceTaken, AmountRefused, InvalidText, DatabaseUnavailable.
    """
    async with database.transaction(write=write) as session:
        return await pay_in(database, session, record, reference, amount)


async def pay_in(
    database: Database, session: AsyncSession, record: InvoiceRecord, reference: str, amount: int | None = None
) -> InvoiceRecord:
    """As `pay`, in this transaction: with what says where the money came from."""
    if record.kind != "invoice":
        raise DocumentRefused(f"{record.name} is no invoice that can be paid")
    check_text("reference", reference, MOST_TEXT)
    payment_id = payment_id_of(record, reference)
    await lock_documents(database, session, record.tenant_id)
    current = await lock_invoice(database, session, record.tenant_id, record.id)
    of_payment = select(invoice_payment).where(invoice_payment.c.id == payment_id)
    recorded = (await session.execute(of_payment)).one_or_none()
    if recorded is None:
        usage_pico = await _record_payment(database, session, current, reference, amount)
    elif amount not in (None, recorded.amount):
        paid = format_minor(recorded.amount, current.currency)
        raise ReferenceTaken(f"payment {reference!r} of {current.name} was recorded with {paid} {current.currency}")
    else:
        usage_pico = int(recorded.usage_pico)
    if usage_pico:
        reason = f"payment of {record.name}"
        grant = Grant(payment_id, record.tenant_id, usage_pico, record.currency, "paid", reason)
        await settle_payment(database, session, grant)
    after = await lock_invoice(database, session, record.tenant_id, record.id)
    if recorded is None:
        await record_document(session, "invoice.payment_recorded", current, after, f"reference {reference}")
    return after


def payment_id_of(record: InvoiceRecord, reference: str) -> UUID:
    """The id of a payment of a tenant's invoice, and of the grant of what it pays for usage; it follows from both."""
    return step_id(record.id, f"payment:{reference}")


async def _record_payment(
    database: Database, session: AsyncSession, current: InvoiceRecord, reference: str, amount: int | None
) -> int:
    """Write the payment and its effect on the invoice; return the part that pays for usage, in pico-units."""
    payment_id = payment_id_of(current, reference)
    if current.state in ("draft", "void", "paid", "credited"):
        raise WrongState(current.name, current.state, "paid")
    amount = current.left if amount is None else amount
    if not 0 < amount <= current.left:
        left = f"{format_minor(current.left, current.currency)} {current.currency}"
        raise AmountRefused(f"{format_minor(amount, current.currency)} is not what is left of {current.name}: {left}")
    pico = minor_to_pico(amount, current.currency)
    usage_pico = max(0, min(pico, current.owed_pico - current.settled_pico))
    row = {
        "id": payment_id,
        "invoice_id": current.id,
        "tenant_id": current.tenant_id,
        "amount": amount,
        "currency": current.currency,
        "usage_pico": usage_pico,
        "reference": reference,
        "at": database.clock,
    }
    await session.execute(insert(invoice_payment).values(row))
    await seal_rows(session, invoice_payment, invoice_payment.c.id == payment_id)
    rest = balanced_entries(("clearing", "invoiced", pico - usage_pico))
    await post(database, session, current, f"payment:{reference}:rest", rest, memo=f"payment of {current.name}")
    settled_pico = current.settled_pico + usage_pico
    changes = {"paid": current.paid + amount, "settled_pico": settled_pico}
    await settle_invoice(database, session, current, f"payment:{reference}", **changes)
    return usage_pico


async def settle_invoice(
    database: Database, session: AsyncSession, current: InvoiceRecord, step: str, **changes: int
) -> None:
    """Write amounts of an invoice that a step paid or credited, with the state and the recovery that follow."""
    after = msgspec.structs.replace(current, **changes)
    await post_recovery(database, session, current, after, f"{step}:recovery")
    state = current.state
    if 0 < after.gross == after.credited:
        state = check_transition(current.name, current.state, "credited")
    elif current.left:
        settled = bool(after.paid or after.credited)
        state = settled_state(current.name, current.state, left=after.left, settled=settled)
    await update_invoice(session, current, {"state": state, **changes})
    if state != current.state:
        await send_notice(database, session, TOPICS[state], msgspec.structs.replace(after, state=state))


async def void(database: Database, record: InvoiceRecord, reason: str, *, write: bool = True) -> InvoiceRecord:
    """Void an invoice that nothing was paid or credited of, and return it. Its period can be invoiced again.

    The number stays in the series. Raises WrongState, DocumentRefused, InvalidText, DatabaseUnavailable.
    """
    check_text("reason", reason, MOST_TEXT)
    async with database.transaction(write=write) as session:
        await lock_documents(database, session, record.tenant_id)
        current = await lock_invoice(database, session, record.tenant_id, record.id)
        if current.kind == "credit_note":
            raise DocumentRefused(f"{current.name} is a credit note, which cannot be voided; invoice the amount again")
        if current.kind == "advance":
            raise DocumentRefused(f"{current.name} is paid; refund what is left of its credit instead")
        if current.paid or current.credited:
            raise DocumentRefused(f"{current.name} is partly paid or credited; write a credit note instead")
        entries = reversed_entries(entries_of(current))
        after = await _change_state(database, session, current, "void", entries, reason=reason)
        await return_draws(database, session, current)
        return after


async def mark_uncollectible(
    database: Database, record: InvoiceRecord, reason: str, *, write: bool = True
) -> InvoiceRecord:
    """Write off what is left of an invoice, and return it. The tenant still owes it, and it can still be paid.

    Raises WrongState, InvalidText, DatabaseUnavailable.
    """
    check_text("reason", reason, MOST_TEXT)
    async with database.transaction(write=write) as session:
        await lock_documents(database, session, record.tenant_id)
        current = await lock_invoice(database, session, record.tenant_id, record.id)
        if current.state == "uncollectible" and await is_posted(session, current, WRITE_OFF):
            raise WrongState(current.name, current.state, "uncollectible")
        entries = write_off_entries(current)
        return await _change_state(database, session, current, "uncollectible", entries, reason=reason)


async def relieve_vat(database: Database, record: InvoiceRecord, reason: str, *, write: bool = True) -> InvoiceRecord:
    """Book that the VAT on what is left of a written-off invoice is claimed back as of today, and return the invoice.

    Raises WrongState, DocumentRefused, InvalidText, DatabaseUnavailable.
    """
    check_text("reason", reason, MOST_TEXT)
    async with database.transaction(write=write) as session:
        await lock_documents(database, session, record.tenant_id)
        current = await lock_invoice(database, session, record.tenant_id, record.id)
        if current.state != "uncollectible" or not await is_posted(session, current, WRITE_OFF):
            raise WrongState(current.name, current.state, "relieved of its VAT", "write it off first")
        if await is_posted(session, current, VAT_RELIEF):
            raise DocumentRefused(f"{current.name} is relieved of its VAT already")
        entries = vat_relief_entries(current)
        if not entries:
            raise DocumentRefused(f"no VAT is left of {current.name}")
        await post(database, session, current, VAT_RELIEF, entries, memo=f"{current.name}: VAT claimed back")
        await record_document(session, _VAT_RELIEVED, current, current, reason)
        return current


async def _change_state(
    database: Database,
    session: AsyncSession,
    current: InvoiceRecord,
    state: InvoiceState,
    entries: list[Entry],
    *,
    reason: str,
) -> InvoiceRecord:
    check_transition(current.name, current.state, state)
    await update_invoice(session, current, {"state": state})
    await post(database, session, current, state, entries, memo=f"{current.name} {state}")
    after = await lock_invoice(database, session, current.tenant_id, current.id)
    await send_notice(database, session, TOPICS[state], after)
    await record_document(session, _RECORDED[state], current, after, reason)
    return after
