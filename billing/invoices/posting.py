"""What documents do to the books, beside the usage that was posted request by request.

The usage that is still owed stands in `receivable` already, exactly. What a document asks for beyond that goes to
`invoiced`: tax, lines that are no usage, and what rounding adds or leaves (`rounding_carry`). So `receivable` and
`invoiced` together are what the tenant was asked to pay, and `rounding_carry` is what its documents carry on. What of
`charges` was given back to the balance (`billing.invoices.balance_returns`) is not taken off what a document asks for
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid5

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession

from billing.integrity.row_seals import seal_rows
from billing.invoices.minor_units import minor_unit
from billing.invoices.records import InvoiceRecord
from billing.ledger.entries import Account, Entry
from billing.tables.money import ledger_entry, ledger_txn, outbox
from storage.database.base import new_id
from storage.database.database import Database


def entries_of(record: InvoiceRecord) -> list[Entry]:
    """What finalizing an invoice posts."""
    unit = minor_unit(record.currency)
    tax, charges = record.tax * unit, record.charges_pico + record.returned_pico
    rounding = record.payable * unit - record.owed_pico - tax - charges
    return moves(("invoiced", "tax", tax), ("invoiced", "charges", charges), ("invoiced", "rounding_carry", rounding))


def reversed_entries(entries: Sequence[Entry]) -> list[Entry]:
    """The same amounts the other way."""
    return [Entry(entry.credit, entry.debit, entry.amount_pico) for entry in entries]


def moves(*legs: tuple[Account, Account, int]) -> list[Entry]:
    """Entries of amounts from the first account to the second, the other way where negative, none where 0."""
    return [
        Entry(debit, credit, pico) if pico > 0 else Entry(credit, debit, -pico) for debit, credit, pico in legs if pico
    ]


def step_id(document: UUID, step: str) -> UUID:
    """The id of a document's step in the books: the same each time, so that it can be posted once only."""
    return uuid5(document, step)


async def post(
    database: Database,
    session: AsyncSession,
    record: InvoiceRecord,
    step: str,
    entries: Sequence[Entry],
    *,
    period: str = "",
    memo: str = "",
) -> None:
    """Write a transaction of the tenant's ledger for a step of a document; nothing where there are no entries.

    An invoice belongs to its `period`. What happens to it later, and a credit note, is of the day on which it does: a
    month that was reported must not change by it.
    """
    if not entries:
        return
    identity = step_id(record.id, step)
    head = {"id": identity, "tenant_id": record.tenant_id, "kind": "invoice", "period": period}
    said = {"posted_at": database.clock, "memo": memo or record.name}
    await session.execute(insert(ledger_txn).values(head | said))
    rows = [
        {
            "txn_id": identity,
            "seq": seq,
            "tenant_id": record.tenant_id,
            "currency": record.currency,
            "debit": entry.debit,
            "credit": entry.credit,
            "amount_pico": entry.amount_pico,
        }
        for seq, entry in enumerate(entries, 1)
    ]
    await session.execute(insert(ledger_entry), rows)
    await seal_rows(session, ledger_txn, ledger_txn.c.id == identity)


async def write_to_outbox(database: Database, session: AsyncSession, topic: str, tenant_id: UUID, payload: str) -> None:
    """Put a notice into the outbox, with what it tells of."""
    row = {"id": new_id(), "tenant_id": tenant_id, "topic": topic, "payload": payload, "created_at": database.clock}
    await session.execute(insert(outbox).values(row))
