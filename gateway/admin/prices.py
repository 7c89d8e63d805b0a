"""/admin/v1/prices: operators propose prices, and another operator brings them into force.

Each request is by an operator's own key (`turnpike keys create --operator --name WHO`), whose name goes into the log. A
proposal stays a draft, whether the platform's approvals are on or off, until somebody of another name activates it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import msgspec
from litestar import MediaType, Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from billing.calendar import InvalidInstant, format_instant, parse_instant
from billing.money import InvalidMoney, InvalidPrice
from billing.prices import EVERY_LANE, PriceMissing
from billing.prices.approval import BY_KEY, PriceSheets
from billing.prices.errors import (
    NotADraft,
    OverlappingPrices,
    PriceInPast,
    PriceRefused,
    SamePerson,
    UnknownBook,
    UnknownSheet,
    UnusualPrice,
    WrongCurrency,
)
from billing.prices.grid import amount, difference, in_order, parse_rows
from billing.prices.price_books import BASE, PriceBooks
from billing.prices.sheets import PriceProposal, PriceSheet, SheetKind
from billing.prices.version import Rows
from gateway.dialects.json_paths import decode
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.prices import ModelPrices, Price
from gateway.endpoints.request_body import read_management_body
from gateway.errors import Conflict, InvalidRequest, NotAllowed, NotFound
from gateway.http.authentication import OPERATORS, operator
from gateway.services import Gateway
from storage.free_text import InvalidText

_MOST = 100
_STATES = ("draft", "scheduled", "active", "ended", "withdrawn")
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (UnusualPrice, "unusual_price"),
    (PriceInPast, "price_in_past"),
    (OverlappingPrices, "overlapping_prices"),
    (WrongCurrency, "wrong_currency"),
)


class Cell(Struct, frozen=True, forbid_unknown_fields=True):
    """One price, per 1,000,000 units as a decimal string; of every lane and length of prompt unless it says one."""

    meter: str
    price: str
    lane: str = EVERY_LANE
    context_from: int = 0


class NewSheet(Struct, frozen=True, forbid_unknown_fields=True):
    """What is proposed. Without `effective_at` it applies from its activation on; `force` says why unusual prices are
    meant; `dry_run` checks alone."""

    model: str
    prices: tuple[Cell, ...]
    book: str = BASE
    kind: SheetKind = "whole"
    currency: str | None = None
    effective_at: str | None = None
    effective_until: str | None = None
    reason: str = ""
    force: str | None = None
    dry_run: bool = False


class Decision(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a proposal is activated or withdrawn; kept in the log."""

    reason: str = ""


class Difference(Struct, frozen=True):
    """A price that a sheet changes; None where there is none."""

    meter: str
    lane: str
    context_from: int
    before: str | None
    after: str | None


class ChangeObject(Struct, frozen=True):
    """Who did what to a sheet."""

    action: str
    actor: str
    via: str
    reason: str
    at: str
    before_sha256: str
    after_sha256: str


class SheetObject(Struct, frozen=True, kw_only=True):
    """A price sheet as it stands."""

    object: Literal["price_sheet"] = "price_sheet"
    id: int
    model: str
    book: str
    kind: str
    currency: str
    state: str
    effective_at: str | None
    effective_until: str | None
    author: str
    reason: str
    forced: str | None
    created_at: str
    sha256: str
    prices: list[Price]
    changes: list[ChangeObject]


class SheetWithEffect(SheetObject, frozen=True, kw_only=True):
    """A sheet, with the prices that it changes when it begins."""

    difference: list[Difference]


class Check(Struct, frozen=True, kw_only=True):
    """What a proposal would change."""

    object: Literal["price_sheet.check"] = "price_sheet.check"
    currency: str
    difference: list[Difference]


