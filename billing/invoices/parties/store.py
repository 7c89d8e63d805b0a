"""Stored sellers and billing profiles. A change replaces the old value; issued documents have copies."""

from __future__ import annotations

from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from audit_log.recorded_rows import digest_row
from billing.integrity.canonical_json import canonical
from billing.integrity.recorded_tables import BUYERS, SELLERS
from billing.invoices.errors import NoProfile
from billing.invoices.parties.parties import (
    DEMONSTRATION,
    Buyer,
    InvalidParty,
    Seller,
    check_countries,
    check_series,
    check_vat_id,
)
from billing.tables.invoices import billing_profile, legal_entity
from storage.database.database import Database


class Parties:
    """Reads and writes sellers and billing profiles. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set_seller(self, seller: Seller) -> None:
        """Create or replace a seller. Raises InvalidParty for an unknown country, a new VAT id that is invalid, and
        where a demonstration's seller and a real one would meet in one database."""
        check_countries(seller)
        check_series(seller)
        row = {"id": seller.id, "profile": canonical(seller), "updated_at": self._database.clock}
        new = {name: row[name] for name in ("profile", "updated_at")}
        own = select(legal_entity.c.profile).where(legal_entity.c.id == seller.id)
        async with self._database.transaction() as session:
            profile = await session.scalar(self._database.locked(own))
            before = None if profile is None else msgspec.json.decode(profile, type=Seller)
            check_vat_id(seller, before)
            others = set(await session.scalars(select(legal_entity.c.id).where(legal_entity.c.id != seller.id)))
            if others and DEMONSTRATION in {seller.id, *others}:
                raise InvalidParty("id", "a demonstration's database has the demonstration's seller and no other")
            await session.execute(
                self._database.insert(legal_entity).values(row).on_conflict_do_update(index_elements=["id"], set_=new)
            )
            if profile != row["profile"]:
                await record_change(session, "seller.set", target="seller", target_id=seller.id,
                                    before=before, after=seller,
                                    row_sha256=await digest_row(session, SELLERS, seller.id))  # fmt: skip

    async def set_buyer(self, tenant_id: UUID, buyer: Buyer) -> None:
        """Create or replace a tenant's billing profile.

        Raises NoProfile if its seller does not exist, InvalidParty for an unknown country or a new VAT id that is
        invalid.
        """
        check_countries(buyer)
        row = {
            "tenant_id": tenant_id,
            "seller": buyer.seller,
            "profile": canonical(buyer),
            "updated_at": self._database.clock,
        }
        new = {name: row[name] for name in ("seller", "profile", "updated_at")}
        own = select(billing_profile.c.profile).where(billing_profile.c.tenant_id == tenant_id)
        async with self._database.transaction() as session:
            await read_seller(session, buyer.seller)
            profile = await session.scalar(self._database.locked(own))
            before = None if profile is None else msgspec.json.decode(profile, type=Buyer)
            check_vat_id(buyer, before)
            await session.execute(
                self._database.insert(billing_profile)
                .values(row)
                .on_conflict_do_update(index_elements=["tenant_id"], set_=new)
            )
            if profile != row["profile"]:
                await record_change(session, "billing_profile.set", target="billing_profile", target_id=tenant_id,
                                    tenant_id=tenant_id, before=before, after=buyer,
                                    row_sha256=await digest_row(session, BUYERS, tenant_id))  # fmt: skip

    async def sellers(self) -> list[Seller]:
        """All sellers, ordered by id."""
        async with self._database.reading() as session:
            profiles = await session.scalars(select(legal_entity.c.profile).order_by(legal_entity.c.id))
            return [msgspec.json.decode(profile, type=Seller) for profile in profiles]

    async def seller(self, seller_id: str) -> Seller:
        """One seller. Raises NoProfile."""
        async with self._database.reading() as session:
            return await read_seller(session, seller_id)

    async def buyers(self) -> dict[UUID, Buyer]:
        """The billing profile of each tenant that has one."""
        # all tenants: an invoice run bills every tenant
        async with self._database.reading() as session:
            rows = await session.execute(select(billing_profile.c.tenant_id, billing_profile.c.profile))
            return {tenant_id: msgspec.json.decode(profile, type=Buyer) for tenant_id, profile in rows}

    async def buyer(self, tenant_id: UUID) -> Buyer:
        """One tenant's billing profile. Raises NoProfile."""
        async with self._database.reading() as session:
            return await read_buyer(session, tenant_id)


async def read_seller(session: AsyncSession, seller_id: str) -> Seller:
    """A seller, in this transaction. Raises NoProfile."""
    profile = await session.scalar(select(legal_entity.c.profile).where(legal_entity.c.id == seller_id))
    if profile is None:
        raise NoProfile(f"there is no seller {seller_id}; `turnpike invoices seller set {seller_id} …` creates it")
    return msgspec.json.decode(profile, type=Seller)


async def read_buyer(session: AsyncSession, tenant_id: UUID) -> Buyer:
    """A tenant's billing profile, in this transaction. Raises NoProfile."""
    query = select(billing_profile.c.profile).where(billing_profile.c.tenant_id == tenant_id)
    profile = await session.scalar(query)
    if profile is None:
        raise NoProfile("there is no billing profile; `turnpike invoices buyer set TENANT …` creates it")
    return msgspec.json.decode(profile, type=Buyer)


async def lock_documents(database: Database, session: AsyncSession, tenant_id: UUID) -> Buyer:
    """Lock the tenant's documents until the transaction ends; return its billing profile, whose row is the lock.

    Raises NoProfile.
    """
    own = select(billing_profile.c.tenant_id).where(billing_profile.c.tenant_id == tenant_id)
    await session.execute(database.locked(own))
    return await read_buyer(session, tenant_id)
