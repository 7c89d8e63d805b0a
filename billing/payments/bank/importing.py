"""Books a bank's file: an entry that names one open invoice, and not more than is left of it, pays it; others wait.

The number must stand in the entry's reference as it is, or with other separators. An amount alone never decides.
"""

from __future__ import annotations

import re
from hashlib import sha256
from uuid import UUID

import msgspec
from sqlalchemy import select

from billing.payments.bank.statements import BankEntry, day_instant, read_statement
from billing.payments.cash import CashBook, find_open_invoices, receipt_id
from billing.payments.provider import MoneyIn
from billing.tables.payments import bank_statement, cash_receipt
from storage.database.database import Database
from storage.database.sql_arrays import one_of
from storage.free_text import NAME, check_text

BANK = "bank"
_SEPARATORS = re.compile(r"[^A-Z0-9]+")


class StatementImport(msgspec.Struct, frozen=True, kw_only=True):
    """What a file brought."""

    name: str
    account: str
    entries: int
    new_entries: int
    applied: int
    unapplied: int


class _Match(msgspec.Struct, frozen=True):
    tenant_id: UUID
    invoice_id: UUID


async def import_statement(database: Database, name: str, content: str, *, write: bool = True) -> StatementImport:
    """Book the credits of a file that are not booked yet. Without `write` only say what it would bring.

    Raises StatementRefused, InvalidText, DatabaseUnavailable.
    """
    check_text("name", name, NAME)
    statement = read_statement(content)
    known = await _known(database, statement.entries)
    cash, matches = CashBook(database), _Matches(database)
    new = [entry for entry in statement.entries if receipt_id(BANK, entry.id) not in known]
    applied = 0
    for entry in new:
        match, problem = await matches.find(entry)
        applied += match is not None
        if write:
            money = _money(entry)
            if match is not None:
                await cash.take_invoice_payment(money, match.tenant_id, match.invoice_id)
            else:
                await cash.suspend(money, problem)
    counts = {"entries": len(statement.entries), "new_entries": len(new)}
    if write:
        row = {"sha256": sha256(content.encode()).hexdigest(), "name": name, "account": statement.account, **counts}
        new_row = database.insert(bank_statement).values(row | {"imported_at": database.clock})
        async with database.transaction() as session:
            await session.execute(new_row.on_conflict_do_nothing())
    return StatementImport(
        name=name, account=statement.account, **counts, applied=applied, unapplied=len(new) - applied
    )


def _money(entry: BankEntry) -> MoneyIn:
    return MoneyIn(
        provider=BANK,
        id=entry.id,
        amount=entry.amount,
        currency=entry.currency,
        at=day_instant(entry.day),
        payer=entry.payer,
        reference=entry.reference,
    )


async def _known(database: Database, entries: list[BankEntry]) -> set[UUID]:
    """The receipts that there are of these entries."""
    # all tenants: a bank's entry is one for all of them
    ids = [receipt_id(BANK, entry.id) for entry in entries]
    async with database.reading() as session:
        found: set[UUID] = set()
        for start in range(0, len(ids), 1000):
            chosen = one_of(database, cash_receipt.c.id, ids[start : start + 1000])
            found.update(await session.scalars(select(cash_receipt.c.id).where(chosen)))
        return found


class _Matches:
    """Finds the invoice that an entry names. What earlier entries of the file pay is taken off."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open: dict[str, dict[str, list[tuple[UUID, UUID, int]]]] = {}

    async def find(self, entry: BankEntry) -> tuple[_Match | None, str]:
        """The invoice, or why there is none."""
        of_currency = await self._of_currency(entry.currency)
        words = f" {_SEPARATORS.sub(' ', entry.reference.upper())} "
        named = [number for number in of_currency if f" {number} " in words]
        if not named:
            return None, "its reference names no open invoice"
        if len(named) > 1 or len(of_currency[named[0]]) > 1:
            return None, "its reference names several invoices"
        ((tenant, identity, left),) = of_currency[named[0]]
        if entry.amount > left:
            return None, "it is more than is left of the invoice"
        of_currency[named[0]] = [(tenant, identity, left - entry.amount)]
        return _Match(tenant, identity), ""

    async def _of_currency(self, currency: str) -> dict[str, list[tuple[UUID, UUID, int]]]:
        if currency not in self._open:
            numbers: dict[str, list[tuple[UUID, UUID, int]]] = {}
            for tenant, identity, number, left in await find_open_invoices(self._database, currency):
                key = _SEPARATORS.sub(" ", number.upper()).strip()
                numbers.setdefault(key, []).append((tenant, identity, left))
            self._open[currency] = numbers
        return self._open[currency]
