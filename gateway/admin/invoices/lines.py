"""The lines of an invoice, opened down to their requests.

A line opens into days, a day into hours, an hour into requests. Each level's sum is its parent's, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Generic, Literal, TypeAlias, TypeVar
from uuid import UUID

from msgspec import Meta, Struct

from billing.calendar import format_instant, is_readable
from billing.invoices import drill_down
from billing.invoices.document import Document, InvoiceLine
from billing.invoices.drill_down import LineSlice
from billing.invoices.store import Invoices
from billing.money import format_minor, format_pico
from billing.prices.grid import amount
from gateway.admin.invoices.invoices import AT, EXAMPLE, InvoiceOfTenant
from gateway.admin.operation import PageSizes, Query, operation
from gateway.errors import InvalidField, NotFound
from gateway.http.policies import demands
from gateway.http.shapes import Instant, PageQuery, Pico, show
from gateway.request_context import public_name
from gateway.services import Gateway
from storage.database.base import to_instant
from tenancy.directory import Directory, NamedKey, project_public_id


class LineObject(Struct, frozen=True, kw_only=True):
    """A line of an invoice. `exact` is units × price, `net` the same rounded once; `price` is per 1,000,000 units.
    `opens`: whether it has days, hours and requests."""

    object: Literal["invoice.line"] = "invoice.line"
    n: int
    kind: str
    text: str
    project_id: str | None
    model: str
    meter: str
    lane: str
    context_from: int
    price_version: int | None
    price: str | None
    units: int
    corrects: str
    service_from: str
    service_until: str
    exact: str
    net: str
    opens: bool


class LineList(Struct, frozen=True, kw_only=True):
    """Lines in the order of the document; `after` is the number of the last one."""

    object: Literal["list"] = "list"
    currency: str
    data: list[LineObject]
    has_more: bool


class SliceObject(Struct, frozen=True, kw_only=True):
    """A line's part of a day or an hour, from `start` on. `requests` leaves out adjustments, `units` has them."""

    object: Literal["invoice.slice"] = "invoice.slice"
    start: Instant
    requests: int
    adjustments: int
    units: int
    exact: Pico


class BilledRequestObject(Struct, frozen=True, kw_only=True):
    """A line's part of one request, or of an adjustment of the request that it `corrects`."""

    object: Literal["invoice.request"] = "invoice.request"
    id: str
    corrects: str | None
    project_id: str
    key: str | None
    key_name: str | None
    admitted_at: str
    units: int
    exact: str


class Sum(Struct, frozen=True, kw_only=True):
    """Units and their exact amount."""

    units: int
    exact: str


Level: TypeAlias = Literal["day", "hour", "request"]
Part = TypeVar("Part", SliceObject, BilledRequestObject)


class Drill(Struct, Generic[Part], frozen=True, kw_only=True):
    """One level of a line: `total` is what its parent says (the line, the day, the hour), which the whole level adds up
    to. `next` is the `after` of the next page of requests."""

    object: Literal["invoice.drill"] = "invoice.drill"
    line: int
    by: Level
    currency: str
    total: Sum
    data: list[Part]
    has_more: bool
    next: str | None


class InvoiceLineOperations:
    """Lists the lines of invoices, and opens them."""

    def __init__(self, gateway: Gateway) -> None:
        database = self._database = gateway.services.database
        self._invoices, self._directory = Invoices(database), Directory(database)

    @operation("GET", f"{AT}/lines", demands("invoices.read"), path=EXAMPLE)
    async def list_lines(
        self,
        invoice: InvoiceOfTenant,
        limit: Annotated[int, Meta(ge=1, le=100), Query("How many objects to list; 20 without it.", example=20)] = 20,
        after: Annotated[int, Query("The number of the last line of the page before.", example=20)] = 0,
    ) -> LineList:
        """The lines of an invoice."""
        _, record = invoice
        document = await self._invoices.document(record)
        lines = list(enumerate(document.lines, 1))[after:]
        return LineList(
            currency=record.currency,
            data=[line_object(n, line, record.currency) for n, line in lines[:limit]],
            has_more=len(lines) > limit,
        )

    @operation(
        "GET",
        f"{AT}/lines/{{line:int}}/drill",
        demands("invoices.read"),
        path=EXAMPLE | {"line": 1},
        errors={"missing_required_parameter": 400},
    )
    async def drill_line(
        self,
        invoice: InvoiceOfTenant,
        line: int,
        page: Annotated[PageQuery, PageSizes(most=1000, default=100)],
        *,
        by: Annotated[Level, Query("The level; days without it.")] = "day",
        day: Annotated[
            str | None, Query("The day whose hours or requests are wanted (UTC).", example="2026-11-30")
        ] = None,
        hour: Annotated[
            int | None, Query("The hour of that day whose requests are wanted, 0 to 23.", example=13)
        ] = None,
    ) -> Drill[SliceObject] | Drill[BilledRequestObject]:
        """A line's days, a day's hours, or an hour's requests."""
        owner, record = invoice
        start = _start(by, day, hour)
        opened = _opened(await self._invoices.document(record), line)
        if by == "request":
            parent = await drill_down.hour_slice(self._database, record, line, start)
            part = await drill_down.requests(
                self._database, record, line, start, after=_cursor(page.after), limit=page.limit
            )
            keys = {billed.key_id for billed in part.requests}
            names = await self._directory.named_keys(owner.id, keys) if keys else {}
            return Drill[BilledRequestObject](
                line=line,
                by=by,
                currency=record.currency,
                total=_sum(parent),
                data=[_billed(billed, names) for billed in part.requests],
                has_more=part.after is not None,
                next=None if part.after is None else f"{part.after[0]:x}-{part.after[1].hex}",
            )
        if by == "hour":
            parent = await drill_down.day_slice(self._database, record, line, start)
            slices, total = await drill_down.hours(self._database, record, line, start), _sum(parent)
        else:
            slices = await drill_down.days(self._database, record, line)
            total = Sum(units=int(opened.units), exact=format_pico(int(opened.exact)))
        return Drill[SliceObject](
            line=line,
            by=by,
            currency=record.currency,
            total=total,
            data=[show(SliceObject, part, exact=part.exact_pico) for part in slices],
            has_more=False,
            next=None,
        )


