"""/admin/v1/tenants/{tenant}/payments, top-ups and auto-top-up: how a tenant pays, and money that it pays in advance.

A tenant's own people use these too. What is charged is always by our own row; links lead to the provider's pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal
from uuid import UUID

from msgspec import Struct

from billing.accounts.balances import Balances
from billing.money import format_minor
from billing.payments.auto_top_ups import AutoTopUps
from billing.payments.customers import Collection, ConnectedTenant, Customers
from billing.payments.errors import PaymentsOff
from billing.payments.provider import PaymentProvider, ProviderUnavailable
from billing.payments.top_ups import TopUp, TopUpKind, TopUps, TopUpState, check_amount
from gateway.admin.operation import Ok, operation
from gateway.admin.refusals import amount_at, minor_at, uuid_at
from gateway.http.policies import demands
from gateway.http.shapes import Instant, Page, PageQuery, Pico, TenantId, show
from gateway.services import Gateway
from storage.database.base import new_id
from tenancy.tables import Tenant

_TENANT = "/admin/v1/tenants/{tenant:str}"
_EXAMPLE = {"top_up": "019aa1f0-0000-7000-8000-0000000000aa"}
_MOST_CALLS = 4
_OFF = {"payments_off": 409}
_CONNECTED = _OFF | {"not_connected": 409, "provider_refused": 409, "provider_unavailable": 503}


class PaymentConnection(Struct, frozen=True, forbid_unknown_fields=True):
    """How a tenant's invoices are collected: `charge` the saved card, `send` a page on which to pay, `none`: by bank
    transfer."""

    collection: Collection = "charge"


class NewTopUp(Struct, frozen=True, forbid_unknown_fields=True):
    """Money that the tenant pays on a page of the provider. `id`: a UUIDv7 of your own; used again, it is the same
    top-up."""

    amount: str
    id: str | None = None


class AutoTopUpSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Charge `amount` to the saved card whenever less than `threshold` is left of the tenant's own money."""

    threshold: str
    amount: str
    enabled: bool = True


class PaymentConnectionObject(Struct, frozen=True, kw_only=True):
    """A tenant at the payment provider. `ready`: its customer is there. `card`: what is charged, none without one.
    `stand_in`: a stand-in on the gateway's machine answers in the provider's place: no money moves."""

    object: Literal["payment_connection"] = "payment_connection"
    tenant_id: TenantId
    provider: str | None
    livemode: bool
    stand_in: bool
    connected: bool
    ready: bool
    collection: Collection
    card: str | None


class TopUpObject(Struct, frozen=True, kw_only=True):
    """Money that was asked for in advance. `url`: where it is paid, while it can be. `code`: why it was declined.
    `replaces`: the automatic top-up whose card asked for its owner."""

    object: Literal["top_up"] = "top_up"
    id: str
    kind: TopUpKind
    amount: str
    currency: str
    credit: Pico
    state: TopUpState
    url: str | None
    code: str | None
    replaces: str | None
    created_at: Instant
    updated_at: Instant


class TopUpList(Page[TopUpObject], frozen=True):
    """Top-ups, newest first."""


class AutoTopUpObject(Struct, frozen=True, kw_only=True):
    """When the saved card is charged. `paused`: it was stopped, for `reason`, until it is set again. `next_at`: after
    declines, not before then."""

    object: Literal["auto_top_up"] = "auto_top_up"
    state: Literal["on", "paused", "off"]
    threshold: Pico
    amount: str
    currency: str
    reason: str | None
    failures: int
    next_at: Instant | None


class PaymentPage(Struct, frozen=True, kw_only=True):
    """A page of the provider, for the tenant's people alone."""

    object: Literal["payment_page"] = "payment_page"
    url: str


