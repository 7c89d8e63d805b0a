"""Checking the balances and the holds: what tenants have, and what is reserved of it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from uuid import UUID

from sqlalchemy import Select, func, select

from billing.audit_scope import Scope
from billing.rollups import LIMB
from billing.tables import balance, ended_hold, grant, hold, usage_event


async def check_balances(scope: Scope) -> None:
    """Each balance is the sum of its grants, its events and its open holds; overdraft is what is missing."""
    cost = usage_event.c.cost_pico
    high, low = func.sum(cost.op("/")(LIMB)), func.sum(cost.op("%")(LIMB))
    debits = {
        tenant: int(quotients) * LIMB + int(rest)
        for tenant, quotients, rest in await scope.session.execute(
            select(usage_event.c.tenant_id, high, low).group_by(usage_event.c.tenant_id)
        )
    }
    credits_ = await _sums(scope, select(grant.c.tenant_id, grant.c.amount_pico))
    held = await _sums(scope, select(hold.c.tenant_id, hold.c.amount_pico))
    rows = {row.tenant_id: row for row in await scope.session.execute(select(balance))}
    for tenant in sorted(rows.keys() | credits_.keys() | debits.keys() | held.keys()):
        row = rows.get(tenant)
        sides = (("credit", "grants", credits_), ("debit", "usage events", debits), ("held", "open holds", held))
        for side, name, sums in sides:
            found = 0 if row is None else getattr(row, side)
            if found != sums.get(tenant, 0):
                detail = f"{side} is {found}, the {name} add up to {sums.get(tenant, 0)}"
                scope.found("a balance is not the sum of its entries", tenant, detail)
        if row is not None and row.overdraft != max(0, row.debit + row.held - row.credit - row.credit_line):
            scope.found("a balance's overdraft is wrong", tenant, f"it is {row.overdraft}")


async def _sums(scope: Scope, amounts: Select[Any]) -> dict[UUID, int]:
    """Amounts by tenant, summed here: on SQLite a sum of them may be more than it can count."""
    sums: dict[UUID, int] = defaultdict(int)
    async for tenant, amount in await scope.session.stream(amounts):
        sums[tenant] += amount
    return sums


async def check_holds(scope: Scope) -> None:
    """Each hold there ever was is open, or ended once: by usage, released or expired. All tenants."""
    ends = ((usage_event.c.id, "it has usage"), (ended_hold.c.request_id, "it was released or expired"))
    for end, detail in ends:
        for request in await scope.session.scalars(select(hold.c.request_id).where(hold.c.request_id == end)):
            scope.found("a hold that ended is still open", request, detail)
    late = select(ended_hold.c.request_id).where(ended_hold.c.request_id == usage_event.c.id)
    found: dict[UUID, int] = defaultdict(int)
    for tenant in (hold.c.tenant_id, ended_hold.c.tenant_id, usage_event.c.tenant_id):
        counts = select(tenant, func.count()).group_by(tenant)
        if tenant is usage_event.c.tenant_id:
            counts = counts.where(~late.exists(), usage_event.c.corrects.is_(None))
        for owner, count in await scope.session.execute(counts):
            found[owner] += count
    for tenant, holds in await scope.session.execute(select(balance.c.tenant_id, balance.c.holds)):
        if found[tenant] != holds:
            detail = f"{holds} were taken; {found[tenant]} are open, were settled, released or expired"
            scope.found("a tenant's holds did not each end once", tenant, detail)
