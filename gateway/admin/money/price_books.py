"""/admin/v1/prices/books: base books, one or more a currency, and tenants' own books over one of them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from billing.prices.price_books import BASE, PriceBook, PriceBooks
from gateway.admin.access import visible_tenant
from gateway.admin.refusals import refusals
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.errors import InvalidField
from gateway.http.operations import describes, page
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.shapes import Page
from gateway.services import Gateway
from tenancy.directory import tenant_public_id


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
    tenant_id: str | None


class BookList(Page[BookObject], frozen=True):
    """Books in the order of creation; `after` is the name of the last one."""


_NEW = msgspec.json.Decoder(NewBook)


def price_book_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    client_timeout = gateway.services.options.client_timeout
    books = PriceBooks(gateway.services.database)

    @get("/admin/v1/prices/books", opt=demands("prices.read", platform=True) | describes(BookList, query=page()))
    async def list_books(request: Request[Any, Any, Any]) -> Response[bytes]:
        """All price books."""
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(), parameters.text("after")
        parameters.reject_unknown()
        found = await books.list()
        names = {book.id: book.name for book in found}
        if after is not None:
            places = [place for place, book in enumerate(found) if book.name == after]
            if not places:
                raise InvalidField("after", "there is no such book")
            found = found[places[0] + 1 :]
        listed = [_object(book, names) for book in found[:limit]]
        return json_response(BookList(data=listed, has_more=len(found) > limit))

    @post(
        "/admin/v1/prices/books",
        status_code=201,
        opt=demands("prices.propose")
        | describes(
            BookObject,
            status=201,
            body=NewBook(name="in euros", currency="EUR"),
            errors={"unknown_book": 404, "not_found": 404, "price_refused": 400},
        ),
    )
    async def create_book(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Create a price book: of a tenant, or in a currency."""
        body = await read_management_body(request, client_timeout, _NEW)
        if (body.tenant is None) == (body.currency is None):
            raise InvalidField("$", "a book is of a tenant or in a currency")
        if body.tenant is None and body.base is not None:
            raise InvalidField("$.base", "only a tenant's book has a base book")
        with refusals():
            if body.tenant is None:
                made = await books.create(body.name, body.currency or "")
            else:
                owner = await visible_tenant(gateway, request, body.tenant, "prices.propose")
                made = await books.create_for(owner.id, body.name, body.base or BASE)
        names = {book.id: book.name for book in await books.list()}
        return json_response(_object(made, names), 201)

    return [list_books, create_book]


def _object(book: PriceBook, names: dict[int, str]) -> BookObject:
    return BookObject(
        name=book.name,
        currency=book.currency,
        base=None if book.base is None else names[book.base],
        tenant_id=None if book.tenant_id is None else tenant_public_id(book.tenant_id),
    )
