"""A tenant's account statement: what changed its balance, in the order of posting, with the balance after each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select

from billing.tables.money import ledger_entry, ledger_txn
from storage.database.database import Database

_OURS = ("prepaid", "promo", "restricted", "receivable", "invoiced")
"""The accounts that say what a tenant has or owes; a credit to one of them is for the tenant."""
_INVOICED = "invoiced"
_CARRY = "rounding_carry"


class StatementLine(msgspec.Struct, frozen=True):
    """One transaction: what it put in (more than zero) or took out, and what the tenant had after it, if it owed less.

    `invoiced_pico` is what invoices ask for beyond usage (VAT, fees, rounding) and is not paid yet. The balance has it
    taken off; what a tenant can use (`Balance.available`) has not. `carry_pico` is what invoices until then left for
    the next one to ask for; less than zero: to take off.
    `posted_at` is in microseconds since the Unix epoch; amounts are in pico-units.
    """

    id: UUID
    posted_at: int
    kind: str
    period: str
    memo: str
    amount_pico: int
    balance_pico: int
    invoiced_pico: int
    carry_pico: int


async def statement(database: Database, tenant_id: UUID, start_at: int = 0, end_at: int = 2**62) -> list[StatementLine]:
    """The lines posted from `start_at` (included) to `end_at` (excluded). Raises DatabaseUnavailable."""
    txn, entry = ledger_txn.c, ledger_entry.c
    query = (
        select(txn.id, txn.posted_at, txn.kind, txn.period, txn.memo, entry.debit, entry.credit, entry.amount_pico)
        .join(ledger_entry, entry.txn_id == txn.id)
        .where(txn.tenant_id == tenant_id, txn.posted_at < end_at)
        .order_by(txn.posted_at, txn.id, entry.seq)
    )
    async with database.reading() as session:
        lines = _lines(await session.execute(query))
    return [line for line in lines if line.posted_at >= start_at]


def by_day(lines: Iterable[StatementLine]) -> list[StatementLine]:
    """The lines with usage that follows usage of the same day and period made one with it, named by the last."""
    found: list[StatementLine] = []
    for line in lines:
        before = found[-1] if found else None
        if before and line.kind == before.kind == "usage" and _day(line) == _day(before):
            found[-1] = msgspec.structs.replace(line, amount_pico=before.amount_pico + line.amount_pico)
        else:
            found.append(line)
    return found


def _day(line: StatementLine) -> tuple[str, int]:
    return line.period, line.posted_at // 86_400_000_000


def _lines(rows: Iterable[Any]) -> list[StatementLine]:
    lines: list[StatementLine] = []
    balance = invoiced = carry = 0
    for row in rows:
        change = int(row.amount_pico) * ((row.credit in _OURS) - (row.debit in _OURS))
        balance += change
        invoiced += int(row.amount_pico) * ((row.debit == _INVOICED) - (row.credit == _INVOICED))
        carry += int(row.amount_pico) * ((row.debit == _CARRY) - (row.credit == _CARRY))
        amount = change
        if lines and lines[-1].id == row.id:
            amount += lines.pop().amount_pico
        lines.append(
            StatementLine(row.id, row.posted_at, row.kind, row.period, row.memo, amount, balance, invoiced, carry)
        )
    return lines
