"""/admin/v1/prices: an operator proposes prices, and another operator activates them.

Requests carry an operator's own key (`turnpike keys create --operator --name WHO`); its name is recorded. A proposal
stays a draft until another person activates it (docs/access.md), whether or not the platform requires approvals.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Meta

from audit_log.actors import current_actor
from billing.approvals.approvals import Approvals
from billing.calendar import InvalidInstant, format_instant, parse_instant
from billing.money import InvalidMoney, InvalidPrice
from billing.pending_changes import ApprovalRefused
from billing.prices import PriceMissing
from billing.prices.approval import PriceSheets, via_of_sheets
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
from billing.prices.price_books import BASE, PriceBooks
from billing.prices.sheets import PriceProposal
from gateway.admin.money.price_objects import (
    BookPrices,
    Cell,
    Check,
    Decision,
    NewSheet,
    SheetList,
    SheetObject,
    SheetWithDifference,
    differences,
    price_cells,
    rows_of,
    sheet_object,
)
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.prices import ModelPrices
from gateway.endpoints.request_body import read_management_body
from gateway.errors import Conflict, InvalidField, InvalidRequest, NotAllowed, NotFound
from gateway.http.operations import describes, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.request_context import request_context
from gateway.services import Gateway
from storage.free_text import InvalidText

_STATES = ("draft", "scheduled", "active", "ended", "withdrawn")
_ERROR_CODES: tuple[tuple[type[Exception], str], ...] = (
    (UnusualPrice, "unusual_price"),
    (PriceInPast, "price_in_past"),
    (OverlappingPrices, "overlapping_prices"),
    (WrongCurrency, "wrong_currency"),
)


_DECIDED: dict[str, Any] = {
    "body": Decision("agreed with finance"),
    "body_required": False,
    "errors": {"four_eyes_required": 403, "wrong_state": 409} | {code: 400 for _, code in _ERROR_CODES},
}

_NEW, _DECISION = msgspec.json.Decoder(NewSheet), msgspec.json.Decoder(Decision)


def price_routes(gateway: Gateway) -> list[HTTPRouteHandler]:  # noqa: PLR0915  # six routes
    """The routes, for one worker."""
    prices, database = gateway.services.prices, gateway.services.database
    client_timeout = gateway.services.options.client_timeout
    sheets, books, approvals = PriceSheets(database), PriceBooks(database), Approvals(database, prices)

    def sheets_now() -> PriceSheets:
        """What writes sheets, and records how it is known who does."""
        return PriceSheets(database, via=via_of_sheets(current_actor()))

    async def current_sheet(number: int) -> SheetWithDifference:
        sheet = await sheets.get(number)
        before, after, _ = await sheets.effect(sheet)
        return sheet_object(sheet, SheetWithDifference, difference=differences(before, after))

    @get(
        "/admin/v1/prices",
        opt=demands("prices.read", platform=True)
        | describes(
            BookPrices,
            query=(
                query("model", str, "Only this model's."),
                query("book", str, "The price book; the base book without it."),
                query("at", str, "An instant (RFC 3339)."),
            ),
            errors={"unknown_book": 400},
        ),
    )
    async def list_prices(request: Request[Any, Any, Any]) -> Response[bytes]:
        """A book's prices at the instant `at`, or now."""
        parameters = Parameters.of(request)
        model, name, at = parameters.text("model"), parameters.text("book") or BASE, parameters.instant("at")
        parameters.reject_unknown()
        at = await prices.now() if at is None else at
        with _price_errors():
            book_of = {book.name: book for book in await books.list()}
            if name not in book_of and name != BASE:
                raise UnknownBook(name)
            versions = []
            for priced_model in [model] if model else await prices.models():
                try:
                    versions.append(await prices.in_book(book_of.get(name), priced_model, at))
                except PriceMissing:
                    continue
        data = [
            ModelPrices(
                model=version.model,
                version=version.id,
                currency=version.currency,
                effective_at=format_instant(version.effective_at),
                prices=price_cells(version.rows),
            )
            for version in versions
        ]
        return json_response(BookPrices(book=name, at=format_instant(at), data=data))

    @get(
        "/admin/v1/prices/sheets",
        opt=demands("prices.read", platform=True)
        | describes(
            SheetList,
            query=(
                query("limit", Annotated[int, Meta(ge=1, le=100)], "How many to list; 20 without it.", example=20),
                query("after", Annotated[int, Meta(ge=0, lt=2**40)], "The number of the last sheet before.", example=7),
                query("model", str, "Only this model's."),
                query("book", str, "Only this book's."),
                query("state", Literal[_STATES], "Only those in this state."),
            ),
        ),
    )
    async def list_price_sheets(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Price sheets in all states, newest first."""
        parameters = Parameters.of(request)
        model, book = parameters.text("model"), parameters.text("book")
        state = parameters.choice("state", _STATES)
        limit, after = parameters.page_size(), parameters.integer("after")
        parameters.reject_unknown()
        found = [
            sheet
            for sheet in await sheets.history(model, book)
            if state in (None, sheet.state) and (after is None or sheet.id < after)
        ]
        listed = [sheet_object(sheet, SheetObject) for sheet in found[:limit]]
        return json_response(SheetList(data=listed, has_more=len(found) > limit))

    @get(
        "/admin/v1/prices/sheets/{number:int}",
        opt=demands("prices.read", platform=True) | describes(SheetWithDifference),
    )
    async def retrieve_price_sheet(number: FromPath[int]) -> Response[bytes]:
        """One sheet, and the prices that it changes."""
        with _price_errors():
            return json_response(await current_sheet(number))

    @post(
        "/admin/v1/prices/sheets",
        status_code=201,
        opt=demands("prices.propose")
        | describes(
            {200: Check, 201: SheetWithDifference},
            body=NewSheet("tiny", (Cell("output", "1.60"),), reason="agreed with finance"),
            errors={"unknown_book": 400, "price_refused": 400} | {code: 400 for _, code in _ERROR_CODES},
        ),
    )
    async def propose_price_sheet(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Save a proposal, which another operator may activate; or, for a dry run, only check it."""
        author, body = (
            request_context(request.scope).authenticated_principal,
            await read_management_body(request, client_timeout, _NEW),
        )
        with _price_errors(in_proposal=True):
            proposal = PriceProposal(
                model=body.model,
                rows=rows_of(body.prices),
                book=body.book,
                kind=body.kind,
                effective_at=_instant("effective_at", body.effective_at),
                effective_until=_instant("effective_until", body.effective_until),
                currency=body.currency,
            )
            if body.dry_run:
                before, after, currency = await sheets.check(proposal, body.force)
                return json_response(Check(currency=currency, difference=differences(before, after)))
            draft = await sheets_now().draft(proposal, author.name, body.reason, body.force)
            return json_response(await current_sheet(draft.id), 201)

    @post(
        "/admin/v1/prices/sheets/{number:int}/activate",
        status_code=200,
        opt=demands("prices.approve") | describes(SheetWithDifference, **_DECIDED),
    )
    async def activate_price_sheet(request: Request[Any, Any, Any], number: FromPath[int]) -> Response[bytes]:
        """Activate a draft; it applies from its `effective_at` on."""
        approver = request_context(request.scope).authenticated_principal
        body = await read_management_body(request, client_timeout, _DECISION, default=b"{}")
        with _price_errors():
            await sheets_now().approve(number, approver.name, body.reason)
            return json_response(await current_sheet(number))

    @post(
        "/admin/v1/prices/sheets/{number:int}/withdraw",
        status_code=200,
        opt=demands("prices.propose") | describes(SheetWithDifference, **_DECIDED),
    )
    async def withdraw_price_sheet(request: Request[Any, Any, Any], number: FromPath[int]) -> Response[bytes]:
        """Withdraw a draft, or a sheet that has not taken effect. Who did not write it needs `prices.approve`."""
        operator = request_context(request.scope).authenticated_principal
        body = await read_management_body(request, client_timeout, _DECISION, default=b"{}")
        with _price_errors():
            await approvals.withdraw_sheet(number, operator.may, body.reason)
            return json_response(await current_sheet(number))

    return [
        list_prices,
        list_price_sheets,
        retrieve_price_sheet,
        propose_price_sheet,
        activate_price_sheet,
        withdraw_price_sheet,
    ]


@contextmanager
def _price_errors(*, in_proposal: bool = False) -> Iterator[None]:
    """Turn errors of `billing.prices` into errors of the request. `in_proposal`: they name fields of the body."""
    try:
        yield
    except SamePerson as error:
        text = "You wrote this price sheet; another operator must activate it."
        raise NotAllowed(text, code="four_eyes_required") from error
    except ApprovalRefused as error:
        raise NotAllowed(f"{error}.") from error
    except NotADraft as error:
        raise Conflict(f"{error}.", code="wrong_state") from error
    except UnknownSheet as error:
        raise NotFound(f"There is no price sheet {error.sheet}.") from error
    except UnknownBook as error:
        book = "$.book" if in_proposal else "book"
        raise InvalidField(book, f"there is no price book {error.name[:80]!r}", code="unknown_book") from error
    except InvalidText as error:
        raise InvalidRequest(f"$.{error}.", path=f"$.{error.field}", code="invalid_value") from error
    except (InvalidPrice, InvalidMoney, PriceRefused) as error:
        code = next((code for kind, code in _ERROR_CODES if isinstance(error, kind)), "price_refused")
        field = error.field if isinstance(error, PriceRefused) else "prices" if isinstance(error, InvalidPrice) else ""
        path = f"$.{field}" if in_proposal and field else None
        text = str(error).replace("--force REASON", "say why in $.force")
        raise InvalidRequest(f"{text}.", path=path, code=code) from error


def _instant(name: str, text: str | None) -> int | None:
    try:
        return None if text is None else parse_instant(text)
    except InvalidInstant as error:
        raise InvalidField(f"$.{name}", str(error)) from error
