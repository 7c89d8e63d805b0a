"""The lines of an invoice, opened down to their requests.

A line opens into days, a day into hours, an hour into requests. Each level's sum is its parent's, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args
from uuid import UUID

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from billing.calendar import format_instant, is_readable
from billing.invoices import drill_down
from billing.invoices.document import Document, InvoiceLine
from billing.invoices.drill_down import LineSlice
from billing.money import format_minor, format_pico
from billing.prices.grid import amount
from gateway.admin.invoices.invoices import AT, InvoiceFinder
from gateway.admin.refusals import refusals
from gateway.dialects.query_parameters import Parameters
from gateway.errors import InvalidField, NotFound
from gateway.http.operations import describes, page, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
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
    start: str
    requests: int
    adjustments: int
    units: int
    exact: str


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


def invoice_line_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    database = gateway.services.database
    finder, directory = InvoiceFinder(gateway), Directory(gateway.services.database)
    invoices = finder.invoices

    @get(
        f"{AT}/lines",
        opt=demands("invoices.read")
        | describes(
            LineList,
            query=(page()[0], query("after", int, "The number of the last line of the page before.", example=20)),
            path={"invoice": "INV-2026-000042"},
        ),
    )
    async def list_lines(
        request: Request[Any, Any, Any], tenant: FromPath[str], invoice: FromPath[str]
    ) -> Response[bytes]:
        """The lines of an invoice."""
        _, record = await finder.find(request, tenant, invoice)
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(), parameters.integer("after") or 0
        parameters.reject_unknown()
        with refusals():
            document = await invoices.document(record)
        shown = list(enumerate(document.lines, 1))[after:]
        return json_response(
            LineList(
                currency=record.currency,
                data=[line_object(n, line, record.currency) for n, line in shown[:limit]],
                has_more=len(shown) > limit,
            )
        )

    @get(
        f"{AT}/lines/{{line:int}}/drill",
        opt=demands("invoices.read")
        | describes(
            (Drill[SliceObject], Drill[BilledRequestObject]),
            query=(
                *page(1000, 100),
                query("by", Level, "The level; days without it."),
                query("day", str, "The day whose hours or requests are wanted (UTC).", example="2026-11-30"),
                query("hour", int, "The hour of that day whose requests are wanted, 0 to 23.", example=13),
            ),
            path={"invoice": "INV-2026-000042", "line": 1},
            errors={"missing_required_parameter": 400},
        ),
    )
    async def drill_line(
        request: Request[Any, Any, Any], tenant: FromPath[str], invoice: FromPath[str], line: FromPath[int]
    ) -> Response[bytes]:
        """A line's days, a day's hours, or an hour's requests."""
        owner, record = await finder.find(request, tenant, invoice)
        parameters = Parameters.of(request)
        by: Level = parameters.choice("by", get_args(Level)) or "day"
        limit, after = parameters.page_size(100, most=1000), parameters.text("after")
        day = None if by == "day" else _day(parameters.required("day"))
        hour = parameters.integer("hour") if by == "request" else None
        parameters.reject_unknown()
        with refusals():
            document = await invoices.document(record)
        opened = _opened(document, line)
        if by == "request":
            if hour is None or hour > 23:
                raise InvalidField("hour", "it must be from 0 to 23")
            assert day is not None, "it is required"
            at = day + hour * drill_down.HOUR
            parent = await drill_down.hour_slice(database, record, line, at)
            found = await drill_down.requests(database, record, line, at, after=_cursor(after), limit=limit)
            keys = {billed.key_id for billed in found.requests}
            names = await directory.named_keys(owner.id, keys) if keys else {}
            return json_response(
                Drill[BilledRequestObject](
                    line=line,
                    by=by,
                    currency=record.currency,
                    total=_sum(parent),
                    data=[_billed(billed, names) for billed in found.requests],
                    has_more=found.after is not None,
                    next=None if found.after is None else f"{found.after[0]:x}-{found.after[1].hex}",
                )
            )
        if by == "hour":
            assert day is not None, "it is required"
            parent = await drill_down.day_slice(database, record, line, day)
            slices, total = await drill_down.hours(database, record, line, day), _sum(parent)
        else:
            slices = await drill_down.days(database, record, line)
            total = Sum(units=int(opened.units), exact=format_pico(int(opened.exact)))
        return json_response(
            Drill[SliceObject](
                line=line,
                by=by,
                currency=record.currency,
                total=total,
                data=[_slice(part) for part in slices],
                has_more=False,
                next=None,
            )
        )

    return [list_lines, drill_line]


def line_object(n: int, line: InvoiceLine, currency: str) -> LineObject:
    """A line as answers have it."""
    priced = bool(line.unit)
    return LineObject(
        n=n,
        kind=line.kind,
        text=line.text,
        project_id=project_public_id(UUID(line.project_id)) if line.project_id else None,
        model=line.model,
        meter=line.meter,
        lane=line.lane,
        context_from=line.context_from,
        price_version=line.price_version or None,
        price=amount(line.price) if priced else None,
        units=int(line.units),
        corrects=line.corrects,
        service_from=line.service_from,
        service_until=line.service_until,
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


def _day(text: str) -> int:
    try:
        if is_readable(day := to_instant(datetime.strptime(text[:20], "%Y-%m-%d").replace(tzinfo=UTC))):
            return day
        raise ValueError(text)
    except ValueError as error:
        raise InvalidField("day", f"{text[:40]!r} is not a day such as 2026-11-30") from error


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


def _slice(part: LineSlice) -> SliceObject:
    return SliceObject(
        start=format_instant(part.start),
        requests=part.requests,
        adjustments=part.adjustments,
        units=part.units,
        exact=format_pico(part.exact_pico),
    )


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
