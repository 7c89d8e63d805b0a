"""The journal export: the ledger's double entries, one row for each debit and each credit, for accounting software.

Usage, adjustments and invoices belong to their billing period. Everything else, such as payments and credit notes,
belongs to the month in which it was posted. The debits of a file equal its credits, and both the ledger's entries.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from uuid import UUID

from sqlalchemy import ColumnElement, and_, or_, select

from billing.calendar import period_bounds
from billing.exports.datasets import Column, Dataset, ExportQuery, ExportSnapshot, InvalidExport, Row
from billing.tables.money import ledger_entry, ledger_txn

ACCOUNT_CODES: dict[str, str] = {
    "clearing": "1010",
    "receivable": "1200",
    "invoiced": "1210",
    "written_off": "1280",
    "rounding_carry": "1290",
    "tax": "2200",
    "tax_relief": "2290",
    "prepaid": "2300",
    "promo": "2310",
    "restricted": "2320",
    "deferred": "2330",
    "revenue": "4000",
    "charges": "4100",
    "breakage": "4200",
    "credited": "4900",
    "goodwill": "6300",
    "bad_debt": "6900",
}
"""Account → its code, unless another is set."""
_OF_A_TAX = re.compile(r"(?:revenue|tax)\.(?:S|Z|E|AE|K|G|O)(?:\d{1,2}(?:\.\d{1,2})?)?", re.ASCII)
_MICROSECOND = 1


def parse_account_codes(text: str) -> dict[str, str]:
    """Codes by account from a text such as `clearing=1010,revenue=4400`; the other accounts keep theirs.

    Bookings of documents take the code of a tax category (`revenue.AE=4336`), with its rate (`revenue.S7=4300`), first.

    Raises InvalidExport.
    """
    codes = dict(ACCOUNT_CODES)
    for part in filter(None, (part.strip() for part in text.split(","))):
        account, _, code = (piece.strip() for piece in part.partition("="))
        if account not in ACCOUNT_CODES and _OF_A_TAX.fullmatch(account) is None:
            raise InvalidExport("account_codes", f"{account!r} is not one of {', '.join(ACCOUNT_CODES)}")
        if not code:
            raise InvalidExport("account_codes", f"{account} has no code; write it as {account}=CODE")
        codes[account] = code
    return codes


def of_tenant(wanted: ExportQuery, tenant: ColumnElement[UUID]) -> list[ColumnElement[bool]]:
    """That a row is of the tenant whose rows are wanted."""
    # all tenants: without a tenant this exports the whole installation
    return [] if wanted.tenant_id is None else [tenant == wanted.tenant_id]


def of_month(period: str) -> ColumnElement[bool]:
    """The month's transactions: what belongs to its period, and else what was posted in it."""
    first, after = period_bounds(period)
    txn = ledger_txn.c  # all tenants: a condition of a query that says whose
    return or_(txn.period == period, and_(txn.period == "", txn.posted_at >= first, txn.posted_at < after))


def before_month(period: str) -> ColumnElement[bool]:
    """The transactions of all months before it."""
    first, _ = period_bounds(period)
    txn = ledger_txn.c  # all tenants: a condition of a query that says whose
    return or_(and_(txn.period != "", txn.period < period), and_(txn.period == "", txn.posted_at < first))


async def _rows(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    first, after = period_bounds(wanted.period)
    txn, entry = ledger_txn.c, ledger_entry.c
    query = (
        select(
            txn.id, txn.tenant_id, txn.kind, txn.period, txn.posted_at, txn.memo, entry.seq, entry.currency,
            entry.debit, entry.credit, entry.amount_pico,
        )
        .join(ledger_entry, entry.txn_id == txn.id)
        .where(of_month(wanted.period), *of_tenant(wanted, txn.tenant_id))
        .order_by(txn.tenant_id, txn.posted_at, txn.id, entry.seq)
    )  # fmt: skip
    codes = ACCOUNT_CODES | dict(wanted.account_codes)
    async for portion in snapshot.portions(query):
        rows: list[Row] = []
        for row in portion:
            # A transaction of a period may be posted a moment after its month ended.
            date = min(max(row.posted_at, first), after - _MICROSECOND)
            tenant = wanted.names.tenants.get(row.tenant_id)
            for account, debit, credit in (
                (row.debit, row.amount_pico, None),
                (row.credit, None, row.amount_pico),
            ):
                code = _code(codes, account)
                sides = (code, account, debit, credit)
                rows.append((date, row.id, row.seq, row.kind, *sides, row.currency, row.tenant_id, tenant, row.memo))
        yield rows


def _code(codes: Mapping[str, str], account: str) -> str:
    try:
        return codes[account]
    except KeyError:
        raise InvalidExport("account_codes", f"the account {account} has no code; add {account}=CODE") from None


JOURNAL = Dataset(
    name="journal",
    title="Journal",
    about="the ledger as double entries, one row for each side",
    columns=(
        Column("date", "date", "day in UTC, within the period"),
        Column("transaction_id", "id", "rows of one transaction balance"),
        Column("entry", "integer", "number of the entry in its transaction; its two rows are a debit and a credit"),
        Column(
            "kind", "text", "usage, adjustment, invoice (and credit note), draw, return, grant, refund, expiry or lapse"
        ),
        Column("account_code", "text", "as set by --account-codes"),
        Column("account", "text"),
        Column("debit", "money"),
        Column("credit", "money"),
        Column("currency", "text"),
        Column("tenant_id", "id"),
        Column("tenant", "text"),
        Column("memo", "text", "the document's number, or the reason that was given"),
    ),
    rows=_rows,
    sums=("debit", "credit"),
)
