"""Price books: base books, one or more a currency, and tenants' own books, which fall back to a base book.

A tenant's money has one currency, and so have its prices. Whichever is set first decides: a book is refused where the
balance has another currency, and a balance where the prices have (`priced_currency`). A tenant's newest book is in
force; one by which nothing was billed can be replaced by another.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from billing.events.rollups import HOUR
from billing.integrity.row_seals import seal_rows
from billing.money import check_currency
from billing.prices.errors import PriceRefused, UnknownBook, WrongCurrency
from billing.tables.money import balance, rollup_hour
from billing.tables.prices import price_book, price_version
from storage.database.database import Database
from storage.free_text import NAME, check_text

BASE = "base"
"""The book of every tenant without a book of its own. Its currency is that of its first price."""


class PriceBook(msgspec.Struct, frozen=True):
    """A price book. A tenant's book has a tenant and a base book, by id; a base book has neither."""

    id: int
    name: str
    currency: str
    base: int | None
    tenant_id: UUID | None


class PriceBooks:
    """Creates and lists price books. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self) -> list[PriceBook]:
        """Every book, in the order of creation."""
        async with self._database.reading() as session:
            return await all_books(session)

    async def create(self, name: str, currency: str) -> PriceBook:
        """Create a base book. Raises PriceRefused, InvalidMoney."""
        return await self._create(name, check_currency(currency), None, None)

    async def create_for(self, tenant_id: UUID, name: str, base: str = BASE) -> PriceBook:
        """Create a tenant's book over a base book, in the same currency, in place of one by which nothing was billed.
        Raises PriceRefused, WrongCurrency, UnknownBook."""
        found = {book.name: book for book in await self.list()}
        if base not in found:
            raise UnknownBook(base)
        if found[base].tenant_id is not None:
            raise PriceRefused(f"{base!r} is a tenant's own book; name a base book")
        return await self._create(name, found[base].currency, found[base].id, tenant_id)

    async def _create(self, name: str, currency: str, base: int | None, tenant_id: UUID | None) -> PriceBook:
        if not name.strip() or len(name) > 100:
            raise PriceRefused("a price book needs a name of at most 100 characters")
        check_text("name", name, NAME)
        async with self._database.transaction() as session:
            for book in await all_books(session):
                if book.name == name:
                    raise PriceRefused(f"there is a price book {name!r} already")
                if tenant_id is not None and book.tenant_id == tenant_id and await _was_billed(session, book):
                    problem = f"this tenant has a price book already, {book.name!r}, and was billed by it"
                    raise PriceRefused(f"{problem}; change its prices instead: `turnpike prices set`")
            if tenant_id is not None:
                money = await session.scalar(select(balance.c.currency).where(balance.c.tenant_id == tenant_id))
                if money not in (None, currency):
                    problem = f"the tenant's balance is in {money}, so the price book {name!r}, in {currency}, would"
                    command = f"`turnpike prices book NAME --currency {money}`"
                    raise WrongCurrency(
                        f"{problem} refuse its requests; name a base book in {money}, or make one: {command}"
                    )
            return await _insert(session, self._database, PriceBook(0, name, currency, base, tenant_id))


async def all_books(session: AsyncSession) -> list[PriceBook]:
    """Every book of all tenants, in the order of creation."""
    columns = (getattr(price_book.c, name) for name in PriceBook.__struct_fields__)
    return [PriceBook(*row) for row in await session.execute(select(*columns).order_by(price_book.c.id))]


async def priced_currency(session: AsyncSession, tenant_id: UUID) -> str | None:
    """The currency of a tenant's prices; None before the first price of the base book."""
    return (await priced_currencies(session, [tenant_id])).get(tenant_id)


async def priced_currencies(session: AsyncSession, tenant_ids: Collection[UUID]) -> dict[UUID, str]:
    """The currencies of these tenants' prices; none before the first price of the base book."""
    books = await all_books(session)
    own = {book.tenant_id: book.currency for book in books if book.tenant_id is not None}
    base = next((book.currency for book in books if book.name == BASE), None)
    priced = {tenant_id: own.get(tenant_id, base) for tenant_id in tenant_ids}
    return {tenant_id: currency for tenant_id, currency in priced.items() if currency is not None}


async def _was_billed(session: AsyncSession, book: PriceBook) -> bool:
    """Whether the book's tenant used something in the book's currency since the book was made."""
    row, version = rollup_hour.c, price_version.c
    made_at = select(price_book.c.created_at).where(price_book.c.id == book.id).scalar_subquery()
    query = (
        select(row.hour)
        .join(price_version, version.id == row.price_version)
        .where(row.tenant_id == book.tenant_id, version.currency == book.currency, row.hour > made_at - HOUR)
    )
    return await session.scalar(query.limit(1)) is not None


async def book_named(session: AsyncSession, name: str, currency: str | None) -> PriceBook | None:
    """The book with this name and, if given, this currency; None for `base` before its first price.

    Raises UnknownBook, WrongCurrency, InvalidMoney, PriceRefused for one that was replaced.
    """
    if currency is not None:
        check_currency(currency)
    books = await all_books(session)
    for book in books:
        if book.name == name:
            newest = next(each for each in reversed(books) if each.tenant_id == book.tenant_id)
            if book.tenant_id is not None and newest is not book:
                raise PriceRefused(f"the price book {name!r} was replaced by {newest.name!r}")
            if currency not in (None, book.currency):
                problem = f"the price book {name!r} is in {book.currency}, not in {currency}"
                raise WrongCurrency(f"{problem}; create another book for {currency}")
            return book
    if name != BASE or currency is None:
        raise UnknownBook(name)
    return None


async def book_for_writing(session: AsyncSession, database: Database, name: str, currency: str | None) -> PriceBook:
    """Like `book_named`, but creates `base` for its first price."""
    return await book_named(session, name, currency) or await _insert(
        session, database, PriceBook(0, name, str(currency), None, None)
    )


async def _insert(session: AsyncSession, database: Database, book: PriceBook) -> PriceBook:
    values = msgspec.structs.asdict(book) | {"created_at": database.clock}
    del values["id"]
    made = await session.execute(insert(price_book).values(values).returning(price_book.c.id))
    number = made.scalar_one()
    await seal_rows(session, price_book, price_book.c.id == number)
    said = {"currency": book.currency, "base": book.base}
    await record_change(session, "price_book.created", target="price_book", target_id=book.name,
                        tenant_id=book.tenant_id, after=said)  # fmt: skip
    return msgspec.structs.replace(book, id=number)
