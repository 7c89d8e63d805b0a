"""Stored sellers and billing profiles. Tax-relevant facts are dated (`party_change`), what else is set replaces the old
value; issued documents have copies."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from audit_log.recorded_rows import digest_row
from billing.integrity.canonical_json import canonical
from billing.integrity.recorded_tables import BUYERS, SELLERS
from billing.integrity.row_seals import seal_rows
from billing.invoices.errors import NoProfile
from billing.invoices.parties.dated import AnyParty, DatedParty, FactChange, changed_facts, facts_of
from billing.invoices.parties.parties import (
    DEMONSTRATION,
    Buyer,
    InvalidParty,
    Seller,
    check_countries,
    check_series,
    check_vat_id,
)
from billing.tables.invoices import billing_profile, legal_entity, party_change
from storage.database.base import from_instant
from storage.database.database import Database
from storage.free_text import REASON, check_text


class Parties:
    """Reads and writes sellers and billing profiles. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set_seller(self, seller: Seller, *, valid_from: date | None = None, reason: str = "") -> None:
        """Create or replace a seller. Changed facts (`SELLER_FACTS`) hold from `valid_from` on, by default from today;
        those of a new seller hold for all days.

        Raises InvalidParty for an unknown country, a new VAT id that is invalid, a change without a reason, and where a
        demonstration's seller and a real one would meet in one database.
        """
        check_countries(seller)
        check_series(seller)
        check_text("reason", reason, REASON, empty=True)
        row = {"id": seller.id, "profile": canonical(seller), "updated_at": self._database.clock}
        new = {name: row[name] for name in ("profile", "updated_at")}
        own = select(legal_entity.c.profile).where(legal_entity.c.id == seller.id)
        async with self._database.transaction() as session:
            profile = await session.scalar(self._database.locked(own))
            dated = None if profile is None else await read_seller(self._database, session, seller.id)
            day = await self._first_day(session, valid_from)
            before = None if dated is None else dated.on(day)
            check_vat_id(seller, before)
            others = set(await session.scalars(select(legal_entity.c.id).where(legal_entity.c.id != seller.id)))
            if others and DEMONSTRATION in {seller.id, *others}:
                raise InvalidParty("id", "a demonstration's database has the demonstration's seller and no other")
            if before not in (None, seller) and not reason:
                raise InvalidParty("reason", f"a change of seller {seller.id} needs a reason")
            await session.execute(
                self._database.insert(legal_entity).values(row).on_conflict_do_update(index_elements=["id"], set_=new)
            )
            if dated is not None:
                await self._write_facts(session, dated, seller, day, {"seller": seller.id, "reason": reason})
            if before != seller or profile != row["profile"]:
                await record_change(session, "seller.set", target="seller", target_id=seller.id, reason=reason,
                                    before=before, after=seller,
                                    row_sha256=await digest_row(session, SELLERS, seller.id))  # fmt: skip

    async def set_buyer(
        self, tenant_id: UUID, buyer: Buyer, *, valid_from: date | None = None, reason: str = ""
    ) -> None:
        """Create or replace a tenant's billing profile. Changed facts (`BUYER_FACTS`) hold from `valid_from` on, by
        default from today; those of a new profile hold for all days.

        Raises NoProfile if its seller does not exist, InvalidParty for an unknown country or a new VAT id that is
        invalid.
        """
        check_countries(buyer)
        check_text("reason", reason, REASON, empty=True)
        row = {
            "tenant_id": tenant_id,
            "seller": buyer.seller,
            "profile": canonical(buyer),
            "updated_at": self._database.clock,
        }
        new = {name: row[name] for name in ("seller", "profile", "updated_at")}
        own = select(billing_profile.c.profile).where(billing_profile.c.tenant_id == tenant_id)
        async with self._database.transaction() as session:
            await read_seller(self._database, session, buyer.seller)
            profile = await session.scalar(self._database.locked(own))
            dated = None if profile is None else await read_buyer(self._database, session, tenant_id)
            day = await self._first_day(session, valid_from)
            before = None if dated is None else dated.on(day)
            check_vat_id(buyer, before)
            await session.execute(
                self._database.insert(billing_profile)
                .values(row)
                .on_conflict_do_update(index_elements=["tenant_id"], set_=new)
            )
            if dated is not None:
                await self._write_facts(session, dated, buyer, day, {"tenant_id": tenant_id, "reason": reason})
            if before != buyer or profile != row["profile"]:
                await record_change(session, "billing_profile.set", target="billing_profile", target_id=tenant_id,
                                    tenant_id=tenant_id, reason=reason, before=before, after=buyer,
                                    row_sha256=await digest_row(session, BUYERS, tenant_id))  # fmt: skip

    async def _first_day(self, session: AsyncSession, valid_from: date | None) -> str:
        return (valid_from or await today(self._database, session)).isoformat()

    async def _write_facts(
        self, session: AsyncSession, dated: DatedParty[AnyParty], after: AnyParty, day: str, columns: dict[str, Any]
    ) -> None:
        """Write the facts in which a party differs from a day on. The first time, also those that held until then."""
        # no entry: its callers record the party
        facts = changed_facts(dated.on(day), after)
        if not facts:
            return
        # all tenants: `columns` have the party's owner
        first: list[FactChange] = [] if dated.changes else [FactChange("", facts_of(dated.party))]
        changes = [*dated.changes, *first, FactChange(day, facts)]
        changed = DatedParty(after, sorted(changes, key=lambda change: change.valid_from))
        changed.versions()  # raises InvalidParty where a later version becomes invalid
        for change in changes[len(dated.changes) :]:
            values = columns | {"valid_from": change.valid_from, "facts": canonical(change.facts)}
            values |= {"created_at": self._database.clock}
            made = await session.execute(insert(party_change).values(values).returning(party_change.c.id))
            await seal_rows(session, party_change, party_change.c.id == made.scalar_one())

    async def sellers(self) -> list[Seller]:
        """All sellers as of today, ordered by id."""
        return [dated.party for dated in await self.dated_sellers()]

    async def dated_sellers(self) -> list[DatedParty[Seller]]:
        """All sellers with the changes of their facts, ordered by id."""
        async with self._database.reading() as session:
            profiles = await session.scalars(select(legal_entity.c.profile).order_by(legal_entity.c.id))
            sellers = [msgspec.json.decode(profile, type=Seller) for profile in profiles]
            # all tenants: a seller belongs to none
            rows = await _changes(session, party_change.c.seller.is_not(None))
            return await _dated(self._database, session, ((seller.id, seller) for seller in sellers), rows)

    async def seller(self, seller_id: str) -> Seller:
        """One seller as of today. Raises NoProfile."""
        return (await self.dated_seller(seller_id)).party

    async def dated_seller(self, seller_id: str) -> DatedParty[Seller]:
        """One seller with the changes of its facts. Raises NoProfile."""
        async with self._database.reading() as session:
            return await read_seller(self._database, session, seller_id)

    async def buyers(self) -> dict[UUID, Buyer]:
        """The billing profile of each tenant that has one, as of today."""
        # all tenants: an invoice run bills every tenant
        async with self._database.reading() as session:
            rows = await session.execute(select(billing_profile.c.tenant_id, billing_profile.c.profile))
            profiles = {tenant_id: msgspec.json.decode(profile, type=Buyer) for tenant_id, profile in rows}
            changes = await _changes(session, party_change.c.tenant_id.is_not(None))
            dated = await _dated(self._database, session, profiles.items(), changes)
            return {tenant_id: one.party for tenant_id, one in zip(profiles, dated, strict=True)}

    async def buyer(self, tenant_id: UUID) -> Buyer:
        """One tenant's billing profile as of today. Raises NoProfile."""
        return (await self.dated_buyer(tenant_id)).party

    async def dated_buyer(self, tenant_id: UUID) -> DatedParty[Buyer]:
        """One tenant's billing profile with the changes of its facts. Raises NoProfile."""
        async with self._database.reading() as session:
            return await read_buyer(self._database, session, tenant_id)


