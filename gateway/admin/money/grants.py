"""/admin/v1/tenants/{tenant}/grants, payments and refunds: money that was put in and taken out.

Whoever records money gives it an id of his own, so that it counts once however often the request is repeated.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias
from uuid import UUID

from msgspec import Struct

from billing.accounts.balances import GrantKind
from billing.accounts.grant_lists import GrantRow, find_grant, list_grants
from billing.invoices.advances import quote, refunded_vat, top_ups
from billing.money import minor_unit
from gateway.admin.access import project_named
from gateway.admin.operation import Call, Ok, Query, operation
from gateway.admin.refusals import uuid_at
from gateway.errors import InvalidField, NotFound
from gateway.http.pending import PENDING_STATUS, ChangeObject
from gateway.http.policies import demands
from gateway.http.shapes import Instant, Page, PageQuery, Pico, ProjectId, show
from gateway.services import Gateway
from tenancy.tables import Tenant


class NewPayment(Struct, frozen=True, forbid_unknown_fields=True):
    """Money that a tenant paid. `id`: a UUIDv7 of your own; used again, the same money counts once. `priority`: the
    lowest is used first. `expires_at`: what is unused then is lost. `dry_run`: only check."""

    amount: Pico
    currency: str | None = None
    reason: str = "manual payment"
    id: str | None = None
    priority: int | None = None
    expires_at: Instant | None = None
    dry_run: bool = False


class NewGrant(Struct, frozen=True, forbid_unknown_fields=True):
    """Money that a tenant did not pay, for everything or for one model or project only. The rest is as of a payment."""

    amount: Pico
    currency: str | None = None
    reason: str = "goodwill"
    id: str | None = None
    priority: int | None = None
    expires_at: Instant | None = None
    model: str | None = None
    project: str | None = None
    dry_run: bool = False


class NewRefund(Struct, frozen=True, forbid_unknown_fields=True):
    """Paid money, unused and not reserved, that was paid back. `id`: as of a payment. `dry_run`: only check."""

    amount: Pico
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
    amount: Pico
    currency: str
    reason: str
    created_at: Instant
    priority: int
    expires_at: Instant | None
    model: str | None
    project_id: ProjectId | None
    remaining: Pico
    used: Pico
    gone: Pico
    held: Pico


class GrantList(Page[GrantObject], frozen=True):
    """Grants, newest first."""


class RefundObject(Struct, frozen=True, kw_only=True):
    """Money that was paid back, and what the tenant may use after it. `vat` was paid back beside it: it was paid in
    advance."""

    object: Literal["refund"] = "refund"
    id: str
    amount: Pico
    currency: str
    reason: str
    vat: Pico
    available: Pico


class MoneyCheck(Struct, frozen=True, kw_only=True):
    """The result of a dry run: what the tenant may use now, and what it could use after this. `vat` is to be paid
    beside a payment's amount, if its seller takes VAT in advance."""

    object: Literal["balance.check"] = "balance.check"
    currency: str
    vat: Pico
    available: Pico
    would_be_available: Pico


_Recorded: TypeAlias = GrantObject | Ok[GrantObject] | MoneyCheck | ChangeObject
_TENANT = "/admin/v1/tenants/{tenant:str}"
_STATUS = {GrantObject: 201, Ok[GrantObject]: 200, MoneyCheck: 200, ChangeObject: PENDING_STATUS}
_ERRORS = {"idempotency_conflict": 409, "wrong_currency": 409, "invalid_amount": 400}


