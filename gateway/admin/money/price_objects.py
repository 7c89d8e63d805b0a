"""Price sheets and prices as `/admin/v1/prices` takes and shows them."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from msgspec import Struct

from billing.prices import EVERY_LANE
from billing.prices.grid import amount, difference, in_order, parse_rows
from billing.prices.price_books import BASE
from billing.prices.sheets import PriceSheet, SheetKind
from billing.prices.version import Rows
from gateway.endpoints.prices import ModelPrices, Price
from gateway.errors import InvalidField
from gateway.http.shapes import Instant, Page, Pico, TenantId, show


class Cell(Struct, frozen=True, forbid_unknown_fields=True):
    """One price per 1,000,000 units, as a decimal string; for every lane and prompt length unless they are given."""

    meter: str
    price: str
    lane: str = EVERY_LANE
    context_from: int = 0


class NewSheet(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a proposal. Without `effective_at`, it applies from its activation on. `force`: the reason why prices
    that look unusual are intended. `dry_run`: only check."""

    model: str
    prices: tuple[Cell, ...]
    book: str = BASE
    kind: SheetKind = "whole"
    currency: str | None = None
    effective_at: Instant | None = None
    effective_until: Instant | None = None
    reason: str = ""
    force: str | None = None
    dry_run: bool = False


class Decision(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an activation or withdrawal; the reason is recorded."""

    reason: str = ""


class Difference(Struct, frozen=True):
    """A price that a sheet changes; None where there is no price."""

    meter: str
    lane: str
    context_from: int
    before: str | None
    after: str | None


class ChangeObject(Struct, frozen=True):
    """A recorded change of a sheet."""

    action: str
    actor: str
    via: str
    reason: str
    at: Instant
    before_sha256: str
    after_sha256: str


class SheetObject(Struct, frozen=True, kw_only=True):
    """A price sheet in its present state."""

    object: Literal["price_sheet"] = "price_sheet"
    id: int
    model: str
    book: str
    kind: str
    currency: str
    state: str
    effective_at: Instant | None
    effective_until: Instant | None
    author: str
    reason: str
    forced: str | None
    created_at: Instant
    sha256: str
    prices: list[Price]
    changes: list[ChangeObject]


class SheetWithDifference(SheetObject, frozen=True, kw_only=True):
    """A sheet with the prices that it changes when it takes effect."""

    difference: list[Difference]


class Check(Struct, frozen=True, kw_only=True):
    """The result of a dry run: what the proposal would change."""

    object: Literal["price_sheet.check"] = "price_sheet.check"
    currency: str
    difference: list[Difference]


class SheetList(Page[SheetObject], frozen=True):
    """A page of price sheets."""


class BookPrices(Struct, frozen=True, kw_only=True):
    """The prices of a book at an instant, as they were entered: lane `*` is every lane without a price of its own."""

    object: Literal["list"] = "list"
    book: str
    at: Instant
    data: list[ModelPrices]


class TenantImpactObject(Struct, frozen=True):
    """What a tenant's requests cost, and what they would have cost."""

    tenant: TenantId
    cost: Pico
    would_cost: Pico


class ImpactObject(Struct, frozen=True, kw_only=True):
    """What a month's requests cost, and what they would have cost, without cache storage and before contracts.
    `would_cost`: none where it cannot be told exactly; `inexact` says why. `left_out`: how many tenants have prices of
    their own over these. `closed`: whether the month's usage is complete. `by_tenant`: the tenants with the largest
    differences, a hundred at most."""

    object: Literal["price_sheet.impact"] = "price_sheet.impact"
    sheet: int
    period: str
    closed: bool
    currency: str
    requests: int
    tenants: int
    left_out: int
    cost: Pico
    would_cost: Pico | None
    inexact: str
    by_tenant: list[TenantImpactObject]


Shape = TypeVar("Shape", SheetObject, SheetWithDifference)


def rows_of(cells: tuple[Cell, ...]) -> dict[tuple[str, str, int], int]:
    """The rows that cells of a body give. Raises InvalidField, InvalidPrice."""
    texts = {(cell.meter, cell.lane, cell.context_from): cell.price for cell in cells}
    if len(texts) < len(cells):
        raise InvalidField("$.prices", "two prices have the same meter, lane and context_from")
    return parse_rows(texts)


def price_cells(rows: Rows) -> list[Price]:
    """Rows as cells, in the order in which prices are read."""
    return [Price(meter, lane, tier, amount(micro), micro) for (meter, lane, tier), micro in in_order(rows)]


def differences(before: Rows, after: Rows) -> list[Difference]:
    """What changes between two states of a book."""

    def price_text(micro: int | None) -> str | None:
        return None if micro is None else amount(micro)

    return [Difference(*cell, price_text(old), price_text(new)) for cell, old, new in difference(before, after)]


def sheet_object(sheet: PriceSheet, shape: type[Shape], **more: Any) -> Shape:
    """A sheet as it is shown."""
    return show(
        shape,
        sheet,
        book=sheet.book.name,
        currency=sheet.book.currency,
        prices=price_cells(sheet.rows),
        changes=[show(ChangeObject, change) for change in sheet.changes],
        **more,
    )
