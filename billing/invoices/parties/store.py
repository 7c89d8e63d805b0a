"""Stored sellers and billing profiles. Tax-relevant facts are dated (`party_change`), what else is set replaces the old
value; issued documents have copies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any, Generic
from uuid import UUID

import msgspec
from sqlalchemy import Column, ColumnElement, Select, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from audit_log.recorded_rows import RecordedTable, digest_row
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
from billing.pending_changes import propose_if_needed
from billing.tables.invoices import billing_profile, invoice, invoice_payment, legal_entity, party_change
from billing.tables.money import grant_balance
from storage.database.base import from_instant
from storage.database.database import Database
from storage.database.test_clock import test_clock
from storage.free_text import REASON, check_text


class SellerArguments(msgspec.Struct, frozen=True):
    """A change of a seller, as it is kept until another person approves it; from a day on (None: the day on which it is
    made)."""

    seller: Seller
    valid_from: str | None = None


_NO_ACCOUNT = ("", "")


def _payee(seller: Seller) -> tuple[str, ...]:
    """What says to which account a seller is to be paid."""
    return (*seller.payment, seller.iban or "", seller.bic or "")


async def _payee_of(session: AsyncSession, query: Select[Any]) -> tuple[str, ...] | None:
    """The account of a seller whose profile this selects; None without one."""
    profile = await session.scalar(query)
    return None if profile is None else _payee(msgspec.json.decode(profile, type=Seller))


class Parties:
    """Reads and writes sellers and billing profiles. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set_seller(self, seller: Seller, *, valid_from: date | None = None, reason: str = "") -> None:
        """Create or replace a seller. Changed facts (`SELLER_FACTS`) hold from `valid_from` on, by default from today;
        those of a new seller hold for all days.

        Raises InvalidParty for an unknown country, a new VAT id that is invalid, a change without a reason, and where a
        demonstration's seller and a real one would meet in one database, or a sandbox's series would look like others.
        Raises ChangePending while another account to be paid to, of this seller or of one more, takes two people.
        """
        arguments = SellerArguments(seller, None if valid_from is None else valid_from.isoformat())
        async with self._database.reading() as session:
            before = await _payee_of(session, _SELLERS.profile_of(seller.id))
            is_first = await session.scalar(select(legal_entity.c.id).limit(1)) is None
        # One more seller is another account too: tenants only have to be given it.
        paid_to = _NO_ACCOUNT if before is None and not is_first else before
        if paid_to not in (None, _payee(seller)):
            async with self._database.transaction(write=False) as session:  # what is wrong with it is said at once
                await self.set_seller_in(session, arguments, reason)
            summary = f"seller {seller.id} is paid to another account: {', '.join(filter(None, _payee(seller)))}"
            await propose_if_needed(self._database, "seller.set", arguments, summary[:200], reason=reason)
        async with self._database.transaction() as session:
            if await _payee_of(session, self._database.locked(_SELLERS.profile_of(seller.id))) != before:
                raise InvalidParty("payment", "it was changed meanwhile: look at the seller, and change it again")
            await self.set_seller_in(session, arguments, reason)

    async def set_seller_in(self, session: AsyncSession, arguments: SellerArguments, reason: str) -> None:
        """As `set_seller`, in this transaction and without another person's approval."""
        seller = arguments.seller

        async def check(before: Seller | None) -> None:
            check_series(seller, is_sandbox=await session.scalar(select(test_clock.c.id)) is not None)
            others = set(await session.scalars(select(legal_entity.c.id).where(legal_entity.c.id != seller.id)))
            if others and DEMONSTRATION in {seller.id, *others}:
                raise InvalidParty("id", "a demonstration's database has the demonstration's seller and no other")
            if before not in (None, seller) and not reason:
                raise InvalidParty("reason", f"a change of seller {seller.id} needs a reason")

        valid_from = None if arguments.valid_from is None else date.fromisoformat(arguments.valid_from)
        await self._set(session, _SELLERS, seller.id, seller, check, valid_from=valid_from, reason=reason)

    async def set_buyer(
        self, tenant_id: UUID, buyer: Buyer, *, valid_from: date | None = None, reason: str = ""
    ) -> None:
        """Create or replace a tenant's billing profile. Changed facts (`BUYER_FACTS`) hold from `valid_from` on, by
        default from today; those of a new profile hold for all days.

        Raises NoProfile if its seller does not exist, InvalidParty for an unknown country or a new VAT id that is
        invalid, and for another seller while credit is left on which the old one took VAT.
        """
        async with self._database.transaction() as session:

            async def check(before: Buyer | None) -> None:
                await read_seller(self._database, session, buyer.seller)
                if before is not None and before.seller != buyer.seller and await _has_advances(session, tenant_id):
                    problem = f"credit is left on which {before.seller} took VAT in advance: refund it first"
                    raise InvalidParty("seller", problem)

            await self._set(
                session, _BUYERS, tenant_id, buyer, check, valid_from=valid_from, reason=reason, seller=buyer.seller
            )

    async def _set(
        self,
        session: AsyncSession,
        stored: _Stored[AnyParty],
        owner: Any,
        party: AnyParty,
        check: Callable[[AnyParty | None], Awaitable[None]],
        *,
        valid_from: date | None,
        reason: str,
        **columns: str,
    ) -> None:
        check_countries(party)
        check_text("reason", reason, REASON, empty=True)
        new = {**columns, "profile": canonical(party), "updated_at": self._database.clock}
        key = stored.recorded.key.name
        row = {key: owner, **new}
        profile = await session.scalar(self._database.locked(stored.profile_of(owner)))
        dated = None if profile is None else await stored.read(self._database, session, owner)
        day = (valid_from or await today(self._database, session)).isoformat()
        before = None if dated is None else dated.on(day)
        check_vat_id(party, before)
        await check(before)
        added = self._database.insert(stored.recorded.table).values(row)
        await session.execute(added.on_conflict_do_update(index_elements=[key], set_=new))
        if dated is not None:
            await self._write_facts(session, dated, party, day, {stored.owner.name: owner, "reason": reason})
        if before != party or profile != row["profile"]:
            tenant_id = owner if stored.owner is party_change.c.tenant_id else None
            await record_change(session, stored.action, target=stored.recorded.target, target_id=owner,
                                tenant_id=tenant_id, reason=reason, before=before, after=party,
                                row_sha256=await digest_row(session, stored.recorded, owner))  # fmt: skip

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