class GrantOperations:
    """Lists and records what was put in, and records what was paid back."""

    def __init__(self, gateway: Gateway) -> None:
        self._database = gateway.services.database
        self._balances = top_ups(self._database)

    @operation("GET", f"{_TENANT}/grants", demands("balance.read"))
    async def list_money(
        self,
        tenant: Tenant,
        page: PageQuery,
        kind: Annotated[GrantKind | None, Query("Only what was paid, or given.")] = None,
    ) -> GrantList:
        """Money that was put in, payments and grants, newest first."""
        last = uuid_at("after", page.after)
        rows = await list_grants(self._database, tenant.id, limit=page.limit + 1, after=last, kind=kind)
        return GrantList.of([_object(row) for row in rows], page.limit)

    @operation("GET", f"{_TENANT}/grants/{{grant:str}}", demands("balance.read"))
    async def retrieve_grant(self, tenant: Tenant, grant: str) -> GrantObject:
        """One grant or payment."""
        identity = _grant_id(grant)
        row = None if identity is None else await find_grant(self._database, tenant.id, identity)
        if row is None:
            raise NotFound(f"There is no grant {grant[:80]!r}.")
        return _object(row)

    @operation(
        "POST",
        f"{_TENANT}/payments",
        demands("balance.write"),
        status=_STATUS,
        example=NewPayment(amount=Pico(25 * 10**12)),
        errors=_ERRORS,
    )
    async def record_payment(self, tenant: Tenant, body: NewPayment) -> _Recorded:
        """Record money that the tenant paid. Repeated under the same id it is answered with 200 and counts once."""
        return await self._put_in(tenant, body, "paid", None, None)

    @operation(
        "POST",
        f"{_TENANT}/grants",
        demands("balance.write"),
        status=_STATUS,
        example=NewGrant(amount=Pico(5 * 10**12)),
        errors=_ERRORS,
    )
    async def give_grant(self, call: Call, tenant: Tenant, body: NewGrant) -> _Recorded:
        """Give the tenant money that it did not pay. Repeated under the same id it is answered with 200 and counts
        once."""
        project = None if body.project is None else await project_named(call.gateway, tenant.id, body.project)
        if body.project is not None and project is None:
            raise InvalidField("$.project", f"the tenant has no project {body.project[:80]!r}")
        return await self._put_in(tenant, body, "promo", body.model, None if project is None else project.id)

    @operation(
        "POST",
        f"{_TENANT}/refunds",
        demands("balance.write"),
        status={RefundObject: 201, Ok[RefundObject]: 200, MoneyCheck: 200},
        example=NewRefund(amount=Pico(5 * 10**12)),
        errors=_ERRORS | {"refund_refused": 409},
    )
    async def record_refund(self, tenant: Tenant, body: NewRefund) -> RefundObject | Ok[RefundObject] | MoneyCheck:
        """Record that unused paid money was paid back. Repeated under the same id it is answered with 200 and counts
        once."""
        identity, currency, repeated = await self._identify(tenant, body)
        refund_id = await self._balances.refund(
            tenant.id, body.amount, currency, reason=body.reason, refund_id=identity, dry_run=body.dry_run
        )
        if body.dry_run:
            return await self._check(tenant, currency, 0 if repeated else -body.amount)
        refund = RefundObject(
            id=str(refund_id),
            amount=body.amount,
            currency=currency,
            reason=body.reason,
            vat=Pico(await refunded_vat(self._database, tenant.id, refund_id)),
            available=Pico((await self._balances.get_or_empty(tenant.id)).available),
        )
        return Ok(refund) if repeated else refund

    async def _put_in(
        self, tenant: Tenant, body: NewPayment | NewGrant, kind: GrantKind, model: str | None, project_id: UUID | None
    ) -> GrantObject | Ok[GrantObject] | MoneyCheck:
        identity, currency, repeated = await self._identify(tenant, body)
        grant_id = await self._balances.grant(
            tenant.id,
            body.amount,
            currency,
            kind=kind,
            reason=body.reason,
            grant_id=identity,
            priority=body.priority,
            expires_at=body.expires_at,
            model=model,
            project_id=project_id,
            dry_run=body.dry_run,
        )
        if body.dry_run:
            restricted = model is not None or project_id is not None
            vat = 0
            if kind == "paid" and not repeated:
                unit = minor_unit(currency)
                asked = await quote(self._database, tenant.id, body.amount // unit, currency)
                vat = asked.tax * unit
            return await self._check(tenant, currency, 0 if repeated or restricted else body.amount, vat)
        row = await find_grant(self._database, tenant.id, grant_id)
        assert row is not None, "a grant is never deleted"
        return Ok(_object(row)) if repeated else _object(row)

    async def _identify(self, tenant: Tenant, body: NewPayment | NewGrant | NewRefund) -> tuple[UUID | None, str, bool]:
        """The id of a body's money, its currency, and whether money was recorded under this id before."""
        identity = uuid_at("$.id", body.id)
        currency = await self._balances.currency_of(tenant.id) if body.currency is None else body.currency
        return identity, currency, identity is not None and await self._balances.posted(identity)

    async def _check(self, tenant: Tenant, currency: str, change: int, vat: int = 0) -> MoneyCheck:
        available = (await self._balances.get_or_empty(tenant.id)).available
        after = Pico(available + change)
        return MoneyCheck(currency=currency, vat=Pico(vat), available=Pico(available), would_be_available=after)


def _grant_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _object(row: GrantRow) -> GrantObject:
    return show(GrantObject, row, id=str(row.id), amount=row.amount_pico, created_at=row.at)
