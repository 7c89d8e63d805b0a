"""Ledger entries of documents, beside the usage that is posted request by request.

Usage that is not paid stands in `receivable` already, exactly. What a document asks for beyond that goes to `invoiced`:
tax, lines that are not usage, and what rounding adds or leaves (`rounding_carry`). So `receivable` and `invoiced`
together are what the tenant was asked to pay, and `rounding_carry` is the carry of its documents. What went back from
`charges` to the balance (`billing.invoices.accounting.balance_returns`) is not deducted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid5

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession

from billing.integrity.row_seals import seal_rows
from billing.invoices.store import InvoiceRecord
from billing.ledger.entries import Account, Entry
from billing.money import minor_unit
from billing.tables.money import ledger_entry, ledger_txn
from storage.database.database import Database


def entries_of(record: InvoiceRecord) -> list[Entry]:
    """The entries that finalizing an invoice posts: it asks for tax, charges and rounding beyond its usage. What was
    due with advances is not asked for again, and what is drawn from credit is asked for here and paid there. An
    advance-payment invoice asks for its tax: its net becomes credit."""
    unit = minor_unit(record.currency)
    tax, charges = (record.tax - record.advance_tax) * unit, record.charges_pico + record.returned_pico
    if record.kind == "advance":
        return balanced_entries(("invoiced", "tax", tax))
    rounding = (record.payable + record.drawn) * unit - record.owed_pico - tax - charges
    return balanced_entries(
        ("invoiced", "tax", tax),
        ("invoiced", "charges", charges),
        ("invoiced", "rounding_carry", rounding),
        ("charges", "deferred", record.deferred_pico),
    )


def reversed_entries(entries: Sequence[Entry]) -> list[Entry]:
    """The same amounts the other way."""
    return [Entry(entry.credit, entry.debit, entry.amount_pico) for entry in entries]


def balanced_entries(*legs: tuple[Account, Account, int]) -> list[Entry]:
    """Entries of (debit, credit, pico-units); a negative amount swaps the accounts, an amount of 0 makes no entry."""
    return [
        Entry(debit, credit, pico) if pico > 0 else Entry(credit, debit, -pico) for debit, credit, pico in legs if pico
    ]


def step_id(document: UUID, step: str) -> UUID:
    """The id of a document's step: always the same, so that the step is posted once."""
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
    """Write a ledger transaction for a step of a document, in this transaction; nothing if there are no entries.

    Finalizing an invoice belongs to its `period`. Later steps and credit notes have no period and belong to the day on
    which they happen, so that a month that was reported does not change.
    """
    if not entries:
        return
    identity = step_id(record.id, step)
    head = {"id": identity, "tenant_id": record.tenant_id, "kind": "invoice", "period": period}
    head |= {"posted_at": database.clock, "memo": memo or record.name}
    await session.execute(insert(ledger_txn).values(head))
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