async def _has_advances(session: AsyncSession, tenant_id: UUID) -> bool:
    """Whether credit is left that was bought with an advance-payment invoice."""
    row, payment = invoice.c, invoice_payment.c
    query = (
        select(row.id)
        .join(invoice_payment, payment.invoice_id == row.id)
        .join(grant_balance, grant_balance.c.grant_id == payment.id)
        .where(row.tenant_id == tenant_id, row.kind == "advance", grant_balance.c.remaining > 0)
    )
    return await session.scalar(query.limit(1)) is not None


async def today(database: Database, session: AsyncSession) -> date:
    """The day in UTC by the database's clock."""
    return from_instant(await database.now_in(session)).date()


@dataclass(frozen=True)
class _Stored(Generic[AnyParty]):
    """Where parties of a kind are: their table, and the column of `party_change` that has its key. `action`: what the
    audit log calls a change of one."""

    kind: type[AnyParty]
    recorded: RecordedTable
    owner: Column[Any]
    action: str
    missing: str

    def profile_of(self, owner: Any) -> Select[Any]:
        return select(self.recorded.table.c.profile).where(self.recorded.key == owner)

    async def read(self, database: Database, session: AsyncSession, owner: Any) -> DatedParty[AnyParty]:
        # all tenants: `owner` is the tenant, or a seller, which belongs to none
        profile = await session.scalar(self.profile_of(owner))
        if profile is None:
            raise NoProfile(self.missing.format(owner))
        party = msgspec.json.decode(profile, type=self.kind)
        rows = await _changes(session, self.owner == owner)
        return (await _dated(database, session, [(owner, party)], rows))[0]


_SELLERS = _Stored(
    Seller,
    SELLERS,
    party_change.c.seller,
    "seller.set",
    "there is no seller {0}; `turnpike invoices seller set {0} …` creates it",
)
_BUYERS = _Stored(
    Buyer,
    BUYERS,
    party_change.c.tenant_id,
    "billing_profile.set",
    "there is no billing profile; `turnpike invoices buyer set TENANT …` creates it",
)


async def read_seller(database: Database, session: AsyncSession, seller_id: str) -> DatedParty[Seller]:
    """A seller with the changes of its facts, in this transaction. Raises NoProfile."""
    return await _SELLERS.read(database, session, seller_id)


async def read_buyer(database: Database, session: AsyncSession, tenant_id: UUID) -> DatedParty[Buyer]:
    """A tenant's billing profile with the changes of its facts, in this transaction. Raises NoProfile."""
    return await _BUYERS.read(database, session, tenant_id)


async def lock_documents(database: Database, session: AsyncSession, tenant_id: UUID) -> DatedParty[Buyer]:
    """Lock the tenant's documents until the transaction ends; return its billing profile, whose row is the lock.

    Raises NoProfile.
    """
    await session.execute(database.locked(_BUYERS.profile_of(tenant_id)))
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
