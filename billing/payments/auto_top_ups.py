"""When a tenant's card is charged by itself, and when that stops: after a hard decline at once, after soft ones in 1, 3
and 7 days, each time with a new top-up. Nobody's is charged more than ten times a day, and a suspended tenant's never.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Exists, column, exists, func, literal, select, table
from sqlalchemy.ext.asyncio import AsyncSession

from billing.integrity.canonical_json import canonical
from billing.integrity.recorded_tables import AUTO_TOP_UPS
from billing.money import MAX_PICO, minor_to_pico
from billing.payments.errors import InvalidTopUp
from billing.payments.notices import PAUSED
from billing.payments.provider import HARD_DECLINES
from billing.payments.recording import change_recorded, insert_recorded
from billing.payments.tasks import add_task
from billing.tables.money import balance
from billing.tables.payments import auto_top_up, payment_customer, top_up
from storage.database.base import Id
from storage.database.database import Database
from storage.database.outbox import write_to_outbox

RETRY_DAYS = (1, 3, 7)
MOST_A_DAY = 10
"""Automatic top-ups of a tenant in 24 hours."""
MOST_TIMES = 10
"""How many times the amount a threshold may be: so that a day's top-ups can reach it."""
_DAY_US = 86_400_000_000
_AUTO = auto_top_up.c
_AT_ONCE = 100
_TENANT = table("tenant", column("id", Id), column("suspended_at")).c
"""Of the room of tenants, which this one does not import."""


class AutoTopUp(msgspec.Struct, frozen=True):
    """A tenant's automatic top-up. `amount` in minor units."""

    tenant_id: UUID
    currency: str
    threshold_pico: int
    amount: int
    state: str
    reason: str
    failures: int
    next_at: int


class DueTopUp(msgspec.Struct, frozen=True):
    """A tenant whose card is to be charged."""

    tenant_id: UUID
    amount: int
    currency: str
    method_id: str


_COLUMNS = [_AUTO[name] for name in AutoTopUp.__struct_fields__]


class AutoTopUps:
    """Sets automatic top-ups, and finds those that are due. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, tenant_id: UUID) -> AutoTopUp | None:
        """A tenant's automatic top-up; None if it never had one."""
        async with self._database.reading() as session:
            row = (await session.execute(select(*_COLUMNS).where(_AUTO.tenant_id == tenant_id))).one_or_none()
        return None if row is None else AutoTopUp(*row)

    async def put(
        self, tenant_id: UUID, *, currency: str, threshold_pico: int, amount: int, enabled: bool
    ) -> AutoTopUp:
        """Set a tenant's automatic top-up; switching it on forgets earlier failures. Raises InvalidTopUp."""
        if not 0 <= threshold_pico <= MAX_PICO:
            raise InvalidTopUp("threshold", "it is out of range")
        if enabled and threshold_pico > MOST_TIMES * minor_to_pico(amount, currency):
            raise InvalidTopUp("threshold", f"it is more than {MOST_TIMES} times the amount")
        values: dict[str, Any] = {"currency": currency, "threshold_pico": threshold_pico, "amount": amount}
        values |= {"state": "on" if enabled else "off", "reason": "", "failures": 0, "next_at": 0}
        values["updated_at"] = self._database.clock
        async with self._database.transaction() as session:
            await self._database.lock_rows_of(session, auto_top_up, tenant_id)
            query = select(*_COLUMNS).where(_AUTO.tenant_id == tenant_id)
            if (await session.execute(query)).one_or_none() is None:
                await insert_recorded(session, AUTO_TOP_UPS, "auto_top_up.set", {"tenant_id": tenant_id, **values})
            else:
                await change_recorded(session, AUTO_TOP_UPS, "auto_top_up.set", tenant_id, values)
            return AutoTopUp(*(await session.execute(query)).one())

    async def due(self, provider: str) -> list[DueTopUp]:
        """Tenants whose money is below their threshold, and that wait for no top-up."""
        now = await self._database.now()
        other = top_up.c
        waiting = exists().where(
            other.tenant_id == _AUTO.tenant_id,
            other.state.in_(("created", "sent", "unknown")),
            (other.kind == "automatic") | other.replaces.is_not(None),
        )
        today = (other.tenant_id == _AUTO.tenant_id, other.kind == "automatic", other.created_at > now - _DAY_US)
        count = select(func.count()).select_from(top_up).where(*today).correlate(auto_top_up).scalar_subquery()
        may = (~_is_suspended(_AUTO.tenant_id), count < MOST_A_DAY)
        row, customer = balance.c, payment_customer.c
        own = row.credit - row.debit - row.held
        query = select(_AUTO.tenant_id, _AUTO.amount, _AUTO.currency, customer.method_id)
        query = query.join(payment_customer, customer.tenant_id == _AUTO.tenant_id)
        query = query.outerjoin(balance, row.tenant_id == _AUTO.tenant_id)
        is_due = (_AUTO.state == "on", _AUTO.next_at <= now, customer.provider == provider, customer.method_id != "")
        low = row.tenant_id.is_(None) | ((own < _AUTO.threshold_pico) & (row.currency == _AUTO.currency))
        query = query.where(*is_due, customer.provider_id.is_not(None), low, ~waiting, *may).limit(_AT_ONCE)
        async with self._database.reading() as session:  # all tenants: the worker charges for all of them
            return [DueTopUp(*found) for found in await session.execute(query)]

    async def is_suspended(self, tenant_id: UUID) -> bool:
        """Whether the tenant is suspended now."""
        async with self._database.reading() as session:
            return bool(await session.scalar(select(_is_suspended(literal(tenant_id, Id)))))

    async def declined(self, session: AsyncSession, tenant_id: UUID, code: str) -> None:
        """Wait longer after each soft decline in a row; stop after a hard one, and after the last."""
        failures = await session.scalar(select(_AUTO.failures).where(_AUTO.tenant_id == tenant_id))
        if failures is None:
            return
        if code in HARD_DECLINES or code == "dispute" or failures >= len(RETRY_DAYS):
            await self.pause(session, tenant_id, f"the card was declined: {code}", failures=failures + 1)
            return
        wait = self._database.clock + RETRY_DAYS[failures] * _DAY_US
        values = {"failures": failures + 1, "next_at": wait, "updated_at": self._database.clock}
        await change_recorded(session, AUTO_TOP_UPS, "auto_top_up.declined", tenant_id, values, code)

    async def pause(self, session: AsyncSession, tenant_id: UUID, reason: str, **values: int) -> None:
        """Stop charging until somebody sets it again."""
        state = await session.scalar(select(_AUTO.state).where(_AUTO.tenant_id == tenant_id))
        if state != "on":
            return
        changes = {"state": "paused", "reason": reason, "updated_at": self._database.clock, **values}
        await change_recorded(session, AUTO_TOP_UPS, "auto_top_up.paused", tenant_id, changes, reason)
        await write_to_outbox(self._database, session, PAUSED, tenant_id, canonical({"reason": reason}))
        await add_task(self._database, session, "top_up_paused", str(tenant_id), reason, tenant_id)


def _is_suspended(tenant_id: ColumnElement[UUID]) -> Exists:
    return exists().where(_TENANT.id == tenant_id, _TENANT.suspended_at.is_not(None))
