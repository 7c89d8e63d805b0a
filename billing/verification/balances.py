"""Checks of balances, grants and holds: what tenants have, and what is reserved of it."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid5

import msgspec
from sqlalchemy import func, select

from billing.events.rollups import LIMB
from billing.holds.batches import HoldBatch
from billing.holds.records import HoldSources, unpack, unpack_all
from billing.holds.store import BATCH_COLUMNS
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
from billing.tables.payments import payment_dispute
from billing.verification.findings import AuditContext
from billing.verification.lowered_lines import debt_began, highest_line_of_debt
from storage.database.sql_arrays import one_of

GRANT_ACCOUNTS = ("prepaid", "promo", "restricted")
"""Ledger accounts that hold what is left of grants."""
_AT_ONCE = 1000
_ENDS = ((usage_fact.c.id, "it has usage"), (ended_hold.c.request_id, "it was released or expired"))
LEFT = tuple(grant_balance.c[name] for name in ("remaining", "used", "gone", "held"))


async def check_balances(audit: AuditContext) -> None:
    """Each balance is the sum of its grants, events and open holds, and none is below zero (overdraft), but for what a
    credit line covered that was lowered since."""
    cost = usage_event.c.cost_pico
    high, low = func.sum(cost.op("/")(LIMB)), func.sum(cost.op("%")(LIMB))
    debits = {
        tenant: int(quotients) * LIMB + int(rest)
        for tenant, quotients, rest in await audit.session.execute(
            select(usage_event.c.tenant_id, high, low).group_by(usage_event.c.tenant_id)
        )
    }
    held, counted_on = await _held(audit)
    credits_ = await _check_grants(audit, counted_on)
    rows = {row.tenant_id: row for row in await audit.session.execute(select(balance))}
    for tenant in sorted(rows.keys() | credits_.keys() | debits.keys() | held.keys()):
        row = rows.get(tenant)
        sides = (("credit", "grants", credits_), ("debit", "usage events", debits), ("held", "open holds", held))
        for side, name, sums in sides:
            found = 0 if row is None else getattr(row, side)
            if found != sums.get(tenant, 0):
                detail = f"{side} is {found}, the {name} add up to {sums.get(tenant, 0)}"
                audit.report("a balance is not the sum of its entries", tenant, detail)
        if row is not None and row.overdraft != max(0, row.debit + row.held - row.credit - row.credit_line):
            audit.report("a balance's overdraft is wrong", tenant, f"it is {row.overdraft}")
        elif row is not None and row.overdraft:
            taken = await _charged_back(audit, row)
            if row.debit + row.held <= row.credit + taken + await highest_line_of_debt(audit, row):
                continue  # it was within a credit line, which was lowered since, or covered by what the payer took back
            detail = f"{row.debit} used and {row.held} held of {row.credit}, credit line {row.credit_line}"
            audit.report("a balance is below zero", tenant, f"by {row.overdraft}: {detail}")


async def _charged_back(audit: AuditContext, row: Any) -> int:
    """What payers took back of this tenant's money (`Wallet.charge_back`) since what it owes now began, in pico-units,
    as far as that may leave a balance below zero: all that had been used and is owed again, and of what was left, as
    much as open holds may count on. A refund that we made never does."""
    since = await debt_began(audit, row)
    if since is None:
        return 0
    entry, txn = ledger_entry.c, ledger_txn.c
    query = select(txn.id, entry.debit, entry.amount_pico, entry.grant_id)
    query = query.join_from(ledger_txn, ledger_entry, entry.txn_id == txn.id)
    query = query.where(txn.tenant_id == row.tenant_id, txn.kind == "refund", txn.posted_at >= since)
    dispute = payment_dispute.c
    disputes = (await audit.session.scalars(select(dispute.id).where(dispute.tenant_id == row.tenant_id))).all()
    withdrawals = [uuid5(one, "withdrawn") for one in disputes]
    used, left = 0, 0
    for identity, debit, pico, grant_id in await audit.session.execute(query):
        if debit == "receivable":
            used += int(pico)
        elif identity in withdrawals or any(uuid5(one, str(grant_id)) == identity for one in withdrawals):
            left += int(pico)
    return used + min(left, int(row.held))


async def _check_grants(audit: AuditContext, counted_on: Mapping[UUID, int]) -> dict[UUID, int]:
    """Each grant adds up, agrees with the ledger and with open holds, and paid only for its model and project.

    Returns the `credit` that each tenant's balance must have: from grants and from balance returns, in pico-units.
    """
    entry = ledger_entry.c
    moved: dict[UUID, int] = defaultdict(int)
    begun = set()
    query = select(entry.grant_id, entry.debit, entry.credit, entry.amount_pico).where(entry.grant_id.is_not(None))
    async for grant_id, debit, credit, amount in await audit.session.stream(query):
        moved[grant_id] += amount if credit in GRANT_ACCOUNTS else -amount
        if debit in ("clearing", "goodwill"):
            begun.add(grant_id)
    credits_ = await _returned(audit)
    left: dict[tuple[UUID, str], int] = defaultdict(int)
    restricted: dict[UUID, int] = defaultdict(int)
    owner = grant_balance.c.tenant_id.label("owner")
    columns = [grant.c[name] for name in ("id", "tenant_id", "amount_pico", "kind", "model", "project_id")]
    joined = select(*columns, owner, *LEFT).outerjoin_from(grant, grant_balance, grant_balance.c.grant_id == grant.c.id)
    for row in await audit.session.execute(joined):
        if row.remaining is None or row.remaining + row.used + row.gone != row.amount_pico:
            audit.report("what became of a grant is not its amount", row.id, f"{row.amount_pico} were put in")
            continue
        if row.owner != row.tenant_id:
            audit.report("what became of a grant is not its amount", row.id, f"it says that tenant {row.owner} has it")
        if row.id in begun and moved[row.id] != row.remaining:
            detail = f"{row.remaining} are left, the entries say {moved[row.id]}"
            audit.report("what is left of a grant is not what its entries say", row.id, detail)
        if row.held != counted_on.get(row.id, 0):
            detail = f"{row.held} of it are held, open holds count on {counted_on.get(row.id, 0)}"
            audit.report("a grant is not what holds count on", row.id, detail)
        if row.model is not None or row.project_id is not None:
            credits_[row.tenant_id] += row.used
            restricted[row.tenant_id] += row.remaining
            await _check_purpose(audit, row)
        else:
            credits_[row.tenant_id] += row.amount_pico - row.gone
            left[row.tenant_id, row.kind] += row.remaining
    for row in await audit.session.execute(select(balance)):
        promo = left[row.tenant_id, "promo"]
        paid = sum(pico for (tenant, kind), pico in left.items() if tenant == row.tenant_id and kind != "promo")
        if (promo, paid) != (row.promo, row.credit - row.debit - row.promo + row.receivable):
            audit.report("a balance is not what is left of its grants", row.tenant_id, f"{promo} given, {paid} paid")
        if row.restricted != restricted[row.tenant_id]:
            detail = f"{restricted[row.tenant_id]} are for one model or project, it says {row.restricted}"
            audit.report("a balance is not what is left of its grants", row.tenant_id, detail)
    return credits_


async def _returned(audit: AuditContext) -> dict[UUID, int]:
    """Balance returns of each tenant, less what corrections deducted from them, in pico-units."""
    entry = ledger_entry.c
    kind = ledger_txn.c.kind
    again = (entry.debit == "revenue") & (entry.credit == "charges")
    query = select(entry.tenant_id, kind, func.sum(entry.amount_pico)).join(ledger_txn, ledger_txn.c.id == entry.txn_id)
    returned: dict[UUID, int] = defaultdict(int)
    query = query.where((kind == "return") | again).group_by(entry.tenant_id, kind)
    for tenant, entry_kind, amount in await audit.session.execute(query):
        returned[tenant] += int(amount) if entry_kind == "return" else -int(amount)
    return returned


async def _check_purpose(audit: AuditContext, row: Any) -> None:
    """A restricted grant cannot have paid for more than its model's and project's usage."""
    if not row.used:
        return
    event = usage_event.c
    allowed = [event.tenant_id == row.tenant_id]
    allowed += [event.model == row.model] if row.model is not None else []
    allowed += [event.project_id == row.project_id] if row.project_id is not None else []
    high, low = func.sum(event.cost_pico.op("/")(LIMB)), func.sum(event.cost_pico.op("%")(LIMB))
    quotients, rest = (await audit.session.execute(select(high, low).where(*allowed))).one()
    cost = int(quotients or 0) * LIMB + int(rest or 0)
    if row.used > cost:
        audit.report("a grant paid for what it is not for", row.id, f"{row.used} of it were used, for usage of {cost}")


async def _held(audit: AuditContext) -> tuple[dict[UUID, int], dict[UUID, int]]:
    """What open holds reserve, in pico-units: of each tenant's balance, and of each grant.

    Summed in Python, since SQLite's 64-bit sums could overflow.
    """
    balances: dict[UUID, int] = defaultdict(int)
    grants: dict[UUID, int] = defaultdict(int)
    batch = hold_batch.c  # all tenants: an audit checks the whole installation
    query = select(batch.tenant_id, batch.amount_pico, batch.sources, batch.open)
    async for tenant, amount, sources, holds in await audit.session.stream(query):
        counted_on = HoldSources.decode(sources).grants
        balances[tenant] += amount - holds * sum(counted_on.values())
        for grant_id, pico in counted_on.items():
            grants[grant_id] += holds * pico
    return balances, grants


def _is_unaltered(row: Any) -> bool:
    """Whether an ended hold's columns are those of its request. Its amount may have been raised since."""
    try:
        request = unpack(row.request)
        HoldSources.decode(row.budgets)
    except (msgspec.MsgspecError, ValueError):
        return False
    same = (row.request_id, row.tenant_id, row.gateway) == (
        request.request_id,
        request.tenant_id,
        request.gateway_epoch,
    )
    same_lifetime = row.expires_at - row.admitted_at == request.lifetime_s * 1_000_000
    return same and same_lifetime and (row.amount_pico >= request.amount_pico or request.is_allowance)


