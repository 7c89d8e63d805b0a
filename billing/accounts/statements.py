"""A tenant's account statement: what changed its balance, in the order of posting, with the balance after each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, case, func, literal, select, tuple_

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


class StatementPage(msgspec.Struct, frozen=True):
    """Lines in the order of posting; `after` is the cursor of the next page, None at the end."""

    lines: list[StatementLine]
    after: UUID | None


async def statement_page(
    database: Database,
    tenant_id: UUID,
    *,
    start_at: int = 0,
    end_at: int = 2**62,
    after: UUID | None = None,
    limit: int = 100,
    days: bool = False,
) -> StatementPage:
    """At most `limit` lines posted from `start_at` (included) to `end_at` (excluded), those after the transaction
    `after`. `days`: usage of a day is one line, as in `by_day`; that of a day with very many postings may be several.

    What the lines begin with is summed by the database. Raises DatabaseUnavailable.
    """
    txn, entry = ledger_txn.c, ledger_entry.c
    own = txn.tenant_id == tenant_id
    place = tuple_(txn.posted_at, txn.id)
    async with database.reading() as session:
        before: ColumnElement[bool] = txn.posted_at < start_at
        if after is not None:
            last = select(txn.posted_at, txn.id).where(own, txn.id == after)
            found = (await session.execute(last)).one_or_none()
            if found is not None and found.posted_at >= start_at:
                before = place <= tuple_(literal(found.posted_at, txn.posted_at.type), literal(found.id, txn.id.type))
        sums = [_signed(accounts) for accounts in (_OURS, (_INVOICED,), (_CARRY,))]
        opening = select(*sums).join_from(ledger_txn, ledger_entry, entry.txn_id == txn.id).where(own, before)
        balance, invoiced, carry = (int(total or 0) for total in (await session.execute(opening)).one())
        most = _POSTINGS if days else limit
        wanted = select(txn.id, txn.posted_at).where(own, ~before, txn.posted_at < end_at)
        places = wanted.order_by(txn.posted_at, txn.id).limit(most + 1).subquery()
        query = (
            select(txn.id, txn.posted_at, txn.kind, txn.period, txn.memo, entry.debit, entry.credit, entry.amount_pico)
            .join_from(places, ledger_txn, txn.id == places.c.id)
            .join(ledger_entry, entry.txn_id == txn.id)
            .order_by(txn.posted_at, txn.id, entry.seq)
        )
        lines = _lines(await session.execute(query), (balance, -invoiced, -carry))
    more = len(lines) > most
    lines = lines[:most]
    if not days:
        return StatementPage(lines, lines[-1].id if more else None)
    merged = by_day(lines)
    more = more or len(merged) > limit
    merged = merged[:limit]
    return StatementPage(merged, merged[-1].id if more else None)


_POSTINGS = 2000
"""How many postings one page of days is made of, at most."""


def _signed(accounts: tuple[str, ...]) -> ColumnElement[Any]:
    """What the entries put into these accounts, less what they took out."""
    of = ledger_entry.c
    credit, debit = (case((side.in_(accounts), of.amount_pico), else_=0) for side in (of.credit, of.debit))
    return func.sum(credit - debit)


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


def _lines(rows: Iterable[Any], opening: tuple[int, int, int] = (0, 0, 0)) -> list[StatementLine]:
    lines: list[StatementLine] = []
    balance, invoiced, carry = opening
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
