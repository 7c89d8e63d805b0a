"""/admin/v1/tenants/{tenant}/grants, payments and refunds: money that was put in and taken out.

Whoever records money gives it an id of his own, so that it counts once however often the request is repeated.
"""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

import msgspec
from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from billing.accounts.balances import Balances, GrantKind
from billing.accounts.grant_lists import GrantRow, find_grant, list_grants
from billing.calendar import format_instant
from billing.money import format_pico
from gateway.admin.access import project_named, visible_tenant
from gateway.admin.refusals import amount_at, instant_at, refusals, uuid_at
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.errors import InvalidField, NotFound
from gateway.http.operations import describes, page, query
from gateway.http.pending import PENDING_STATUS, ChangeObject
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.shapes import Page
from gateway.services import Gateway
from tenancy.directory import project_public_id
from tenancy.tables import Tenant

_KINDS = ("paid", "promo")


class NewPayment(Struct, frozen=True, forbid_unknown_fields=True):
    """Money that a tenant paid. `id`: a UUIDv7 of your own; used again, the same money counts once. `priority`: the
    lowest is used first. `expires_at`: what is unused then is lost. `dry_run`: only check."""

    amount: str
    currency: str | None = None
    reason: str = "manual payment"
    id: str | None = None
    priority: int | None = None
    expires_at: str | None = None
    dry_run: bool = False


class NewGrant(Struct, frozen=True, forbid_unknown_fields=True):
    """Money that a tenant did not pay, for everything or for one model or project only. The rest is as of a payment."""

    amount: str
    currency: str | None = None
    reason: str = "goodwill"
    id: str | None = None
    priority: int | None = None
    expires_at: str | None = None
    model: str | None = None
    project: str | None = None
    dry_run: bool = False


class NewRefund(Struct, frozen=True, forbid_unknown_fields=True):
    """Paid money, unused and not reserved, that was paid back. `id`: as of a payment. `dry_run`: only check."""

    amount: str
    currency: str | None = None
    reason: str = "refund"
    id: str | None = None
    dry_run: bool = False


class GrantObject(Struct, frozen=True, kw_only=True):
    """Money that was put in, and what became of it: `remaining`, `used` and `gone` (refunded or expired) are together
    the amount. `kind`: paid, or promo."""

    object: Literal["grant"] = "grant"
    id: str
    kind: GrantKind
    amount: str
    currency: str
    reason: str
    created_at: str
    priority: int
    expires_at: str | None
    model: str | None
    project_id: str | None
    remaining: str
    used: str
    gone: str
    held: str


class GrantList(Page[GrantObject], frozen=True):
    """Grants, newest first."""


class RefundObject(Struct, frozen=True, kw_only=True):
    """Money that was paid back, and what the tenant may use after it."""

    object: Literal["refund"] = "refund"
    id: str
    amount: str
    currency: str
    reason: str
    available: str


class MoneyCheck(Struct, frozen=True, kw_only=True):
    """The result of a dry run: what the tenant may use now, and what it could use after this."""

    object: Literal["balance.check"] = "balance.check"
    currency: str
    available: str
    would_be_available: str


_PAYMENT, _GRANT = msgspec.json.Decoder(NewPayment), msgspec.json.Decoder(NewGrant)
_REFUND = msgspec.json.Decoder(NewRefund)
_MADE = {201: GrantObject, 200: (GrantObject, MoneyCheck), PENDING_STATUS: ChangeObject}
_ERRORS = {"idempotency_conflict": 409, "wrong_currency": 409, "invalid_amount": 400}