def line_object(n: int, line: InvoiceLine, currency: str) -> LineObject:
    """A line as answers have it."""
    priced = bool(line.unit)
    return show(
        LineObject,
        line,
        n=n,
        project_id=project_public_id(UUID(line.project_id)) if line.project_id else None,
        price_version=line.price_version or None,
        price=amount(line.price) if priced else None,
        units=int(line.units),
        exact=format_pico(int(line.exact)),
        net=format_minor(line.net, currency),
        opens=line.kind in drill_down.OPENED and not line.of,
    )


def _opened(document: Document, n: int) -> InvoiceLine:
    """The line of a number, if it opens. Raises NotFound, InvalidField."""
    if not 1 <= n <= len(document.lines):
        raise NotFound(f"There is no line {n}: the invoice has the lines 1 to {len(document.lines)}.")
    line = document.lines[n - 1]
    if line.kind not in drill_down.OPENED or line.of:
        raise InvalidField("line", f"line {n} is no usage, so it has no days", code="line_has_no_days")
    return line


def _start(by: Level, day: str | None, hour: int | None) -> int:
    """The beginning of the day or hour to be opened; 0 for the whole line. Raises InvalidField."""
    if (by == "day" and day is not None) or (by != "request" and hour is not None):
        name = "day" if by == "day" and day is not None else "hour"
        raise InvalidField(name, f"it is not for the level {by!r}", code="unknown_parameter")
    if by == "day":
        return 0
    if day is None:
        raise InvalidField("day", "it is missing", code="missing_required_parameter")
    try:
        start = to_instant(datetime.strptime(day[:20], "%Y-%m-%d").replace(tzinfo=UTC))
        if not is_readable(start):
            raise ValueError(day)
    except ValueError as error:
        raise InvalidField("day", f"{day[:40]!r} is not a day such as 2026-11-30") from error
    if by == "request" and (hour is None or hour > 23):
        raise InvalidField("hour", "it must be from 0 to 23")
    return start + (hour or 0) * drill_down.HOUR


def _cursor(text: str | None) -> tuple[int, UUID] | None:
    if text is None:
        return None
    at, _, identity = text.partition("-")
    try:
        place = int(at[:16], 16), UUID(identity)
    except ValueError as error:
        raise InvalidField("after", "it is not one that was returned here") from error
    if place[0] >= 2**60 or place[0] < 0:
        raise InvalidField("after", "it is not one that was returned here")
    return place


def _sum(part: LineSlice | None) -> Sum:
    return Sum(units=0 if part is None else part.units, exact=format_pico(0 if part is None else part.exact_pico))


def _billed(billed: drill_down.BilledRequest, keys: Mapping[UUID, NamedKey]) -> BilledRequestObject:
    key = keys.get(billed.key_id)
    return BilledRequestObject(
        id=public_name(billed.id),
        corrects=None if billed.corrects is None else public_name(billed.corrects),
        project_id=project_public_id(billed.project_id),
        key=None if key is None else key.public_id,
        key_name=None if key is None else key.name,
        admitted_at=format_instant(billed.admitted_at),
        units=billed.units,
        exact=format_pico(billed.exact_pico),
    )
