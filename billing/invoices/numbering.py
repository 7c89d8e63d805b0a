"""Numbers without gaps: the next one of a series is taken under a lock, in the transaction that uses it.

Each document holds the SHA-256 of the one before it in its series, so that the order of a series is sealed too.
"""

from __future__ import annotations

from datetime import date

import msgspec
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from billing.invoices.failures import NumberRefused
from billing.invoices.parties import Seller
from billing.tables.invoices import number_series
from storage.database import Database


class Taken(msgspec.Struct, frozen=True):
    """The next number of a series, locked, and the hash of the document before it (empty for the first)."""

    seller: str
    series: str
    year: int
    n: int
    number: str
    issued: str
    previous: str


async def take(database: Database, session: AsyncSession, seller: Seller, series: str, issued: date) -> Taken:
    """Lock the series until the transaction ends, and say what its next number is.

    Raises NumberRefused if the date is before that of the last document.
    """
    key = (number_series.c.seller == seller.id) & (number_series.c.series == series)
    start = {"seller": seller.id, "series": series, "year": 0, "next": 1, "issued": "", "head": ""}
    await session.execute(database.insert(number_series).values(start).on_conflict_do_nothing())
    row = (await session.execute(database.locked(select(number_series).where(key)))).one()
    if issued.isoformat() < row.issued:
        raise NumberRefused(
            f"the issue date {issued} is before {row.issued}, that of the last document of series {series}"
        )
    year = issued.year if "{year}" in seller.number_format else row.year
    n = row.next if row.year == year or row.next == 1 else 1
    number = seller.number_format.format(series=series, year=year, n=n)
    return Taken(seller.id, series, year, n, number, issued.isoformat(), row.head)


async def use(session: AsyncSession, taken: Taken, digest: str) -> None:
    """The number was used, by a document with this hash: the series goes on."""
    key = (number_series.c.seller == taken.seller) & (number_series.c.series == taken.series)
    values = {"year": taken.year, "next": taken.n + 1, "issued": taken.issued, "head": digest}
    await session.execute(update(number_series).where(key).values(values))
