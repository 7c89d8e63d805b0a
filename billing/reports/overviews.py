"""How tenants stand together: their money by currency, and what waits for somebody."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import msgspec
from sqlalchemy import case, func, select

from billing.tables.money import balance, refused_settlement
from storage.database.database import Database
from storage.database.sql_arrays import one_of

LIMB = 10**12
"""Sums are of whole units and of the rest, since a sum of pico-units may be more than 64 bits."""


class MoneyOfTenants(msgspec.Struct, frozen=True):
    """What tenants have in one currency, in pico-units. `exhausted` of the `tenants` have nothing available."""

    currency: str
    tenants: int
    available_pico: int
    held_pico: int
    receivable_pico: int
    exhausted: int


async def money_of_tenants(database: Database, tenants: Collection[UUID] | None) -> list[MoneyOfTenants]:
    """The money of these tenants (None: of all) by currency. Raises DatabaseUnavailable."""
    column = balance.c
    available = column.credit - column.debit - column.held + column.credit_line
    amounts = (column.credit, column.debit, column.held, column.credit_line, column.receivable)
    if database.dialect == "postgresql":  # NUMERIC does not overflow, and its quotients have decimals
        sums = [func.sum(amount) for amount in amounts]
    else:
        sums = [func.sum(part) for amount in amounts for part in (amount.op("/")(LIMB), amount.op("%")(LIMB))]
    query = select(column.currency, func.count(), *sums, func.sum(case((available <= 0, 1), else_=0)))
    if tenants is not None:
        query = query.where(one_of(database, column.tenant_id, tenants))
    async with database.reading() as session:
        rows = (await session.execute(query.group_by(column.currency).order_by(column.currency))).all()
    found = []
    for currency, tenants_, *parts, exhausted in rows:
        halves = len(parts) > len(amounts)
        whole = [high * LIMB + low for high, low in zip(parts[::2], parts[1::2], strict=True)] if halves else parts
        credit, debit, held, line, receivable = map(int, whole)
        available_pico = credit - debit - held + line
        found.append(MoneyOfTenants(currency, tenants_, available_pico, held, receivable, int(exhausted)))
    return found


async def refused_records(database: Database) -> int:
    """How many durable records could not be settled, and wait for somebody to look. Raises DatabaseUnavailable."""
    async with database.reading() as session:
        # all tenants: a record that is refused may not even say whose it is
        return int(await session.scalar(select(func.count()).select_from(refused_settlement)) or 0)