def _is_batch_unaltered(batch: HoldBatch) -> bool:
    """Whether a batch of open holds is what their requests say. Their amounts may have been raised since."""
    try:
        HoldSources.decode(batch.sources)
        amounts, requests = batch.amounts(), {request.request_id: request for request in unpack_all(batch.requests)}
        still_open = {request: requests[UUID(bytes=request)] for request in amounts}
    except (msgspec.MsgspecError, struct.error, ValueError, KeyError):
        return False
    owners = {(request.tenant_id, request.gateway_epoch) for request in requests.values()}
    lifetimes = {request.lifetime_s * 1_000_000 for request in requests.values()}
    lifetime = batch.expires_at - batch.admitted_at
    return (
        (batch.first, batch.last) == (min(requests), max(requests))
        and {(batch.tenant_id, batch.gateway)} == owners
        and (batch.open, batch.amount_pico) == (len(amounts), sum(amounts.values()))
        and all(amounts[id_] >= request.amount_pico or request.is_allowance for id_, request in still_open.items())
        and lifetime in lifetimes
        and all(lifetime <= request.lifetime_s * 1_000_000 for request in still_open.values())
    )


async def check_holds(audit: AuditContext) -> None:
    """Each hold is open, or ended once: by usage, by release or by expiry."""
    # all tenants: an audit checks the whole installation
    async for row in await audit.session.stream(select(ended_hold)):
        if not _is_unaltered(row):
            audit.report("a hold was altered", row.request_id, "it is not what was asked for")
    found: dict[UUID, int] = defaultdict(int)
    open_requests: list[UUID] = []
    async for row in await audit.session.stream(select(*BATCH_COLUMNS)):
        batch = HoldBatch(*row)
        found[batch.tenant_id] += batch.open
        if _is_batch_unaltered(batch):
            open_requests += [UUID(bytes=request) for request in batch.ids()]
        else:
            audit.report("a hold was altered", batch.id, "these holds are not what was asked for")
        if len(open_requests) >= _AT_ONCE:
            await _check_open(audit, open_requests)
            open_requests = []
    await _check_open(audit, open_requests)
    late = select(ended_hold.c.request_id).where(ended_hold.c.request_id == usage_event.c.id)
    for tenant in (ended_hold.c.tenant_id, usage_event.c.tenant_id):
        counts = select(tenant, func.count()).group_by(tenant)
        if tenant is usage_event.c.tenant_id:
            counts = counts.where(~late.exists(), usage_event.c.corrects.is_(None))
        for owner, count in await audit.session.execute(counts):
            found[owner] += count
    for tenant, holds in await audit.session.execute(select(balance.c.tenant_id, balance.c.holds)):
        if found[tenant] != holds:
            detail = f"{holds} were taken; {found[tenant]} are open, were settled, released or expired"
            audit.report("a tenant's holds did not each end once", tenant, detail)


async def _check_open(audit: AuditContext, requests: list[UUID]) -> None:
    """No request whose hold is open has usage or an ended hold."""
    for end, detail in _ENDS:
        for request in await audit.session.scalars(select(end).where(one_of(audit.database, end, requests))):
            audit.report("a hold that ended is still open", request, detail)
