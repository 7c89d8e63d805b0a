"""Tenants that are connected to the provider: their customers there, and the card that is charged."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.integrity.recorded_tables import PAYMENT_CUSTOMERS
from billing.invoices.errors import NoProfile
from billing.invoices.parties.parties import Buyer, InvalidParty, Seller
from billing.invoices.parties.store import Parties
from billing.invoices.parties.tax import tax_for
from billing.payments.errors import NotConnected
from billing.payments.jobs import queue_job
from billing.payments.provider import CustomerDetails, PaymentProvider, SavedMethod
from billing.payments.recording import change_recorded, insert_recorded
from billing.tables.payments import payment_customer
from storage.database.database import Database

Collection = Literal["charge", "send", "none"]
_CUSTOMER = payment_customer.c


class ConnectedTenant(msgspec.Struct, frozen=True):
    """A tenant at the provider; `provider_id` is None until the worker has made its customer."""

    tenant_id: UUID
    provider: str
    provider_id: str | None
    collection: Collection
    method_id: str
    method_text: str
    connected_at: int


_COLUMNS = [_CUSTOMER[name] for name in ConnectedTenant.__struct_fields__]


class Customers:
    """Connects tenants, and keeps what the provider says of them. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, tenant_id: UUID) -> ConnectedTenant | None:
        """A tenant at the provider; None if it is not connected."""
        async with self._database.reading() as session:
            row = (await session.execute(select(*_COLUMNS).where(_CUSTOMER.tenant_id == tenant_id))).one_or_none()
        return None if row is None else ConnectedTenant(*row)

    async def get(self, tenant_id: UUID) -> tuple[ConnectedTenant, str]:
        """A tenant and its customer's id. Raises NotConnected."""
        found = await self.find(tenant_id)
        if found is None:
            raise NotConnected
        if found.provider_id is None:
            raise NotConnected("the tenant's customer at the payment provider is being made; try again in a moment")
        return found, found.provider_id

    async def of_provider_id(self, provider: str, provider_id: str) -> ConnectedTenant | None:
        """Whose customer it is; None if it is nobody's."""
        # all tenants: the provider's id says whose it is
        query = select(*_COLUMNS).where(_CUSTOMER.provider == provider, _CUSTOMER.provider_id == provider_id)
        async with self._database.reading() as session:
            row = (await session.execute(query)).one_or_none()
        return None if row is None else ConnectedTenant(*row)

    async def connect(self, tenant_id: UUID, provider: str, collection: Collection = "charge") -> ConnectedTenant:
        """Connect a tenant, or change how its invoices are collected. The worker makes its customer."""
        async with self._database.transaction() as session:
            await self._database.lock_rows_of(session, payment_customer, tenant_id)
            query = select(*_COLUMNS).where(_CUSTOMER.tenant_id == tenant_id)
            now = self._database.clock
            found = (await session.execute(query)).one_or_none()
            if found is None:
                row = {"tenant_id": tenant_id, "provider": provider, "provider_id": None, "collection": collection}
                row |= {"connected_at": now, "updated_at": now}
                await insert_recorded(session, PAYMENT_CUSTOMERS, "payment_customer.connected", row)
            elif found.collection != collection:
                values = {"collection": collection, "updated_at": now}
                await change_recorded(session, PAYMENT_CUSTOMERS, "payment_customer.changed", tenant_id, values)
            await queue_job(self._database, session, "customer", str(tenant_id))
            return ConnectedTenant(*(await session.execute(query)).one())

    async def save_at_provider(self, provider: PaymentProvider, tenant_id: UUID, *, old: bool) -> None:
        """Make the tenant's customer, or tell the provider what changed of it. `old`: a key may be forgotten by now."""
        found = await self.find(tenant_id)
        if found is None:
            return
        details = await self._details(tenant_id)
        if found.provider_id is not None:
            await provider.update_customer(found.provider_id, details)
            return
        made = await provider.find_customer(str(tenant_id), found.connected_at // 1_000_000 - 60) if old else None
        if made is None:
            # the key has the details in it: a profile that changed meanwhile is another request
            made = await provider.create_customer(details, f"customer:{tenant_id}:{_fingerprint(details)}")
        async with self._database.transaction() as session:
            values = {"provider_id": made, "updated_at": self._database.clock}
            await change_recorded(session, PAYMENT_CUSTOMERS, "payment_customer.made", tenant_id, values)

    async def _details(self, tenant_id: UUID) -> CustomerDetails:
        parties = Parties(self._database)
        try:
            buyer = await parties.buyer(tenant_id)
            seller = await parties.seller(buyer.seller)
        except NoProfile:
            return CustomerDetails(tenant=str(tenant_id), name=str(tenant_id))
        return CustomerDetails(
            tenant=str(tenant_id),
            name=buyer.name,
            email=buyer.email,
            address=buyer.address,
            postal_code=buyer.postal_code,
            city=buyer.city,
            country=buyer.country,
            vat_id=buyer.vat_id,
            reverse_charge=_is_reverse_charge(seller, buyer),
        )

    async def refresh_method(self, provider: PaymentProvider, tenant: ConnectedTenant) -> SavedMethod | None:
        """Keep which card is charged, as the provider says."""
        if tenant.provider_id is None:
            return None
        method = await provider.saved_method(tenant.provider_id)
        async with self._database.transaction() as session:
            await self._keep(session, tenant.tenant_id, method)
        return method

    async def _keep(self, session: AsyncSession, tenant_id: UUID, method: SavedMethod | None) -> None:
        values: dict[str, Any] = {
            "method_id": method.id if method else "",
            "method_text": method.text if method else "",
        }
        query = select(_CUSTOMER.method_id, _CUSTOMER.method_text).where(_CUSTOMER.tenant_id == tenant_id)
        before = (await session.execute(self._database.locked(query))).one_or_none()
        if before is not None and tuple(before) != tuple(values.values()):
            values["updated_at"] = self._database.clock
            await change_recorded(session, PAYMENT_CUSTOMERS, "payment_customer.card_changed", tenant_id, values)


def _is_reverse_charge(seller: Seller, buyer: Buyer) -> bool:
    try:
        return tax_for(seller, buyer).category == "AE"
    except InvalidParty:
        return False


def _fingerprint(details: CustomerDetails) -> str:
    return sha256(msgspec.json.encode(details)).hexdigest()[:16]
