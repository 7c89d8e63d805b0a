"""Receipts: which answers have one, the public keys that sign them, and the files of a tenant's days."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import Any
from uuid import UUID

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct
from msgspec.structs import replace

from billing.calendar import InvalidPeriod, check_period
from billing.receipts.day_files import FilePlace, closed_days
from billing.receipts.files import DayHead, DayOpen, FilePage, day_heads, file_page
from billing.receipts.signing_keys import JsonWebKeySet
from gateway.admission.prepared_request import PreparedRequest
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.tenant_scope import OwnTenant, TenantScope
from gateway.errors import InvalidField, NotFound
from gateway.http.operations import describes, files, query
from gateway.http.policies import public
from gateway.http.responses import json_response
from gateway.services import Gateway
from storage.database.database import DatabaseUnavailable

HEADER = "X-Turnpike-Receipt"
"""The request header that says whether an answer has a receipt, whatever its project's policy says."""
KEYS_PATH = "/.well-known/turnpike-receipt-keys.json"
NEXT_HEADER = "x-turnpike-next"
_SAID = {"true": True, "1": True, "false": False, "0": False}
_LINES = "application/jsonl"
_MOST_EVENTS, _EVENTS = 5000, 1000
_PLACE = re.compile(r"([1-9]\d{0,11})\.([1-9]\d{0,11})\.([0-9a-f]{32})", re.ASCII)
_HEAD = '{"cost_pico":"63000000","day":"2026-11-02","events":1,"key":"9f86d081884c7d65","kind":"day"}\n'


class DayHeads(Struct, frozen=True, kw_only=True):
    """The signed heads of a period's closed days, in order."""

    object: str = "list"
    period: str
    data: list[DayHead]


def parse_receipt_header(values: Sequence[str]) -> bool | None:
    """What the header says; None where it is absent. Raises InvalidRequest naming it."""
    said = {_SAID.get(value.strip().lower()) for value in values}
    if len(said) > 1 or None in said:
        raise InvalidField(HEADER, f"{', '.join(values)[:40]!r} is neither true nor false")
    return said.pop() if said else None


async def with_receipts(
    gateway: Gateway, request: Request[Any, Any, Any], prepared: Sequence[PreparedRequest]
) -> Sequence[PreparedRequest]:
    """The requests, with receipts if the header asks for them, or else if their project always has them, as far as is
    known: no request waits for a database that is away, only to learn that. Raises InvalidRequest naming the header."""
    asked = parse_receipt_header(request.headers.getall(HEADER, []))
    if asked is None:
        payer = prepared[0].payer
        try:
            asked = await gateway.questions.wait(gateway.receipt_policies.always(payer.tenant_id, payer.project_id))
        except DatabaseUnavailable:
            asked = gateway.receipt_policies.last_known(payer.project_id)
    return [replace(part, receipt=True) for part in prepared] if asked else prepared


def receipt_keys_route(gateway: Gateway) -> HTTPRouteHandler:
    """The route of the public keys, for one worker."""
    key_set = gateway.services.receipt_keys.key_set()

    @get(KEYS_PATH, opt=public() | describes(JsonWebKeySet))
    async def get_receipt_keys() -> Response[bytes]:
        """The public keys that sign receipts, and those that did, as a JWK set. Keep a copy: a receipt proves nothing
        by a key that whoever gave it may exchange."""
        return json_response(key_set)

    return get_receipt_keys


def receipt_routes(gateway: Gateway, at: TenantScope | None = None) -> list[HTTPRouteHandler]:
    """The routes of days, for one worker; `at`: where, below /v1 without it."""
    at = at or OwnTenant()
    services = gateway.services
    database, keys = services.database, services.receipt_keys

    @get(
        f"{at.base}/receipts",
        opt=at.demands("exports.read")
        | describes(DayHeads, query=[query("period", str, "A month.", example="2026-11", required=True)]),
    )
    async def list_receipt_days(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The signed heads of a month's closed days: how many events each has, what they cost, and their root."""
        parameters = Parameters.of(request)
        try:
            period = check_period(parameters.required("period"))
        except InvalidPeriod as error:
            raise InvalidField("period", str(error)) from error
        parameters.reject_unknown()
        tenant = await at.tenant(request, "exports.read")
        async with database.reading() as session:
            days = await closed_days(session, tenant, period)
        return json_response(DayHeads(period=period, data=[head.signed(keys) for head in day_heads(days)]))

    @get(
        f"{at.base}/receipts/{{day:str}}",
        opt=at.demands("exports.read")
        | describes(
            files(_LINES, description="A page of the file, as JSON lines.", example=_HEAD),
            query=[
                query("limit", int, f"Events of a page, {_MOST_EVENTS} at most.", example=1000),
                query("after", str, f"Where the page begins: the header {NEXT_HEADER} of the one before."),
            ],
            path={"day": "2026-11-02"},
            answer_headers={NEXT_HEADER: "`after` of the next page; absent on the last."},
        ),
    )
    async def retrieve_receipt_day(request: Request[Any, Any, Any], day: FromPath[str]) -> Response[bytes]:
        """The file of a closed day: its signed head, prices, and every event under its number."""
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(_EVENTS, most=_MOST_EVENTS), parameters.text("after")
        parameters.reject_unknown()
        tenant = await at.tenant(request, "exports.read")
        page = FilePage(_day(day), limit, None if after is None else _place(after))
        try:
            lines, place = await file_page(database, services.prices, keys, tenant, page)
        except (DayOpen, InvalidPeriod) as error:
            raise NotFound(str(error)) from error
        headers = {} if place is None else {NEXT_HEADER: f"{place.n}.{place.link}.{place.event.hex}"}
        return Response(b"".join(lines), media_type=_LINES, headers=headers)

    return [list_receipt_days, retrieve_receipt_day]


def _day(name: str) -> str:
    try:
        return date.fromisoformat(name[:20]).isoformat()
    except ValueError as error:
        raise NotFound(f"{name[:20]!r} is not a day such as 2026-11-02.") from error


def _place(text: str) -> FilePlace:
    match = _PLACE.fullmatch(text)
    if match is None:
        raise InvalidField("after", f"it is not what the header {NEXT_HEADER} said")
    return FilePlace(int(match[1]), int(match[2]), UUID(match[3]))
