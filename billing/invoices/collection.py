"""What happens to an invoice after it is out: it is paid, in one or several parts, voided, or given up."""

from __future__ import annotations

from uuid import UUID

import msgspec
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from billing.accounts.balances import settle_payment
from billing.integrity.row_seals import seal_rows
from billing.invoices.errors import AmountRefused, WrongState
from billing.invoices.minor_units import format_minor, minor_unit
from billing.invoices.notices import notice, topic_of
from billing.invoices.party_store import lock_documents
from billing.invoices.posting import entries_of, moves, post, reversed_entries, step_id, write_to_outbox
from billing.invoices.records import InvoiceRecord, locked
from billing.invoices.states import InvoiceState, after_settling, follow
from billing.ledger.entries import Entry
from billing.tables.invoices import invoice, invoice_payment
from billing.transaction.money_transaction import Grant
from storage.database.database import Database, transaction
from storage.free_text import check_text

MOST_TEXT = 200


async def pay(
    database: Database, record: InvoiceRecord, reference: str, amount: int | None = None, *, write: bool = True
) -> InvoiceRecord:
    """Money came in for an invoice: `amount` in minor units, or all that is left. Returns how it stands then.

    A payment that is told again under the same reference counts once. What pays for usage goes to the tenant's balance,
    in the same transaction. Without `write` nothing changes.

    Raises WrongState, AmountRefused, InvalidText, DatabaseUnavailable.
    """
    if record.kind != "invoice":
        raise AmountRefused(f"{record.name} is a credit note: nobody pays it")
    check_text("reference", reference, MOST_TEXT)
    identity = step_id(record.id, f"payment:{reference}")
    async with transaction(database, write=write) as session:
        await lock_documents(database, session, record.tenant_id)
        now = await locked(database, session, record.id)
        known = (await session.execute(select(invoice_payment).where(invoice_payment.c.id == identity))).one_or_none()
        if known is None:
            usage = await _receive(database, session, now, identity=identity, reference=reference, amount=amount)
        elif amount not in (None, known.amount):
            paid = format_minor(known.amount, now.currency)
            raise AmountRefused(f"payment {reference!r} of {now.name} was {paid} {now.currency}, not another amount")
        else:
            usage = int(known.usage_pico)
        if usage:
            reason = f"payment of {record.name}"
            paid_in = Grant(identity, record.tenant_id, usage, record.currency, "paid", reason)
            await settle_payment(database, session, paid_in)
        return await locked(database, session, record.id)


async def _receive(
    database: Database, session: AsyncSession, now: InvoiceRecord, *, identity: UUID, reference: str, amount: int | None
) -> int:
    """Write the payment down; what of it pays for usage, in pico-units."""
    if now.state in ("draft", "void", "paid"):
        raise WrongState(now.name, now.state, "paid")
    amount = now.left if amount is None else amount
    if not 0 < amount <= now.left:
        left = f"{format_minor(now.left, now.currency)} {now.currency}"
        raise AmountRefused(f"{format_minor(amount, now.currency)} for {now.name}, of which {left} is left")
    pico = amount * minor_unit(now.currency)
    usage = max(0, min(pico, now.owed_pico - now.settled_pico))
    row = {
        "id": identity,
        "invoice_id": now.id,
        "tenant_id": now.tenant_id,
        "amount": amount,
        "currency": now.currency,
        "usage_pico": usage,
        "reference": reference,
        "at": database.clock,
    }
    await session.execute(insert(invoice_payment).values(row))
    await seal_rows(session, invoice_payment, invoice_payment.c.id == identity)
    rest = moves(("clearing", "invoiced", pico - usage))
    await post(database, session, now, f"payment:{reference}:rest", rest, memo=f"payment of {now.name}")
    await settled(database, session, now, paid=now.paid + amount, settled_pico=now.settled_pico + usage)
    return usage


async def settled(database: Database, session: AsyncSession, now: InvoiceRecord, **changes: int) -> None:
    """Write what was paid or credited, with the state that follows from it."""
    after = msgspec.structs.replace(now, **changes)
    something = bool(after.paid or after.credited)
    state = after_settling(now.name, now.state, left=after.left, something=something) if now.left else now.state
    await session.execute(update(invoice).where(invoice.c.id == now.id).values(state=state, **changes))
    if state != now.state:
        told = msgspec.structs.replace(after, state=state)
        await write_to_outbox(database, session, topic_of(state), now.tenant_id, notice(told))


async def void(database: Database, record: InvoiceRecord, *, write: bool = True) -> InvoiceRecord:
    """Void an invoice of which nothing was paid or credited: its number stays, its period can be invoiced again.

    Raises WrongState, AmountRefused, DatabaseUnavailable.
    """
    async with transaction(database, write=write) as session:
        await lock_documents(database, session, record.tenant_id)
        now = await locked(database, session, record.id)
        if now.kind == "credit_note":
            raise AmountRefused(f"{now.name} is a credit note, which stays: invoice again what it credited too much")
        if now.paid or now.credited:
            raise AmountRefused(f"{now.name} is paid or credited in part: write a credit note instead")
        entries = reversed_entries(entries_of(now))
        return await _become(database, session, now, "void", entries)


async def give_up(database: Database, record: InvoiceRecord, *, write: bool = True) -> InvoiceRecord:
    """Mark an invoice as uncollectible. The tenant owes it still, and it can still be paid. Raises WrongState."""
    async with transaction(database, write=write) as session:
        await lock_documents(database, session, record.tenant_id)
        now = await locked(database, session, record.id)
        return await _become(database, session, now, "uncollectible", [])


async def _become(
    database: Database, session: AsyncSession, now: InvoiceRecord, wanted: InvoiceState, entries: list[Entry]
) -> InvoiceRecord:
    follow(now.name, now.state, wanted)
    await session.execute(update(invoice).where(invoice.c.id == now.id).values(state=wanted))
    await post(database, session, now, wanted, entries, memo=f"{now.name} {wanted}")
    after = await locked(database, session, now.id)
    await write_to_outbox(database, session, topic_of(wanted), now.tenant_id, notice(after))
    return after
