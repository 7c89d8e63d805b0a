"""/admin/v1/prices/books: base books, one or more a currency, and tenants' own books over one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from billing.prices.price_books import BASE, PriceBook, PriceBooks
from gateway.admin.access import visible_tenant
from gateway.admin.operation import Call, operation
from gateway.errors import InvalidField
from gateway.http.policies import demands
from gateway.http.shapes import Page, PageQuery, TenantId
from gateway.services import Gateway


class NewBook(Struct, frozen=True, forbid_unknown_fields=True):
    """A base book in a currency, or a tenant's own book over a base book, in its currency."""

    name: str
    currency: str | None = None
    tenant: str | None = None
    base: str | None = None


class BookObject(Struct, frozen=True, kw_only=True):
    """A price book. A tenant's book has a tenant and the name of its base book; a base book has neither."""

    object: Literal["price_book"] = "price_book"
    name: str
    currency: str
    base: str | None
    tenant_id: TenantId | None


class BookList(Page[BookObject], frozen=True):
    """Books in the order of creation; `after` is the name of the last one."""


_PATH = "/admin/v1/prices/books"


class BookOperations:
    """Lists and creates price books."""

    def __init__(self, gateway: Gateway) -> None:
        self._books = PriceBooks(gateway.services.database)

    @operation("GET", _PATH, demands("prices.read", platform=True))
    async def list_books(self, page: PageQuery) -> BookList:
        """All price books."""
        books = await self._books.list()
        rest = page.rest(books, lambda book: book.name, str, "book")
        return BookList.of([_object(book, books) for book in rest[: page.limit + 1]], page.limit)

    @operation(
        "POST",
        _PATH,
        demands("prices.propose"),
        status=201,
        example=NewBook(name="in euros", currency="EUR"),
        errors={"unknown_book": 404, "not_found": 404, "price_refused": 400},
    )
    async def create_book(self, call: Call, body: NewBook) -> BookObject:
        """Create a price book: of a tenant, or in a currency."""
        if (body.tenant is None) == (body.currency is None):
            raise InvalidField("$", "a book is of a tenant or in a currency")
        if body.tenant is None and body.base is not None:
            raise InvalidField("$.base", "only a tenant's book has a base book")
        if body.tenant is None:
            book = await self._books.create(body.name, body.currency or "")
        else:
            owner = await visible_tenant(call.gateway, call.request, body.tenant, "prices.propose")
            book = await self._books.create_for(owner.id, body.name, body.base or BASE)
        return _object(book, await self._books.list())


def _object(book: PriceBook, books: Sequence[PriceBook]) -> BookObject:
    return BookObject(
        name=book.name,
        currency=book.currency,
        base=next((each.name for each in books if each.id == book.base), None),
        tenant_id=None if book.tenant_id is None else TenantId.of(book.tenant_id),
    )
