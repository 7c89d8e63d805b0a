"""Checking the books against the events: rollups, ledger and balances must say what the events add up to."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, select

from billing.rollups import HOUR, KEYS, LIMB, SUMS, event_sums
from billing.tables import balance, ledger_entry, ledger_txn, rollup_hour, usage_event


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it must be; `what` names the invariant, `subject` the tenant or request."""

    what: str
    subject: UUID
    detail: str


async def check_books(session: Any, findings: list[Finding]) -> None:
    """Events = rollups = ledger by tenant and period, and ledger = balances; in the session's one snapshot."""
    costs = await _rollups(session, findings)
    await _ledger(session, findings, costs)
    await _repeated_sequences(session, findings)


async def _rollups(session: Any, findings: list[Finding]) -> dict[tuple[UUID, str], int]:
    """Compare each row of the rollups with its events; return what the events cost by tenant and period."""
    event = usage_event.c
    sums = event_sums()
    hour = event.admitted_at - event.admitted_at % HOUR
    keys = [hour if name == "hour" else event[name] for name in KEYS]
    query = select(*keys, *(sums[name] for name in SUMS)).group_by(*keys)
    costs: dict[tuple[UUID, str], int] = defaultdict(int)
    width = len(KEYS)
    wanted = {}
    for row in await session.execute(query):
        wanted[tuple(row[:width])] = [int(value) for value in row[width:]]
        costs[row[0], row[1]] += int(row[-2]) * LIMB + int(row[-1])
    columns = [rollup_hour.c[name] for name in (*KEYS, *SUMS)]
    found = {tuple(row[:width]): list(row[width:]) for row in await session.execute(select(*columns))}
    for key in wanted.keys() | found.keys():
        if wanted.get(key) != found.get(key):
            where = f"{key[1]}, hour {key[2]}, project {key[3]}, key {key[4]}, {key[5]}, {key[6]}"
            detail = f"{where}: it says {found.get(key)}, the events say {wanted.get(key)}"
            findings.append(Finding("a rollup is not the sum of its events", key[0], detail))
    return costs


async def _ledger(session: Any, findings: list[Finding], costs: dict[tuple[UUID, str], int]) -> None:
    entry, txn = ledger_entry.c, ledger_txn.c
    accounts: dict[tuple[UUID, str], int] = defaultdict(int)
    revenue: dict[tuple[UUID, str], int] = defaultdict(int)
    granted: dict[UUID, int] = defaultdict(int)
    query = (
        select(entry.tenant_id, txn.kind, txn.period, entry.debit, entry.credit, func.sum(entry.amount_pico))
        .join(ledger_txn, txn.id == entry.txn_id)
        .group_by(entry.tenant_id, txn.kind, txn.period, entry.debit, entry.credit)
    )
    for tenant, kind, period, debit, credit, amount in await session.execute(query):
        accounts[tenant, debit] -= int(amount)
        accounts[tenant, credit] += int(amount)
        if kind == "usage":
            revenue[tenant, period] += int(amount)
        elif kind == "grant":
            granted[tenant] += int(amount)
    for key in costs.keys() | revenue.keys():
        if costs.get(key, 0) != revenue.get(key, 0):
            detail = f"{key[1]}: the ledger says {revenue.get(key, 0)}, the events say {costs.get(key, 0)}"
            findings.append(Finding("the ledger is not the sum of the events", key[0], detail))
    for row in await session.execute(select(balance)):
        prepaid = row.credit - row.debit - row.promo + row.receivable
        columns = {"prepaid": prepaid, "promo": row.promo, "receivable": -row.receivable, "revenue": row.debit}
        for account, says in columns.items():
            if accounts[row.tenant_id, account] != says:
                detail = f"{account}: the balance says {says}, the entries say {accounts[row.tenant_id, account]}"
                findings.append(Finding("the ledger is not the balance", row.tenant_id, detail))
        if granted[row.tenant_id] != row.credit:
            detail = f"credit is {row.credit}, what was put in adds up to {granted[row.tenant_id]}"
            findings.append(Finding("the ledger is not the balance", row.tenant_id, detail))


async def _repeated_sequences(session: Any, findings: list[Finding]) -> None:
    """A journal's sequence belongs to one request: within a month the database sees to it, beyond that we do."""
    event = usage_event.c
    query = (
        select(event.replica, event.sequence, func.count())
        .where(event.sequence > 0)
        .group_by(event.replica, event.sequence)
        .having(func.count() > 1)
    )
    for replica, sequence, requests in await session.execute(query):
        detail = f"{replica}, sequence {sequence}: {requests} requests"
        findings.append(Finding("a journal sequence belongs to several requests", UUID(int=0), detail))
