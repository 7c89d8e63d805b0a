"""Checking the balances and the holds: what tenants have, and what is reserved of it."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, select

from billing.events.rollups import LIMB
from billing.holds.batches import HoldBatch
from billing.holds.records import grants_in, split, unpack, unpack_all
from billing.holds.store import COLUMNS
from billing.tables.money import (
    balance,
    ended_hold,
    grant,
    grant_balance,
    hold_batch,
    ledger_entry,
    ledger_txn,
    usage_event,
    usage_fact,
)
from billing.verification.findings import AuditContext
from storage.database.sql_arrays import one_of

HELD_IN = ("prepaid", "promo", "restricted")
"""Where what is left of grants stands."""
_AT_ONCE = 1000
_ENDS = ((usage_fact.c.id, "it has usage"), (ended_hold.c.request_id, "it was released or expired"))
LEFT = tuple(grant_balance.c[name] for name in ("remaining", "used", "gone", "held"))


async def check_balances(scope: AuditContext) -> None:
    """Each balance is the sum of its grants, its events and its open holds, and none is below zero; overdraft is what
    is missing."""
    cost = usage_event.c.cost_pico
    high, low = func.sum(cost.op("/")(LIMB)), func.sum(cost.op("%")(LIMB))
    debits = {
        tenant: int(quotients) * LIMB + int(rest)
        for tenant, quotients, rest in await scope.session.execute(
            select(usage_event.c.tenant_id, high, low).group_by(usage_event.c.tenant_id)
        )
    }
    held, counted_on = await _held(scope)
    credits_ = await _check_grants(scope, counted_on)
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
        elif row is not None and row.overdraft:
            detail = f"{row.debit} used and {row.held} held of {row.credit}, credit line {row.credit_line}"
            scope.found("a balance is below zero", tenant, f"by {row.overdraft}: {detail}")


async def _check_grants(scope: AuditContext, counted_on: Mapping[UUID, int]) -> dict[UUID, int]:
    """What became of each grant is its amount, and what the ledger's entries say; holds count on what it says that they
    do; and it paid only for what it is for. Returns what counts for `credit`: grants, and what periods gave back."""
    entry = ledger_entry.c
    moved: dict[UUID, int] = defaultdict(int)
    begun = set()
    query = select(entry.grant_id, entry.debit, entry.credit, entry.amount_pico).where(entry.grant_id.is_not(None))
    async for one, debit, credit, amount in await scope.session.stream(query):
        moved[one] += amount if credit in HELD_IN else -amount
        if debit in ("clearing", "goodwill"):
            begun.add(one)
    credits_ = await _returned(scope)
    left: dict[tuple[UUID, str], int] = defaultdict(int)
    restricted: dict[UUID, int] = defaultdict(int)
    of = grant.c
    owner = grant_balance.c.tenant_id.label("owner")
    rows = select(of.id, of.tenant_id, owner, of.amount_pico, of.kind, of.model, of.project_id, *LEFT)
    joined = rows.outerjoin_from(grant, grant_balance, grant_balance.c.grant_id == of.id)
    for row in await scope.session.execute(joined):
        if row.remaining is None or row.remaining + row.used + row.gone != row.amount_pico:
            scope.found("what became of a grant is not its amount", row.id, f"{row.amount_pico} were put in")
            continue
        if row.owner != row.tenant_id:
            scope.found("what became of a grant is not its amount", row.id, f"it says that tenant {row.owner} has it")
        if row.id in begun and moved[row.id] != row.remaining:
            detail = f"{row.remaining} are left, the entries say {moved[row.id]}"
            scope.found("what is left of a grant is not what its entries say", row.id, detail)
        if row.held != counted_on.get(row.id, 0):
            detail = f"{row.held} of it are held, open holds count on {counted_on.get(row.id, 0)}"
            scope.found("a grant is not what holds count on", row.id, detail)
        if row.model is not None or row.project_id is not None:
            credits_[row.tenant_id] += row.used
            restricted[row.tenant_id] += row.remaining
            await _check_purpose(scope, row)
        else:
            credits_[row.tenant_id] += row.amount_pico - row.gone
            left[row.tenant_id, row.kind] += row.remaining
    for row in await scope.session.execute(select(balance)):
        promo = left[row.tenant_id, "promo"]
        paid = sum(pico for (tenant, kind), pico in left.items() if tenant == row.tenant_id and kind != "promo")
        if (promo, paid) != (row.promo, row.credit - row.debit - row.promo + row.receivable):
            scope.found("a balance is not what is left of its grants", row.tenant_id, f"{promo} given, {paid} paid")
        if row.restricted != restricted[row.tenant_id]:
            detail = f"{restricted[row.tenant_id]} are for one model or project, it says {row.restricted}"
            scope.found("a balance is not what is left of its grants", row.tenant_id, detail)
    return credits_


async def _returned(scope: AuditContext) -> dict[UUID, int]:
    """What periods gave back to each tenant, less what corrections took off that again."""
    entry = ledger_entry.c
    kind = ledger_txn.c.kind
    again = (entry.debit == "revenue") & (entry.credit == "charges")
    query = select(entry.tenant_id, kind, func.sum(entry.amount_pico)).join(ledger_txn, ledger_txn.c.id == entry.txn_id)
    returned: dict[UUID, int] = defaultdict(int)
    query = query.where((kind == "return") | again).group_by(entry.tenant_id, kind)
    for tenant, of, amount in await scope.session.execute(query):
        returned[tenant] += int(amount) if of == "return" else -int(amount)
    return returned


async def _check_purpose(scope: AuditContext, row: Any) -> None:
    """A grant cannot have paid for more than was used of its model and project."""
    if not row.used:
        return
    of = usage_event.c
    mine = [of.tenant_id == row.tenant_id]
    mine += [of.model == row.model] if row.model is not None else []
    mine += [of.project_id == row.project_id] if row.project_id is not None else []
    high, low = func.sum(of.cost_pico.op("/")(LIMB)), func.sum(of.cost_pico.op("%")(LIMB))
    quotients, rest = (await scope.session.execute(select(high, low).where(*mine))).one()
    cost = int(quotients or 0) * LIMB + int(rest or 0)
    if row.used > cost:
        scope.found("a grant paid for what it is not for", row.id, f"{row.used} of it were used, for usage of {cost}")


async def _held(scope: AuditContext) -> tuple[dict[UUID, int], dict[UUID, int]]:
    """What open holds are reserved from: balances by tenant, and grants. Summed here: on SQLite a sum of them may be
    more than it can count."""
    balances: dict[UUID, int] = defaultdict(int)
    grants: dict[UUID, int] = defaultdict(int)
    of = hold_batch.c  # all tenants: an audit is of the whole house
    query = select(of.tenant_id, of.amount_pico, of.sources, of.open)
    async for tenant, amount, sources, holds in await scope.session.stream(query):
        counted_on = grants_in(sources)
        balances[tenant] += amount - holds * sum(counted_on.values())
        for one, pico in counted_on.items():
            grants[one] += holds * pico
    return balances, grants


def _is_as_asked(row: Any) -> bool:
    """Whether a hold's columns are what its request says; its amount may have been raised since."""
    try:
        asked = unpack(row.request)
        split(row.budgets), grants_in(row.budgets)
    except (msgspec.MsgspecError, ValueError):
        return False
    same = (row.request_id, row.tenant_id, row.gateway) == (asked.request_id, asked.tenant_id, asked.gateway)
    lasts = row.expires_at - row.admitted_at == asked.lifetime_s * 1_000_000
    return same and lasts and (row.amount_pico >= asked.amount_pico or asked.is_allowance)