def grant_routes(gateway: Gateway) -> list[HTTPRouteHandler]:  # noqa: PLR0915  # five routes
    """The routes, for one worker."""
    database, client_timeout = gateway.services.database, gateway.services.options.client_timeout
    balances = Balances(gateway.services.database)

    async def checked(tenant: Tenant, currency: str, change: int) -> Response[bytes]:
        available = (await balances.get_or_empty(tenant.id)).available
        return json_response(
            MoneyCheck(
                currency=currency,
                available=format_pico(available),
                would_be_available=format_pico(available + change),
            )
        )

    async def put_in(tenant: Tenant, body: NewPayment | NewGrant, kind: GrantKind) -> Response[bytes]:
        amount, identity = amount_at("$.amount", body.amount), uuid_at("$.id", body.id)
        project_id = None
        model = None
        if isinstance(body, NewGrant):
            project_id, model = await _project(gateway, tenant, body.project), body.model
        expires_at = instant_at("$.expires_at", body.expires_at)
        with refusals():
            currency = await balances.currency_of(tenant.id) if body.currency is None else body.currency
            repeated = identity is not None and await balances.posted(identity)
            made = await balances.grant(
                tenant.id,
                amount,
                currency,
                kind=kind,
                reason=body.reason,
                grant_id=identity,
                priority=body.priority,
                expires_at=expires_at,
                model=model,
                project_id=project_id,
                dry_run=body.dry_run,
            )
        if body.dry_run:
            restricted = model is not None or project_id is not None
            return await checked(tenant, currency, 0 if repeated or restricted else amount)
        found = await find_grant(database, tenant.id, made)
        assert found is not None, "a grant is never deleted"
        return json_response(_object(found), 200 if repeated else 201)

    @get(
        "/admin/v1/tenants/{tenant:str}/grants",
        opt=demands("balance.read")
        | describes(GrantList, query=(*page(), query("kind", GrantKind, "Only what was paid, or given."))),
    )
    async def list_money(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """Money that was put in, payments and grants, newest first."""
        owner = await visible_tenant(gateway, request, tenant, "balance.read")
        parameters = Parameters.of(request)
        limit, after, kind = parameters.page_size(), parameters.text("after"), parameters.choice("kind", _KINDS)
        parameters.reject_unknown()
        last = uuid_at("after", after)
        found = await list_grants(database, owner.id, limit=limit + 1, after=last, kind=kind)
        return json_response(GrantList(data=[_object(row) for row in found[:limit]], has_more=len(found) > limit))

    @get("/admin/v1/tenants/{tenant:str}/grants/{grant:str}", opt=demands("balance.read") | describes(GrantObject))
    async def retrieve_grant(
        request: Request[Any, Any, Any], tenant: FromPath[str], grant: FromPath[str]
    ) -> Response[bytes]:
        """One grant or payment."""
        owner = await visible_tenant(gateway, request, tenant, "balance.read")
        identity = _grant_id(grant)
        found = None if identity is None else await find_grant(database, owner.id, identity)
        if found is None:
            raise NotFound(f"There is no grant {grant[:80]!r}.")
        return json_response(_object(found))

    @post(
        "/admin/v1/tenants/{tenant:str}/payments",
        status_code=201,
        opt=demands("balance.write")
        | describes(
            _MADE,
            body=NewPayment(amount="25.00"),
            errors=_ERRORS,
        ),
    )
    async def record_payment(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """Record money that the tenant paid. Repeated under the same id it is answered with 200 and counts once."""
        owner = await visible_tenant(gateway, request, tenant, "balance.write")
        body = await read_management_body(request, client_timeout, _PAYMENT)
        return await put_in(owner, body, "paid")

    @post(
        "/admin/v1/tenants/{tenant:str}/grants",
        status_code=201,
        opt=demands("balance.write")
        | describes(
            _MADE,
            body=NewGrant(amount="5.00"),
            errors=_ERRORS,
        ),
    )
    async def give_grant(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """Give the tenant money that it did not pay. Repeated under the same id it is answered with 200 and counts
        once."""
        owner = await visible_tenant(gateway, request, tenant, "balance.write")
        body = await read_management_body(request, client_timeout, _GRANT)
        return await put_in(owner, body, "promo")

    @post(
        "/admin/v1/tenants/{tenant:str}/refunds",
        status_code=201,
        opt=demands("balance.write")
        | describes(
            {201: RefundObject, 200: (RefundObject, MoneyCheck)},
            body=NewRefund(amount="5.00"),
            errors=_ERRORS | {"refund_refused": 409},
        ),
    )
    async def record_refund(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """Record that unused paid money was paid back. Repeated under the same id it is answered with 200 and counts
        once."""
        owner = await visible_tenant(gateway, request, tenant, "balance.write")
        body = await read_management_body(request, client_timeout, _REFUND)
        amount, identity = amount_at("$.amount", body.amount), uuid_at("$.id", body.id)
        with refusals():
            currency = await balances.currency_of(owner.id) if body.currency is None else body.currency
            repeated = identity is not None and await balances.posted(identity)
            made = await balances.refund(
                owner.id, amount, currency, reason=body.reason, refund_id=identity, dry_run=body.dry_run
            )
        if body.dry_run:
            return await checked(owner, currency, 0 if repeated else -amount)
        refund = RefundObject(
            id=str(made),
            amount=format_pico(amount),
            currency=currency,
            reason=body.reason,
            available=format_pico((await balances.get_or_empty(owner.id)).available),
        )
        return json_response(refund, 200 if repeated else 201)

    return [list_money, retrieve_grant, record_payment, give_grant, record_refund]


async def _project(gateway: Gateway, tenant: Tenant, reference: str | None) -> UUID | None:
    """The project of a body. Raises InvalidField."""
    if reference is None:
        return None
    project = await project_named(gateway, tenant.id, reference)
    if project is None:
        raise InvalidField("$.project", f"the tenant has no project {reference[:80]!r}")
    return project.id


def _grant_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _object(row: GrantRow) -> GrantObject:
    return GrantObject(
        id=str(row.id),
        kind="promo" if row.kind == "promo" else "paid",
        amount=format_pico(row.amount_pico),
        currency=row.currency,
        reason=row.reason,
        created_at=format_instant(row.at),
        priority=row.priority,
        expires_at=None if row.expires_at is None else format_instant(row.expires_at),
        model=row.model,
        project_id=None if row.project_id is None else project_public_id(row.project_id),
        remaining=format_pico(row.remaining),
        used=format_pico(row.used),
        gone=format_pico(row.gone),
        held=format_pico(row.held),
    )
