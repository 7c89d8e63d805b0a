"""The general ledger export: the month's bookings, a row for each side, in whole coins; debits equal credits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from billing.exports.bookings import Booking, bookings, code_of
from billing.exports.datasets import Column, Dataset, ExportQuery, ExportSnapshot, Row
from billing.exports.journal import ACCOUNT_CODES
from billing.ledger.entries import Account
from billing.money import minor_to_pico


async def _rows(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    codes = ACCOUNT_CODES | dict(wanted.account_codes)
    async for portion in bookings(snapshot, wanted):
        yield [row for booking in portion for row in _sides(booking, codes, wanted)]


def _sides(booking: Booking, codes: dict[str, str], wanted: ExportQuery) -> Iterator[Row]:
    """The debit, the credit without tax, and the tax."""
    sides: tuple[tuple[Account, int], ...] = (
        (booking.debit, booking.gross),
        (booking.credit, -booking.net),
        ("tax", -booking.tax),
    )
    for account, minor in sides:
        if minor:
            amount = minor_to_pico(abs(minor), booking.currency)
            yield (
                booking.at,
                booking.document,
                booking.kind,
                code_of(codes, account, booking.category, booking.rate),
                account,
                amount if minor > 0 else None,
                amount if minor < 0 else None,
                booking.currency,
                booking.category,
                booking.rate * 10_000 if booking.category else None,
                booking.tenant_id,
                wanted.names.tenants.get(booking.tenant_id),
                booking.vat_id,
                booking.service,
                booking.text,
            )


GENERAL_LEDGER = Dataset(
    name="general-ledger",
    title="General ledger",
    about="bookings of documents, payments and credit in whole coins, one row for each side",
    columns=(
        Column("date", "date", "issue date of a document; day in UTC on which money came"),
        Column("document", "text", "number of the document; of credit, a number made of its id"),
        Column("kind", "text", "invoice, credit_note, payment or credit"),
        Column("account_code", "text", "as set by --account-codes, by tax category and rate where it says so"),
        Column("account", "text"),
        Column("debit", "money"),
        Column("credit", "money"),
        Column("currency", "text"),
        Column("tax_category", "text", "UNCL 5305"),
        Column("tax_percent", "price"),
        Column("tenant_id", "id"),
        Column("tenant", "text"),
        Column("vat_id", "text", "of the buyer, as the document states it"),
        Column("service_date", "date", "last day of the service"),
        Column("text", "text", "name of the buyer, reference of a payment"),
    ),
    rows=_rows,
    sums=("debit", "credit"),
)