def _are_as_asked(batch: HoldBatch) -> bool:
    """Whether a row of open holds is what their requests and their amounts say; these may have been raised since."""
    try:
        split(batch.sources), grants_in(batch.sources)
        amounts, ever = batch.amounts(), {one.request_id: one for one in unpack_all(batch.requests)}
        asked = {request: ever[UUID(bytes=request)] for request in amounts}
    except (msgspec.MsgspecError, struct.error, ValueError, KeyError):
        return False
    lifetimes = {one.lifetime_s * 1_000_000 for one in ever.values()}
    lasts = batch.expires_at - batch.admitted_at
    return (
        (batch.first, batch.last) == (min(ever), max(ever))
        and {(batch.tenant_id, batch.gateway)} == {(one.tenant_id, one.gateway) for one in ever.values()}
        and (batch.open, batch.amount_pico) == (len(amounts), sum(amounts.values()))
        and all(amounts[request] >= one.amount_pico or one.is_allowance for request, one in asked.items())
        and lasts in lifetimes
        and all(lasts <= one.lifetime_s * 1_000_000 for one in asked.values())
    )


async def check_holds(scope: AuditContext) -> None:
    """Each hold there ever was is open, or ended once: by usage, released or expired. All tenants."""
    async for row in await scope.session.stream(select(ended_hold)):
        if not _is_as_asked(row):
            scope.found("a hold was altered", row.request_id, "it is not what was asked for")
    found: dict[UUID, int] = defaultdict(int)
    some: list[UUID] = []
    async for row in await scope.session.stream(select(*COLUMNS)):
        batch = HoldBatch(*row)
        found[batch.tenant_id] += batch.open
        if _are_as_asked(batch):
            some += [UUID(bytes=request) for request in batch.ids()]
        else:
            scope.found("a hold was altered", batch.id, "these holds are not what was asked for")
        if len(some) >= _AT_ONCE:
            await _check_open(scope, some)
            some = []
    await _check_open(scope, some)
    late = select(ended_hold.c.request_id).where(ended_hold.c.request_id == usage_event.c.id)
    for tenant in (ended_hold.c.tenant_id, usage_event.c.tenant_id):
        counts = select(tenant, func.count()).group_by(tenant)
        if tenant is usage_event.c.tenant_id:
            counts = counts.where(~late.exists(), usage_event.c.corrects.is_(None))
        for owner, count in await scope.session.execute(counts):
            found[owner] += count
    for tenant, holds in await scope.session.execute(select(balance.c.tenant_id, balance.c.holds)):
        if found[tenant] != holds:
            detail = f"{holds} were taken; {found[tenant]} are open, were settled, released or expired"
            scope.found("a tenant's holds did not each end once", tenant, detail)


async def _check_open(scope: AuditContext, requests: list[UUID]) -> None:
    """None of these requests, whose holds are open, has usage, or a hold that ended."""
    for end, detail in _ENDS:
        for request in await scope.session.scalars(select(end).where(one_of(scope.database, end, requests))):
            scope.found("a hold that ended is still open", request, detail)