class _TenantCalls:
    """Lets few calls of a tenant wait for the provider at a time: all tenants share what a process may call."""

    def __init__(self) -> None:
        self._waiting: dict[UUID, int] = {}

    @contextmanager
    def wait(self, tenant_id: UUID) -> Iterator[None]:
        """While a call waits. Raises ProviderUnavailable where too many of the tenant's do."""
        waiting = self._waiting.get(tenant_id, 0)
        if waiting >= _MOST_CALLS:
            raise ProviderUnavailable(f"{waiting} calls of the tenant wait for the provider already")
        self._waiting[tenant_id] = waiting + 1
        try:
            yield
        finally:
            self._waiting[tenant_id] -= 1
            if not self._waiting[tenant_id]:
                del self._waiting[tenant_id]


class TopUpOperations:
    """Connects tenants, takes top-ups, sets automatic ones."""

    def __init__(self, gateway: Gateway) -> None:
        database = gateway.services.database
        self._provider = gateway.services.payments
        self._customers, self._top_ups, self._auto = Customers(database), TopUps(database), AutoTopUps(database)
        self._balances, self._calls = Balances(database), _TenantCalls()

    def _needed(self) -> PaymentProvider:
        if self._provider is None:
            raise PaymentsOff
        return self._provider

    @operation("GET", f"{_TENANT}/payment-connection", demands("payments.read"))
    async def retrieve_payment_connection(self, tenant: Tenant) -> PaymentConnectionObject:
        """Whether the tenant is connected to the payment provider, and which card is charged."""
        return self._connection(tenant.id, await self._customers.find(tenant.id))

    @operation(
        "PUT",
        f"{_TENANT}/payment-connection",
        demands("payments.write"),
        example=PaymentConnection(),
        body_required=False,
        errors=_OFF,
    )
    async def set_payment_connection(self, tenant: Tenant, body: PaymentConnection) -> PaymentConnectionObject:
        """Connect the tenant, or change how its invoices are collected. Invoices are pushed that are issued from now
        on."""
        return self._connection(
            tenant.id, await self._customers.connect(tenant.id, self._needed().name, body.collection)
        )

    @operation("POST", f"{_TENANT}/payment-connection/card-page", demands("payments.write"), errors=_CONNECTED)
    async def create_card_page(self, tenant: Tenant) -> PaymentPage:
        """A page on which the tenant leaves a card and pays nothing."""
        provider, (_, customer) = self._needed(), await self._customers.get(tenant.id)
        currency = await self._balances.currency_of(tenant.id)
        with self._calls.wait(tenant.id):
            return PaymentPage(url=(await provider.create_setup(customer, currency, f"setup:{new_id()}")).url)

    @operation("POST", f"{_TENANT}/payment-connection/portal", demands("payments.write"), errors=_CONNECTED)
    async def create_payment_portal(self, tenant: Tenant) -> PaymentPage:
        """The page on which the tenant changes its card, address and VAT id at the provider."""
        provider, (_, customer) = self._needed(), await self._customers.get(tenant.id)
        with self._calls.wait(tenant.id):
            return PaymentPage(url=await provider.create_portal(customer))

    @operation(
        "POST",
        f"{_TENANT}/top-ups",
        demands("payments.write"),
        status={TopUpObject: 201, Ok[TopUpObject]: 200},
        example=NewTopUp(amount="25.00"),
        errors=_CONNECTED | {"invalid_amount": 400, "payment_refused": 409},
    )
    async def create_top_up(self, tenant: Tenant, body: NewTopUp) -> TopUpObject | Ok[TopUpObject]:
        """Ask for money in advance: `url` is the page on which it is paid. Credit is there when the money came. Where
        the provider does not answer now, the worker asks again, and the page comes later."""
        provider = self._needed()
        currency = await self._balances.currency_of(tenant.id)
        amount, identity = minor_at("$.amount", body.amount, currency), uuid_at("$.id", body.id)
        repeated = identity is not None and await self._is_there(tenant.id, identity)
        await self._customers.get(tenant.id)
        made = await self._top_ups.create(tenant.id, provider.name, amount, currency, top_up_id=identity)
        try:
            with self._calls.wait(tenant.id):
                sent = await self._top_ups.send(provider, made.id) if made.state == "created" else made
        except ProviderUnavailable:
            sent = await self._top_ups.get(tenant.id, made.id)
        answer = _top_up(sent or made)
        return Ok(answer) if repeated else answer

    async def _is_there(self, tenant_id: UUID, identity: UUID) -> bool:
        return any(one.id == identity for one in await self._top_ups.list(tenant_id, limit=100))

    @operation("GET", f"{_TENANT}/top-ups", demands("payments.read"))
    async def list_top_ups(self, tenant: Tenant, page: PageQuery) -> TopUpList:
        """The tenant's top-ups, newest first."""
        after = uuid_at("after", page.after)
        rows = await self._top_ups.list(tenant.id, limit=page.limit + 1, after=after)
        return TopUpList.of([_top_up(row) for row in rows], page.limit)

    @operation("GET", f"{_TENANT}/top-ups/{{top_up:str}}", demands("payments.read"), path=_EXAMPLE)
    async def retrieve_top_up(self, tenant: Tenant, top_up: str) -> TopUpObject:
        """One top-up, and what became of it."""
        identity = uuid_at("top_up", top_up)
        assert identity is not None, "the path has it"
        return _top_up(await self._top_ups.get(tenant.id, identity))

    @operation("GET", f"{_TENANT}/auto-top-up", demands("payments.read"))
    async def retrieve_auto_top_up(self, tenant: Tenant) -> AutoTopUpObject:
        """When the tenant's card is charged by itself."""
        return await self._auto_object(tenant.id)

    @operation(
        "PUT",
        f"{_TENANT}/auto-top-up",
        demands("payments.write"),
        example=AutoTopUpSettings(threshold="10.00", amount="50.00"),
        errors=_OFF | {"not_connected": 409, "invalid_amount": 400},
    )
    async def set_auto_top_up(self, tenant: Tenant, body: AutoTopUpSettings) -> AutoTopUpObject:
        """Charge the saved card whenever the tenant's money runs low, or stop that. Setting it again also forgets
        declines."""
        self._needed()
        if body.enabled:
            await self._customers.get(tenant.id)
        currency = await self._balances.currency_of(tenant.id)
        amount, threshold = (
            minor_at("$.amount", body.amount, currency),
            amount_at("$.threshold", body.threshold, zero=True),
        )
        check_amount("amount", amount)
        await self._auto.put(
            tenant.id, currency=currency, threshold_pico=threshold, amount=amount, enabled=body.enabled
        )
        return await self._auto_object(tenant.id)

    async def _auto_object(self, tenant_id: UUID) -> AutoTopUpObject:
        row = await self._auto.get(tenant_id)
        currency = await self._balances.currency_of(tenant_id) if row is None else row.currency
        return AutoTopUpObject(
            state="off" if row is None else row.state,  # type: ignore[arg-type]  # of these three
            threshold=Pico(0 if row is None else row.threshold_pico),
            amount=format_minor(0 if row is None else row.amount, currency),
            currency=currency,
            reason=row.reason or None if row else None,
            failures=0 if row is None else row.failures,
            next_at=Instant(row.next_at) if row and row.next_at else None,
        )

    def _connection(self, tenant_id: UUID, row: ConnectedTenant | None) -> PaymentConnectionObject:
        return PaymentConnectionObject(
            tenant_id=TenantId.of(tenant_id),
            provider=None if self._provider is None else self._provider.name,
            livemode=self._provider is not None and self._provider.livemode,
            stand_in=self._provider is not None and self._provider.stand_in,
            connected=row is not None,
            ready=row is not None and row.provider_id is not None,
            collection="none" if row is None else row.collection,
            card=row.method_text or None if row else None,
        )


def _top_up(row: TopUp) -> TopUpObject:
    return show(
        TopUpObject,
        row,
        id=str(row.id),
        amount=format_minor(row.amount, row.currency),
        credit=row.credit_pico,
        url=row.url or None if row.state == "sent" else None,
        code=row.code or None,
        replaces=None if row.replaces is None else str(row.replaces),
    )