async def today(database: Database, session: AsyncSession) -> date:
    """The day in UTC by the database's clock."""
    return from_instant(await database.now_in(session)).date()


async def read_seller(database: Database, session: AsyncSession, seller_id: str) -> DatedParty[Seller]:
    """A seller with the changes of its facts, in this transaction. Raises NoProfile."""
    profile = await session.scalar(select(legal_entity.c.profile).where(legal_entity.c.id == seller_id))
    if profile is None:
        raise NoProfile(f"there is no seller {seller_id}; `turnpike invoices seller set {seller_id} …` creates it")
    seller = msgspec.json.decode(profile, type=Seller)
    # all tenants: a seller belongs to none
    rows = await _changes(session, party_change.c.seller == seller_id)
    return (await _dated(database, session, [(seller_id, seller)], rows))[0]


async def read_buyer(database: Database, session: AsyncSession, tenant_id: UUID) -> DatedParty[Buyer]:
    """A tenant's billing profile with the changes of its facts, in this transaction. Raises NoProfile."""
    query = select(billing_profile.c.profile).where(billing_profile.c.tenant_id == tenant_id)
    profile = await session.scalar(query)
    if profile is None:
        raise NoProfile("there is no billing profile; `turnpike invoices buyer set TENANT …` creates it")
    buyer = msgspec.json.decode(profile, type=Buyer)
    rows = await _changes(session, party_change.c.tenant_id == tenant_id)
    return (await _dated(database, session, [(tenant_id, buyer)], rows))[0]


async def lock_documents(database: Database, session: AsyncSession, tenant_id: UUID) -> DatedParty[Buyer]:
    """Lock the tenant's documents until the transaction ends; return its billing profile, whose row is the lock.

    Raises NoProfile.
    """
    own = select(billing_profile.c.profile).where(billing_profile.c.tenant_id == tenant_id)
    await session.execute(database.locked(own))
    return await read_buyer(database, session, tenant_id)


async def _changes(session: AsyncSession, owners: ColumnElement[bool]) -> dict[Any, list[FactChange]]:
    """Changes of facts by seller id or tenant, each in the order of its first day."""
    row = party_change.c
    changes: dict[Any, list[FactChange]] = {}
    for change in await session.execute(select(party_change).where(owners).order_by(row.valid_from, row.id)):
        facts = msgspec.json.decode(change.facts)
        changes.setdefault(change.seller or change.tenant_id, []).append(FactChange(change.valid_from, facts))
    return changes


async def _dated(
    database: Database,
    session: AsyncSession,
    parties: Iterable[tuple[Any, AnyParty]],
    changes: dict[Any, list[FactChange]],
) -> list[DatedParty[AnyParty]]:
    """Parties with their changes, as of today."""
    day = (await today(database, session)).isoformat() if changes else ""
    dated = [DatedParty(party, changes.get(owner, ())) for owner, party in parties]
    return [DatedParty(one.on(day), one.changes) if one.changes else one for one in dated]
