"""VAT ids as their register knows them: asked, recorded, and held against what tax rests on.

Whether an id has the right form says nothing of whether somebody has it (`billing.invoices.parties.vat_ids`). The
register of the European Union, VIES, does. What it answers is recorded, also that it did not answer. An id that it last
called invalid counts as none from the day of that answer on; one that it was never asked about, or did not answer
about, counts by its form, as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol
from uuid import UUID

import msgspec
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from billing.integrity.row_seals import seal_rows
from billing.invoices.parties.parties import Buyer
from billing.invoices.parties.store import read_buyer, today
from billing.invoices.parties.vat_ids import member_state
from billing.tables.invoices import billing_profile, vat_check
from storage.database.base import from_instant
from storage.database.database import Database
from storage.reported_error import ReportedError

Answer = Literal["valid", "invalid", "unavailable"]
MOST_TEXT = 500
"""Characters of a name or address that are kept: they are a stranger's."""


class RegisterUnavailable(ReportedError):
    """A register did not answer, or not in a form that is understood."""


class VatAnswer(msgspec.Struct, frozen=True):
    """What a register says of a VAT id. Names are empty where a member state does not tell them."""

    valid: bool
    name: str = ""
    address: str = ""
    consultation: str = ""


class VatRegister(Protocol):
    """A register of VAT ids: VIES in production, a script in tests."""

    name: str

    async def look_up(self, vat_id: str) -> VatAnswer:
        """What it says of the id. Raises RegisterUnavailable."""


class VatCheck(msgspec.Struct, frozen=True):
    """A recorded answer. `changed`: the holder's name or address, or whether the id is valid, is not what the answer
    before said."""

    vat_id: str
    answer: Answer
    name: str
    address: str
    consultation: str
    registry: str
    at: int
    changed: bool = False

    @property
    def day(self) -> str:
        """The day of the answer in UTC."""
        return from_instant(self.at).date().isoformat()


async def check_vat_id(database: Database, register: VatRegister, tenant_id: UUID) -> VatCheck | None:
    """Ask a register about the tenant's VAT id and record what it answers; None where there is no id to ask about.

    Raises NoProfile, DatabaseUnavailable; not that the register is not available: that is recorded.
    """
    async with database.reading() as session:
        buyer = (await read_buyer(database, session, tenant_id)).on((await today(database, session)).isoformat())
    if not member_state(buyer.vat_id, buyer.country):
        return None
    answer: Answer
    try:
        found = await register.look_up(buyer.vat_id)
        answer = "valid" if found.valid else "invalid"
    except RegisterUnavailable:
        found, answer = VatAnswer(valid=False), "unavailable"
    said = {
        **{"vat_id": buyer.vat_id, "answer": answer, "consultation": found.consultation[:MOST_TEXT]},
        **{"name": found.name[:MOST_TEXT], "address": found.address[:MOST_TEXT], "registry": register.name},
    }
    async with database.transaction() as session:
        before = [check for check in await read_vat_checks(session, tenant_id) if check.vat_id == buyer.vat_id]
        made = insert(vat_check).values({**said, "tenant_id": tenant_id, "at": database.clock})
        row = (await session.execute(made.returning(vat_check.c.id, vat_check.c.at))).one()
        await seal_rows(session, vat_check, vat_check.c.id == row.id)
        await record_change(
            session, "vat_id.checked", target="billing_profile", target_id=tenant_id, tenant_id=tenant_id, after=said
        )
    check = msgspec.convert({**said, "at": row.at}, VatCheck)
    return msgspec.structs.replace(check, changed=_has_changed(before, check))


async def tenants_to_check(database: Database, answered_since: int, limit: int) -> list[UUID]:
    """Tenants, at most `limit`, about whose VAT id no register has answered since an instant; those that were asked
    least lately first."""
    check = vat_check.c
    asked = select(check.tenant_id, func.max(check.at).label("at")).group_by(check.tenant_id).subquery().c
    is_answered = (
        select(check.id)
        .where(check.tenant_id == billing_profile.c.tenant_id, check.at >= answered_since)
        .where(check.answer != "unavailable")
        .exists()
    )
    # all tenants: the worker asks about every buyer
    query = select(billing_profile.c.tenant_id, billing_profile.c.profile).outerjoin(
        asked.tenant_id.table, asked.tenant_id == billing_profile.c.tenant_id
    )
    query = query.where(~is_answered).order_by(func.coalesce(asked.at, 0), billing_profile.c.tenant_id)
    tenants: list[UUID] = []
    async with database.reading() as session:
        for tenant_id, profile in await session.execute(query):
            buyer = msgspec.json.decode(profile, type=Buyer)
            if len(tenants) < limit and member_state(buyer.vat_id, buyer.country):
                tenants.append(tenant_id)
    return tenants


def _has_changed(before: Sequence[VatCheck], check: VatCheck) -> bool:
    answered = [one for one in before if one.answer != "unavailable"]
    if not answered or check.answer == "unavailable":
        return False
    last = answered[-1]
    return (last.answer, last.name, last.address) != (check.answer, check.name, check.address)


async def read_vat_checks(session: AsyncSession, tenant_id: UUID) -> list[VatCheck]:
    """The recorded answers about a tenant's VAT ids, oldest first."""
    row = vat_check.c
    columns = (row[name] for name in ("vat_id", "answer", "name", "address", "consultation", "registry", "at"))
    query = select(*columns).where(row.tenant_id == tenant_id).order_by(row.id)
    return [VatCheck(*found) for found in await session.execute(query)]


def refuted_ids(checks: Sequence[VatCheck], day: str) -> frozenset[str]:
    """The VAT ids that their register last called invalid, of the answers until a day."""
    last = {check.vat_id: check.answer for check in checks if check.answer != "unavailable" and check.day <= day}
    return frozenset(vat_id for vat_id, answer in last.items() if answer == "invalid")
