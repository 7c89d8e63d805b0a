"""/admin/v1/tenants/{tenant}/balance: what a tenant has, its credit line, its account statement, and corrections of
usage."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response, get, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Meta, Struct

from billing.accounts.adjustments import adjust
from billing.accounts.balances import Balances
from billing.accounts.statements import StatementLine, statement_page
from billing.calendar import format_instant
from billing.ledger.entries import Balance
from billing.money import format_pico
from gateway.admin.access import visible_tenant
from gateway.admin.refusals import amount_at, refusals, uuid_at
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.errors import InvalidField
from gateway.http.operations import describes, page, query
from gateway.http.pending import PENDING_STATUS, ChangeObject
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.request_context import public_name
from gateway.services import Gateway
from tenancy.directory import tenant_public_id

REQUEST_PREFIX = "req_"


class CreditLine(Struct, frozen=True, forbid_unknown_fields=True):
    """How much may be used before it is paid, as a decimal string; 0: prepaid. `dry_run`: only check."""

    amount: str
    dry_run: bool = False


class Correction(Struct, frozen=True, forbid_unknown_fields=True):
    """Units to add to what a request used (less than zero: to take away), by meter. `id`: a UUIDv7 of your own; used
    again, the correction counts once. `dry_run`: only check."""

    request: str
    units: dict[str, Annotated[int, Meta(ge=-(2**40), le=2**40)]]
    reason: str = "correction"
    id: str | None = None
    dry_run: bool = False


class BalanceObject(Struct, frozen=True, kw_only=True):
    """A tenant's money, as decimal strings in its currency. `available` may still be reserved: what was put in, less
    what was used and is held, and the credit line. `restricted` is for one model or project, beside that."""

    object: Literal["balance"] = "balance"
    tenant_id: str
    currency: str
    available: str
    held: str
    restricted: str
    credit_line: str
    credit: str
    used: str
    prepaid: str
    promo: str
    receivable: str
    overdraft: str


class StatementLineObject(Struct, frozen=True, kw_only=True):
    """What changed the balance. `balance` is the one after it; `invoiced` is what invoices ask for beyond usage."""

    object: Literal["statement.line"] = "statement.line"
    id: str
    at: str
    kind: str
    period: str
    memo: str
    amount: str
    balance: str
    invoiced: str
    carried: str


class Statement(Struct, frozen=True, kw_only=True):
    """Lines in the order of posting; `next` is the `after` of the next page."""

    object: Literal["list"] = "list"
    currency: str
    data: list[StatementLineObject]
    has_more: bool
    next: str | None


class AdjustmentObject(Struct, frozen=True, kw_only=True):
    """A correction of a request's usage, as an event of its own. `cost` is less than zero where money is given back."""

    object: Literal["usage.adjustment"] = "usage.adjustment"
    id: str
    request: str
    period: str
    units: dict[str, int]
    cost: str
    currency: str
    dry_run: bool


_LINE, _CORRECTION = msgspec.json.Decoder(CreditLine), msgspec.json.Decoder(Correction)
_SPAN = (
    query("since", str, "Only what was posted from this instant on.", example="2026-11-01T00:00:00Z"),
    query("until", str, "Only what was posted before this instant.", example="2026-12-01T00:00:00Z"),
)


