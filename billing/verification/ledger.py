"""Checks of rollups, ledger and balances against the sums of the events."""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

from sqlalchemy import func, select

from billing.events.rollups import HOUR, KEYS, LIMB, SUMS, event_sums
from billing.ledger.entries import OF_EVENTS
from billing.tables.money import balance, ledger_entry, ledger_txn, rollup_hour, usage_event
from billing.verification.findings import AuditContext


async def check_rollups(audit: AuditContext) -> None:
    """Each rollup row is the sum of its events."""
    event = usage_event.c  # all tenants: an audit checks the whole installation
    sums = event_sums()
    hour = event.admitted_at - event.admitted_at % HOUR
    keys = [hour if name == "hour" else event[name] for name in KEYS]
    query = select(*keys, *(sums[name] for name in SUMS)).where(audit.within(event.period)).group_by(*keys)
    width = len(KEYS)
    wanted = {}
    for row in await audit.session.execute(query):
        wanted[tuple(row[:width])] = [int(value) for value in row[width:]]
    columns = [rollup_hour.c[name] for name in (*KEYS, *SUMS)]
    rolled = select(*columns).where(audit.within(rollup_hour.c.period))
    found = {tuple(row[:width]): list(row[width:]) for row in await audit.session.execute(rolled)}
    for key in wanted.keys() | found.keys():
        if wanted.get(key) != found.get(key):
            where = f"{key[1]}, hour {key[2]}, project {key[3]}, key {key[4]}, {key[5]}, {key[6]}"
            detail = f"{where}: it says {found.get(key)}, the events say {wanted.get(key)}"
            audit.report("a rollup is not the sum of its events", key[0], detail)


async def costs_by_period(audit: AuditContext) -> dict[tuple[UUID, str], int]:
    """The cost of all events of each tenant and period, in pico-units."""
    event = usage_event.c
    high, low = (func.sum(event.cost_pico.op(operator)(LIMB)) for operator in ("/", "%"))
    query = select(event.tenant_id, event.period, high, low).where(audit.within(event.period))
    rows = await audit.session.execute(query.group_by(event.tenant_id, event.period))
    return {(tenant, period): int(quotients) * LIMB + int(rest) for tenant, period, quotients, rest in rows}


async def check_ledger(audit: AuditContext) -> None:
    """The ledger's revenue is the cost of the events, by tenant and period; its accounts agree with the balances."""
    costs = await costs_by_period(audit)
    entry, txn = ledger_entry.c, ledger_txn.c
    accounts: dict[tuple[UUID, str], int] = defaultdict(int)
    revenue: dict[tuple[UUID, str], int] = defaultdict(int)
    granted: dict[UUID, int] = defaultdict(int)
    query = (
        select(entry.tenant_id, txn.kind, txn.period, entry.debit, entry.credit, func.sum(entry.amount_pico))
        .join(ledger_txn, txn.id == entry.txn_id)
        .where(audit.within(txn.period))
        .group_by(entry.tenant_id, txn.kind, txn.period, entry.debit, entry.credit)
    )
    for tenant, kind, period, debit, credit, amount in await audit.session.execute(query):
        accounts[tenant, debit] -= int(amount)
        accounts[tenant, credit] += int(amount)
        if kind in OF_EVENTS:
            revenue[tenant, period] += int(amount) if credit == "revenue" else -int(amount)
        granted[tenant] += _credited(kind, debit, credit) * int(amount)
    for key in costs.keys() | revenue.keys():
        if costs.get(key, 0) != revenue.get(key, 0):
            detail = f"{key[1]}: the ledger says {revenue.get(key, 0)}, the events say {costs.get(key, 0)}"
            audit.report("the ledger is not the sum of the events", key[0], detail)
    if audit.period is None:
        await _check_accounts(audit, accounts, granted)
        await _check_currencies(audit)


def _credited(kind: str, debit: str, credit: str) -> int:
    """1 if an entry adds to a balance's `credit`, -1 if it takes from it, else 0."""
    if kind == "grant":
        return int(credit != "restricted")
    if kind in ("refund", "expiry"):
        return -int(debit != "restricted")
    if kind == "draw":
        return (credit == "prepaid") - (debit == "prepaid")
    if kind in OF_EVENTS:
        return (debit == "restricted") - (credit == "restricted") - (credit == "charges")
    if kind == "return":
        return int(credit != "restricted")
    return 0


async def _check_currencies(audit: AuditContext) -> None:
    """A tenant's ledger entries have the currency of its balance."""
    currencies = select(balance.c.tenant_id, balance.c.currency, ledger_entry.c.currency.label("posted"))
    joined = currencies.join(ledger_entry, ledger_entry.c.tenant_id == balance.c.tenant_id)
    wrong = joined.where(ledger_entry.c.currency != balance.c.currency).distinct()
    for tenant, says, posted in await audit.session.execute(wrong):
        audit.report("the ledger is not the balance", tenant, f"the balance is in {says}, entries are in {posted}")


async def _check_accounts(audit: AuditContext, accounts: dict[tuple[UUID, str], int], granted: dict[UUID, int]) -> None:
    for row in await audit.session.execute(select(balance)):
        prepaid = row.credit - row.debit - row.promo + row.receivable
        columns = {"prepaid": prepaid, "promo": row.promo, "receivable": -row.receivable, "revenue": row.debit}
        for account, says in columns.items():
            if accounts[row.tenant_id, account] != says:
                detail = f"{account}: the balance says {says}, the entries say {accounts[row.tenant_id, account]}"
                audit.report("the ledger is not the balance", row.tenant_id, detail)
        if granted[row.tenant_id] != row.credit:
            detail = f"credit is {row.credit}, what was put in adds up to {granted[row.tenant_id]}"
            audit.report("the ledger is not the balance", row.tenant_id, detail)
