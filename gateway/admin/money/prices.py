"""/admin/v1/prices: an operator proposes prices, and another operator activates them.

Requests carry an operator's own key (`turnpike keys create --operator --name WHO`); its name is recorded. A proposal
stays a draft until another person activates it (docs/access.md), whether or not the platform requires approvals.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from msgspec import Meta

from audit_log.actors import current_actor
from billing.approvals.approvals import Approvals
from billing.calendar import format_instant
from billing.money import InvalidMoney, InvalidPrice
from billing.pending_changes import ApprovalRefused
from billing.periods.periods import Periods
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
from billing.prices.sheets import PriceProposal, SheetState
from billing.reports.price_impact import price_impact
from gateway.admin.money.price_objects import (
    BookPrices,
    Cell,
    Check,
    Decision,
    ImpactObject,
    NewSheet,
    SheetList,
    SheetObject,
    SheetWithDifference,
    differences,
    price_cells,
    rows_of,
    sheet_object,
)
from gateway.admin.operation import Call, Query, operation
from gateway.admin.refusals import refusals
from gateway.endpoints.prices import ModelPrices
from gateway.errors import Conflict, InvalidField, InvalidRequest, NotAllowed, NotFound
from gateway.http.policies import demands
from gateway.http.shapes import Instant, show
from gateway.services import Gateway
from storage.free_text import InvalidText

_ERROR_CODES: tuple[tuple[type[Exception], str], ...] = (
    (UnusualPrice, "unusual_price"),
    (PriceInPast, "price_in_past"),
    (OverlappingPrices, "overlapping_prices"),
    (WrongCurrency, "wrong_currency"),
)
_PROPOSED = {code: 400 for _, code in _ERROR_CODES}
_DECIDED: dict[str, Any] = {
    "example": Decision("agreed with finance"),
    "body_required": False,
    "errors": {"four_eyes_required": 403, "wrong_state": 409} | _PROPOSED,
}
_SHEETS, _SHEET = "/admin/v1/prices/sheets", "/admin/v1/prices/sheets/{number:int}"
_READ = demands("prices.read", platform=True)


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


class PriceOperations:
    """Shows prices and what they would cost; proposes, activates and withdraws price sheets."""

    errors = staticmethod(_price_errors)

    def __init__(self, gateway: Gateway) -> None:
        self._database, self._prices = gateway.services.database, gateway.services.prices
        self._sheets, self._books = PriceSheets(self._database), PriceBooks(self._database)
        self._approvals = Approvals(self._database, self._prices)

    @operation("GET", "/admin/v1/prices", _READ, errors={"unknown_book": 400})
    async def list_prices(
        self,
        model: Annotated[str, Query("Only this model's.")] = "",
        book: Annotated[str, Query("The price book; the base book without it.")] = "",
        at: Annotated[Instant | None, Query("An instant (RFC 3339).")] = None,
    ) -> BookPrices:
        """A book's prices at the instant `at`, or now."""
        name, instant = book or BASE, await self._prices.now() if at is None else at
        books = {book.name: book for book in await self._books.list()}
        if name not in books and name != BASE:
            raise UnknownBook(name)
        data = []
        for priced_model in [model] if model else await self._prices.models():
            try:
                version = await self._prices.in_book(books.get(name), priced_model, instant)
            except PriceMissing:
                continue
            data.append(
                ModelPrices(
                    model=version.model,
                    version=version.id,
                    currency=version.currency,
                    effective_at=format_instant(version.effective_at),
                    prices=price_cells(version.rows),
                )
            )
        return BookPrices(book=name, at=Instant(instant), data=data)

    @operation("GET", _SHEETS, _READ)
    async def list_price_sheets(
        self,
        limit: Annotated[int, Meta(ge=1, le=100), Query("How many to list; 20 without it.", example=20)] = 20,
        after: Annotated[
            int | None, Meta(ge=0, lt=2**40), Query("The number of the last sheet before.", example=7)
        ] = None,
        model: Annotated[str | None, Query("Only this model's.")] = None,
        book: Annotated[str | None, Query("Only this book's.")] = None,
        state: Annotated[SheetState | None, Query("Only those in this state.")] = None,
    ) -> SheetList:
        """Price sheets in all states, newest first."""
        sheets = [
            sheet
            for sheet in await self._sheets.history(model, book)
            if state in (None, sheet.state) and (after is None or sheet.id < after)
        ]
        return SheetList.of([sheet_object(sheet, SheetObject) for sheet in sheets[: limit + 1]], limit)

    @operation("GET", _SHEET, _READ)
    async def retrieve_price_sheet(self, number: int) -> SheetWithDifference:
        """One sheet, and the prices that it changes."""
        sheet = await self._sheets.get(number)
        before, after, _ = await self._sheets.effect(sheet)
        return sheet_object(sheet, SheetWithDifference, difference=differences(before, after))

    @operation("GET", f"{_SHEET}/impact", _READ)
    async def price_sheet_impact(
        self, number: int, period: Annotated[str, Query("The month.", example="2026-11")]
    ) -> ImpactObject:
        """What a month would have cost at the prices of a sheet, from the units that were billed."""
        sheet = await self._sheets.get(number)
        with refusals():
            _, after, currency = await self._sheets.effect(sheet)
            impact = await price_impact(self._database, self._prices, sheet, after, period)
            month = await Periods(self._database).get(period)
        return show(
            ImpactObject,
            impact,
            sheet=number,
            period=period,
            closed=month.state == "closed",
            currency=currency,
            cost=impact.cost_pico,
            would_cost=impact.would_cost_pico,
            by_tenant=[
                {"tenant": one.tenant_id, "cost": one.cost_pico, "would_cost": one.would_cost_pico}
                for one in impact.by_tenant
            ],
        )

    @operation(
        "POST",
        _SHEETS,
        demands("prices.propose"),
        status={Check: 200, SheetWithDifference: 201},
        example=NewSheet("tiny", (Cell("output", "1.60"),), reason="agreed with finance"),
        errors={"unknown_book": 400, "price_refused": 400} | _PROPOSED,
    )
    async def propose_price_sheet(self, call: Call, body: NewSheet) -> Check | SheetWithDifference:
        """Save a proposal, which another operator may activate; or, for a dry run, only check it."""
        with _price_errors(in_proposal=True):
            proposal = PriceProposal(
                model=body.model,
                rows=rows_of(body.prices),
                book=body.book,
                kind=body.kind,
                effective_at=body.effective_at,
                effective_until=body.effective_until,
                currency=body.currency,
            )
            if body.dry_run:
                before, after, currency = await self._sheets.check(proposal, body.force)
                return Check(currency=currency, difference=differences(before, after))
            draft = await self._sheets_now().draft(proposal, call.principal.name, body.reason, body.force)
            return await self.retrieve_price_sheet(draft.id)

    @operation("POST", f"{_SHEET}/activate", demands("prices.approve"), **_DECIDED)
    async def activate_price_sheet(self, call: Call, number: int, body: Decision) -> SheetWithDifference:
        """Activate a draft; it applies from its `effective_at` on."""
        await self._sheets_now().approve(number, call.principal.name, body.reason)
        return await self.retrieve_price_sheet(number)

    @operation("POST", f"{_SHEET}/withdraw", demands("prices.propose"), **_DECIDED)
    async def withdraw_price_sheet(self, call: Call, number: int, body: Decision) -> SheetWithDifference:
        """Withdraw a draft, or a sheet that has not taken effect. Who did not write it needs `prices.approve`."""
        await self._approvals.withdraw_sheet(number, call.principal.may, body.reason)
        return await self.retrieve_price_sheet(number)

    def _sheets_now(self) -> PriceSheets:
        """What writes sheets, and records how it is known who does."""
        return PriceSheets(self._database, via=via_of_sheets(current_actor()))