def balance_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    database, client_timeout = gateway.services.database, gateway.services.options.client_timeout
    balances = Balances(gateway.services.database)

    @get("/admin/v1/tenants/{tenant:str}/balance", opt=demands("balance.read") | describes(BalanceObject))
    async def retrieve_balance(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """What the tenant has."""
        owner = await visible_tenant(gateway, request, tenant, "balance.read")
        return json_response(balance_object(await balances.get_or_empty(owner.id)))

    @put(
        "/admin/v1/tenants/{tenant:str}/credit-line",
        opt=demands("balance.write")
        | describes({200: BalanceObject, PENDING_STATUS: ChangeObject}, body=CreditLine(amount="500.00")),
    )
    async def set_credit_line(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """Set how much the tenant may use before it is paid. A dry run answers the balance as it would be. Raising it
        above the platform's amount waits for another operator while approvals are on, and the answer is 202."""
        owner = await visible_tenant(gateway, request, tenant, "balance.write")
        body = await read_management_body(request, client_timeout, _LINE)
        amount = amount_at("$.amount", body.amount, zero=True)
        with refusals():
            before = await balances.get_or_empty(owner.id)
            if body.dry_run:
                return json_response(balance_object(before.with_credit_line(amount)))
            return json_response(balance_object(await balances.set_credit_line(owner.id, amount, before.currency)))

    @get(
        "/admin/v1/tenants/{tenant:str}/statement",
        opt=demands("balance.read")
        | describes(
            Statement,
            query=(
                *page(),
                *_SPAN,
                query("every", bool, "Each posting of usage; else a day's usage is one line.", example=False),
            ),
        ),
    )
    async def retrieve_statement(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """What changed the balance, in the order of posting, with the balance after each line."""
        owner = await visible_tenant(gateway, request, tenant, "balance.read")
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(), parameters.text("after")
        since, until = parameters.instant("since"), parameters.instant("until")
        every = parameters.boolean("every")
        parameters.reject_unknown()
        found = await statement_page(
            database,
            owner.id,
            start_at=0 if since is None else since,
            end_at=2**62 if until is None else until,
            after=None if after is None else _cursor(after),
            limit=limit,
            days=not every,
        )
        return json_response(
            Statement(
                currency=await balances.currency_of(owner.id),
                data=[_line(line) for line in found.lines],
                has_more=found.after is not None,
                next=None if found.after is None else str(found.after),
            )
        )

    @post(
        "/admin/v1/tenants/{tenant:str}/adjustments",
        status_code=201,
        opt=demands("balance.write")
        | describes(
            {201: AdjustmentObject, 200: AdjustmentObject},
            body=Correction(request="req_019aa1f00000700080000000000000aa", units={"output": -120}),
            errors={"idempotency_conflict": 409, "invalid_adjustment": 400},
        ),
    )
    async def adjust_usage(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """Correct one request's usage by a new event, priced as the request was. Nothing is ever edited. Repeated under
        the same id it is answered with 200 and counts once."""
        owner = await visible_tenant(gateway, request, tenant, "balance.write")
        body = await read_management_body(request, client_timeout, _CORRECTION)
        event_id = uuid_at("$.request", body.request, REQUEST_PREFIX)
        assert event_id is not None, "the field is required"
        prices = gateway.services.prices
        identity = uuid_at("$.id", body.id)
        with refusals():
            repeated = identity is not None and await balances.posted(identity)
            event = await adjust(
                database,
                prices,
                owner.id,
                event_id,
                body.units,
                reason=body.reason,
                adjustment_id=identity,
                dry_run=body.dry_run,
            )
            version = await prices.version(event.price_version)
        made = AdjustmentObject(
            id=str(event.id),
            request=public_name(event_id),
            period=event.period,
            units=dict(event.usage.used()),
            cost=format_pico(event.cost_pico),
            currency=version.currency,
            dry_run=body.dry_run,
        )
        return json_response(made, 200 if body.dry_run or repeated else 201)

    return [retrieve_balance, set_credit_line, retrieve_statement, adjust_usage]


def balance_object(balance: Balance) -> BalanceObject:
    """A balance as answers have it."""
    names = ("available", "held", "restricted", "credit_line", "credit", "prepaid", "promo", "receivable", "overdraft")
    amounts: dict[str, Any] = {name: format_pico(getattr(balance, name)) for name in names}
    return BalanceObject(
        tenant_id=tenant_public_id(balance.tenant_id),
        currency=balance.currency,
        used=format_pico(balance.debit),
        **amounts,
    )


def _line(line: StatementLine) -> StatementLineObject:
    return StatementLineObject(
        id=str(line.id),
        at=format_instant(line.posted_at),
        kind=line.kind,
        period=line.period,
        memo=line.memo,
        amount=format_pico(line.amount_pico),
        balance=format_pico(line.balance_pico),
        invoiced=format_pico(line.invoiced_pico),
        carried=format_pico(line.carry_pico),
    )


def _cursor(text: str) -> Any:
    found = uuid_at("after", text)
    if found is None:
        raise InvalidField("after", "it is not one that was returned here")
    return found