class SheetList(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[SheetObject]
    has_more: bool


class BookPrices(Struct, frozen=True, kw_only=True):
    """The prices of a book that applied at an instant, as they were written: `*` is each lane without its own."""

    object: Literal["list"] = "list"
    book: str
    at: str
    data: list[ModelPrices]


Shape = TypeVar("Shape", SheetObject, SheetWithEffect)

_NEW, _DECISION = msgspec.json.Decoder(NewSheet), msgspec.json.Decoder(Decision)


def price_routes(gateway: Gateway) -> list[HTTPRouteHandler]:  # noqa: PLR0915  # six routes
    """The routes, for one worker."""
    prices, database = gateway.services.prices, gateway.services.database
    patience, wait = gateway.services.options.patience, gateway.patience.prices.wait
    sheets, books = PriceSheets(database, via=BY_KEY), PriceBooks(database)
    only = {OPERATORS: True}

    async def one(number: int) -> SheetWithEffect:
        sheet = await sheets.get(number)
        before, after, _ = await sheets.effect(sheet)
        return _sheet(sheet, SheetWithEffect, difference=_differences(before, after))

    @get("/admin/v1/prices", opt=only)
    async def list_prices(request: Request[Any, Any, Any]) -> Response[bytes]:
        """A book's prices at `at`, or now."""
        given = Parameters(request.query_params.dict())
        model, name, at = given.one("model"), given.one("book") or BASE, given.instant("at")
        given.nothing_else()
        at = await wait(prices.now()) if at is None else at
        with _refusing():
            known = {book.name: book for book in await wait(books.list())}
            if name not in known and name != BASE:
                raise UnknownBook(name)
            found = []
            for each in [model] if model else await wait(prices.models()):
                try:
                    found.append(await wait(prices.in_book(known.get(name), each, at)))
                except PriceMissing:
                    continue
        data = [
            ModelPrices(
                model=version.model,
                version=version.id,
                currency=version.currency,
                effective_at=format_instant(version.effective_at),
                prices=_cells(version.rows),
            )
            for version in found
        ]
        return _answer(BookPrices(book=name, at=format_instant(at), data=data))

    @get("/admin/v1/prices/sheets", opt=only)
    async def list_sheets(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Price sheets, the newest first: drafts that wait, what applies, and what did."""
        given = Parameters(request.query_params.dict())
        model, book, state = given.one("model"), given.one("book"), given.choice("state", _STATES)
        limit, after = given.whole("limit"), given.whole("after")
        given.nothing_else()
        limit = 20 if limit is None else limit
        if not 1 <= limit <= _MOST:
            raise InvalidRequest(f"limit: it is not between 1 and {_MOST}.", path="limit", code="invalid_value")
        found = [
            sheet
            for sheet in await wait(sheets.history(model, book))
            if state in (None, sheet.state) and (after is None or sheet.id < after)
        ]
        listed = [_sheet(sheet, SheetObject) for sheet in found[:limit]]
        return _answer(SheetList(data=listed, has_more=len(found) > limit))

    @get("/admin/v1/prices/sheets/{number:int}", opt=only)
    async def retrieve_sheet(number: FromPath[int]) -> Response[bytes]:
        """One sheet, and what it changes."""
        with _refusing():
            return _answer(await wait(one(number)))

    @post("/admin/v1/prices/sheets", status_code=201, opt=only)
    async def propose(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Keep a proposal for another operator to activate; or say what it would change."""
        who, asked = operator(request.scope), decode(_NEW, await read_management_body(request, patience))
        with _refusing(proposed=True):
            proposal = PriceProposal(
                model=asked.model,
                rows=_rows(asked.prices),
                book=asked.book,
                kind=asked.kind,
                effective_at=_instant("effective_at", asked.effective_at),
                effective_until=_instant("effective_until", asked.effective_until),
                currency=asked.currency,
            )
            if asked.dry_run:
                before, after, currency = await wait(sheets.check(proposal, asked.force))
                return _answer(Check(currency=currency, difference=_differences(before, after)))
            made = await wait(sheets.draft(proposal, who.name, asked.reason, asked.force))
            return _answer(await wait(one(made.id)), 201)

    @post("/admin/v1/prices/sheets/{number:int}/activate", status_code=200, opt=only)
    async def activate(request: Request[Any, Any, Any], number: FromPath[int]) -> Response[bytes]:
        """Bring a draft into force, at its time."""
        who, asked = operator(request.scope), decode(_DECISION, await read_management_body(request, patience) or b"{}")
        with _refusing():
            await wait(sheets.approve(number, who.name, asked.reason))
            return _answer(await wait(one(number)))

    @post("/admin/v1/prices/sheets/{number:int}/withdraw", status_code=200, opt=only)
    async def withdraw(request: Request[Any, Any, Any], number: FromPath[int]) -> Response[bytes]:
        """Take back a draft, or what has not begun."""
        who, asked = operator(request.scope), decode(_DECISION, await read_management_body(request, patience) or b"{}")
        with _refusing():
            await wait(sheets.withdraw(number, who.name, asked.reason))
            return _answer(await wait(one(number)))

    return [list_prices, list_sheets, retrieve_sheet, propose, activate, withdraw]


@contextmanager
def _refusing(*, proposed: bool = False) -> Iterator[None]:
    """Refusals of prices as failures of the request. `proposed`: its body is a proposal, whose field is named."""
    try:
        yield
    except SamePerson as error:
        text = "You wrote this price sheet, so another operator has to activate it."
        raise NotAllowed(text, code="four_eyes_required") from error
    except NotADraft as error:
        raise Conflict(f"{error}.", code="wrong_state") from error
    except UnknownSheet as error:
        raise NotFound(f"There is no price sheet {error.sheet}.") from error
    except UnknownBook as error:
        book = "$.book" if proposed else "book"
        text = f"{book}: there is no price book {error.name[:80]!r}."
        raise InvalidRequest(text, path=book, code="unknown_book") from error
    except InvalidText as error:
        raise InvalidRequest(f"$.{error}.", path=f"$.{error.field}", code="invalid_value") from error
    except (InvalidPrice, InvalidMoney, PriceRefused) as error:
        code = next((code for kind, code in _CODES if isinstance(error, kind)), "price_refused")
        field = error.field if isinstance(error, PriceRefused) else "prices" if isinstance(error, InvalidPrice) else ""
        path = f"$.{field}" if proposed and field else None
        text = str(error).replace("--force REASON", "say why in $.force")
        raise InvalidRequest(f"{text}.", path=path, code=code) from error


def _rows(cells: tuple[Cell, ...]) -> dict[tuple[str, str, int], int]:
    texts = {(cell.meter, cell.lane, cell.context_from): cell.price for cell in cells}
    if len(texts) < len(cells):
        raise InvalidRequest("$.prices: two of them are for the same cell.", path="$.prices", code="invalid_value")
    return parse_rows(texts)


def _instant(name: str, text: str | None) -> int | None:
    try:
        return None if text is None else parse_instant(text)
    except InvalidInstant as error:
        raise InvalidRequest(f"$.{name}: {error}.", path=f"$.{name}", code="invalid_value") from error


def _cells(rows: Rows) -> list[Price]:
    return [Price(meter, lane, tier, amount(micro), micro) for (meter, lane, tier), micro in in_order(rows)]


def _differences(before: Rows, after: Rows) -> list[Difference]:
    def said(micro: int | None) -> str | None:
        return None if micro is None else amount(micro)

    return [Difference(*cell, said(old), said(new)) for cell, old, new in difference(before, after)]


def _sheet(sheet: PriceSheet, shape: type[Shape], **more: Any) -> Shape:
    def instant(at: int | None) -> str | None:
        return None if at is None else format_instant(at)

    return shape(
        id=sheet.id,
        model=sheet.model,
        book=sheet.book.name,
        kind=sheet.kind,
        currency=sheet.book.currency,
        state=sheet.state,
        effective_at=instant(sheet.effective_at),
        effective_until=instant(sheet.effective_until),
        author=sheet.author,
        reason=sheet.reason,
        forced=sheet.forced,
        created_at=format_instant(sheet.created_at),
        sha256=sheet.sha256,
        prices=_cells(sheet.rows),
        changes=[
            ChangeObject(c.action, c.actor, c.via, c.reason, format_instant(c.at), c.before_sha256, c.after_sha256)
            for c in sheet.changes
        ],
        **more,
    )


def _answer(body: Struct, status: int = 200) -> Response[bytes]:
    return Response(msgspec.json.encode(body), status_code=status, media_type=MediaType.JSON)
