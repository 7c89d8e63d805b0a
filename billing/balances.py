"""What each tenant has: money put in, used and held; and the statements by which reserving and settling move it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, case, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from billing.money import MAX_PICO, InvalidMoney, check_currency
from billing.tables import balance, grant
from storage.base import Pico, new_id
from storage.bulk import one_of
from storage.database import Database


class CurrencyMismatch(ValueError):
    """Money of one currency was to be mixed with another's."""

    def __init__(self, wanted: str, found: str) -> None:
        super().__init__(f"the balance is in {wanted}, not in {found}")
        self.wanted = wanted
        self.found = found


class Balance(msgspec.Struct, frozen=True):
    """A tenant's money in pico-units: put in, used, reserved by open holds; `overdraft` is what is missing, if so."""

    tenant_id: UUID
    currency: str
    credit: int
    debit: int
    held: int
    overdraft: int

    @property
    def available(self) -> int:
        """What may still be reserved; negative only by as much as usage came in after its hold had expired."""
        return self.credit - self.debit - self.held


class Change(msgspec.Struct):
    """What a transaction adds to a tenant's balance."""

    debit: int = 0
    held: int = 0


_debit, _held = (balance.c[name] + bindparam(f"add_{name}", type_=Pico()) for name in ("debit", "held"))
_missing = _debit + _held - balance.c.credit
_MOVE = (
    update(balance)
    .where(balance.c.tenant_id == bindparam("tenant"))
    .values(debit=_debit, held=_held, overdraft=case((_missing > 0, _missing), else_=0))
)
_HOLD = update(balance).where(balance.c.tenant_id == bindparam("tenant")).values(held=_held)
"""Leaves the overdraft alone, so that the table's check refuses any hold that is not covered."""


async def lock(database: Database, session: AsyncSession, tenants: Collection[UUID]) -> dict[UUID, Balance]:
    """The balances of these tenants, locked in the order of their ids; those without one are absent.

    Every transaction that touches holds or events locks the balances first, by this function: that order is why no
    two of them can wait for each other. What depends on a balance is computed in a later statement, which sees what
    the lock waited for.
    """
    if not tenants:
        return {}
    query = select(balance).where(one_of(database, balance.c.tenant_id, sorted(tenants))).order_by(balance.c.tenant_id)
    return {row.tenant_id: Balance(*row) for row in await session.execute(database.locked(query))}


async def move(session: AsyncSession, changes: Mapping[UUID, Change]) -> None:
    """Apply changes to locked balances; what is not covered any more becomes overdraft."""
    rows = _rows(changes)
    if rows:
        await session.execute(_MOVE, rows)


async def hold_back(session: AsyncSession, changes: Mapping[UUID, Change]) -> None:
    """Add to what is held of locked balances. The database refuses it where it is not covered."""
    rows = _rows(changes)
    if rows:
        await session.execute(_HOLD, [{"tenant": row["tenant"], "add_held": row["add_held"]} for row in rows])


def _rows(changes: Mapping[UUID, Change]) -> list[dict[str, Any]]:
    return [
        {"tenant": tenant, "add_debit": change.debit, "add_held": change.held}
        for tenant, change in sorted(changes.items())
        if change.debit or change.held
    ]


class Balances:
    """Putting money in, and looking at it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, tenant_id: UUID) -> Balance | None:
        """The tenant's balance; None if it never had money."""
        async with self._database.reading() as session:
            row = (await session.execute(select(balance).where(balance.c.tenant_id == tenant_id))).one_or_none()
        return None if row is None else Balance(*row)

    async def grant(
        self,
        tenant_id: UUID,
        amount_pico: int,
        currency: str,
        *,
        kind: str = "paid",
        reason: str = "",
        grant_id: UUID | None = None,
    ) -> UUID:
        """Put money in; the first grant decides the balance's currency. Returns the grant's id.

        A grant that is repeated under the same id counts once. Raises InvalidMoney or CurrencyMismatch; then nothing
        is written.
        """
        check_currency(currency)
        if not 0 < amount_pico <= MAX_PICO:
            raise InvalidMoney(f"a grant of {amount_pico} pico-units")
        identity = grant_id or new_id()
        async with self._database.transaction() as session:
            start = {"tenant_id": tenant_id, "currency": currency, "credit": 0, "debit": 0, "held": 0, "overdraft": 0}
            await session.execute(self._database.insert(balance).values(start).on_conflict_do_nothing())
            found = (await lock(self._database, session, [tenant_id]))[tenant_id]
            if found.currency != currency:
                raise CurrencyMismatch(found.currency, currency)
            if self._database.dialect == "sqlite" and found.credit + amount_pico > MAX_PICO:
                raise InvalidMoney(f"{found.credit} + {amount_pico} pico-units are more than SQLite can count")
            row = {
                "id": identity,
                "tenant_id": tenant_id,
                "amount_pico": amount_pico,
                "currency": currency,
                "kind": kind,
                "reason": reason,
                "at": self._database.clock,
            }
            new = self._database.insert(grant).values(row).on_conflict_do_nothing().returning(grant.c.id)
            if (await session.execute(new)).one_or_none() is not None:
                credit = found.credit + amount_pico
                await session.execute(
                    update(balance)
                    .where(balance.c.tenant_id == tenant_id)
                    .values(credit=credit, overdraft=max(0, found.debit + found.held - credit))
                )
        return identity
