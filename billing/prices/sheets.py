"""Price sheets: the prices of one model in one price book, with their state and their log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

import msgspec
from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.prices.errors import OverlappingPrices, UnknownSheet
from billing.prices.price_books import PriceBook, all_books
from billing.prices.version import Cell, Rows
from billing.tables.prices import price_change, price_interval, price_row, price_sheet
from storage.database.database import Database


class Interval(msgspec.Struct, frozen=True):
    """When an approved sheet applies: from `effective_at` (included) to `effective_until` (excluded).

    Without an end it is a standing sheet, which applies until the next standing one begins.
    """

    sheet: int
    effective_at: int
    effective_until: int | None


def in_force(intervals: Iterable[Interval], at: int) -> Interval | None:
    """The interval of one book and model that applies at an instant: a temporary one, else the latest standing one."""
    found: Interval | None = None
    for interval in intervals:
        if interval.effective_at > at:
            continue
        if interval.effective_until is not None:
            if at < interval.effective_until:
                return interval
        elif found is None or interval.effective_at > found.effective_at:
            found = interval
    return found


def check_no_overlap(intervals: Iterable[Interval], effective_at: int, effective_until: int | None) -> None:
    """Raise OverlappingPrices if two sheets would apply at an instant of the new interval."""
    for other in intervals:
        if effective_until is None:
            overlaps = other.effective_until is None and other.effective_at == effective_at
        else:
            overlaps = (
                other.effective_until is not None
                and other.effective_at < effective_until
                and effective_at < other.effective_until
            )
        if overlaps:
            raise OverlappingPrices(
                f"price sheet {other.sheet} already applies then; withdraw it first, or choose another time"
            )


SheetKind = Literal["whole", "overrides"]
SheetState = Literal["draft", "scheduled", "active", "ended", "withdrawn"]


class PriceProposal(msgspec.Struct, frozen=True, kw_only=True):
    """Proposed prices of one model in a book, from an instant on (None: from approval on), perhaps until another.

    A `whole` sheet has a full grid; `overrides` replace cells of the base book's grid. `currency`, if given, must be
    the book's.
    """

    model: str
    rows: Rows
    book: str = "base"
    kind: SheetKind = "whole"
    effective_at: int | None = None
    effective_until: int | None = None
    currency: str | None = None


class PriceChange(msgspec.Struct, frozen=True):
    """An entry of the log: who did what, when and why; how the person was identified (`via`); and hashes of prices."""

    id: int
    sheet: int
    action: str
    actor: str
    reason: str
    at: int
    before_sha256: str
    after_sha256: str
    via: str


class PriceSheet(msgspec.Struct, frozen=True):
    """A sheet as it is now. `effective_at` is None for a draft that will apply from its approval on."""

    id: int
    book: PriceBook
    model: str
    kind: SheetKind
    rows: dict[Cell, int]
    effective_at: int | None
    effective_until: int | None
    author: str
    reason: str
    forced: str | None
    created_at: int
    sha256: str
    state: SheetState
    changes: list[PriceChange]


_LARGEST = 2**31 - 1
"""No sheet has a larger number, and PostgreSQL takes none."""


def proposed(sheet: PriceSheet) -> PriceProposal:
    """The proposal that a sheet was made from."""
    return PriceProposal(
        model=sheet.model,
        rows=sheet.rows,
        book=sheet.book.name,
        kind=sheet.kind,
        effective_at=sheet.effective_at,
        effective_until=sheet.effective_until,
    )


async def one_sheet(session: AsyncSession, database: Database, sheet: int) -> PriceSheet:
    found = await sheets(session, database, price_sheet.c.id == sheet) if sheet <= _LARGEST else []
    if not found:
        raise UnknownSheet(sheet)
    return found[0]


async def sheets(session: AsyncSession, database: Database, *which: ColumnElement[bool]) -> list[PriceSheet]:
    """The sheets that meet the conditions, newest first."""
    heads = (await session.execute(select(price_sheet).where(*which).order_by(price_sheet.c.id.desc()))).all()
    among = select(price_sheet.c.id).where(*which)
    rows: dict[int, dict[Cell, int]] = defaultdict(dict)
    for row in await session.execute(select(price_row).where(price_row.c.sheet.in_(among))):
        rows[row.sheet][row.meter, row.lane, row.context_from] = row.price_micro
    changes: dict[int, list[PriceChange]] = defaultdict(list)
    for row in await session.execute(
        select(price_change).where(price_change.c.sheet.in_(among)).order_by(price_change.c.id)
    ):
        changes[row.sheet].append(PriceChange(*row))
    intervals: dict[tuple[int, str], list[Interval]] = defaultdict(list)
    for row in await session.execute(select(price_interval)):
        intervals[row.book, row.model].append(Interval(row.sheet, row.effective_at, row.effective_until))
    books = {book.id: book for book in await all_books(session)}
    now = (await session.execute(select(database.clock))).scalar_one()
    found = []
    for head in heads:
        of_model = intervals[head.book, head.model]
        own = next((interval for interval in of_model if interval.sheet == head.id), None)
        found.append(
            PriceSheet(
                id=head.id,
                book=books[head.book],
                model=head.model,
                kind=head.kind,
                rows=rows[head.id],
                effective_at=own.effective_at if own else head.effective_at,
                effective_until=head.effective_until,
                author=head.author,
                reason=head.reason,
                forced=head.forced,
                created_at=head.created_at,
                sha256=head.sha256,
                state=_state(changes[head.id], own, of_model, now),
                changes=changes[head.id],
            )
        )
    return found


async def intervals_of(session: AsyncSession, book: int, model: str) -> list[Interval]:
    columns = (getattr(price_interval.c, name) for name in Interval.__struct_fields__)
    query = select(*columns).where(price_interval.c.book == book, price_interval.c.model == model)
    return [Interval(*row) for row in await session.execute(query)]


async def rows_of_sheet(session: AsyncSession, sheet: int) -> dict[Cell, int]:
    rows = await session.execute(select(price_row).where(price_row.c.sheet == sheet))
    return {(row.meter, row.lane, row.context_from): row.price_micro for row in rows}


def _state(changes: list[PriceChange], own: Interval | None, intervals: list[Interval], now: int) -> SheetState:
    if own is None:
        if any(change.action == "withdraw" for change in changes):
            return "withdrawn"
        return "ended" if any(change.action in ("set", "approve") for change in changes) else "draft"
    if own.effective_at > now:
        return "scheduled"
    if own.effective_until is not None:
        return "active" if now < own.effective_until else "ended"
    standing = in_force([interval for interval in intervals if interval.effective_until is None], now)
    return "active" if standing == own else "ended"
