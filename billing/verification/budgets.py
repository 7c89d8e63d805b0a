"""Checks of budgets against the open holds and the usage that they count."""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

from sqlalchemy import func, or_, select

from billing.budgets.store import TERMS, WINDOW
from billing.budgets.windows import BudgetLimit, BudgetWindow
from billing.holds.records import HoldSources
from billing.tables.money import balance, budget, budget_charge, budget_window, hold_batch, usage_fact
from billing.verification.findings import AuditContext


async def check_budgets(audit: AuditContext) -> None:
    """Each window's held and spent sums are those of open holds and counted events, forgotten charges included."""
    held: dict[UUID, int] = defaultdict(int)
    batch = hold_batch.c
    open_holds = select(batch.tenant_id, batch.sources, func.sum(batch.amount_pico)).where(batch.sources != "")
    for _, sources, amount in await audit.session.execute(open_holds.group_by(batch.tenant_id, batch.sources)):
        for identity in HoldSources.decode(sources).windows:
            held[identity] += int(amount)
    spent: dict[UUID, int] = defaultdict(int)
    admitted: dict[UUID, tuple[int, int]] = {}
    counted = budget_charge.outerjoin(usage_fact, usage_fact.c.id == budget_charge.c.request_id)
    of, user = budget_charge.c, usage_fact.c.tenant_id.label("user")
    fact = usage_fact.c
    charges = select(of.request_id, of.budgets, of.tenant_id, user, fact.cost_pico, fact.admitted_at)
    async for request, budgets, owner, whose, cost, at in await audit.session.stream(charges.select_from(counted)):
        if owner != whose:
            detail = "it has no event" if cost is None else f"it is of tenant {whose}, not {owner}"
            audit.report("a budget counted a request without usage", request, detail)
        for identity in HoldSources.decode(budgets).windows:
            spent[identity] += cost or 0
            if at is not None:
                first, last = admitted.get(identity, (at, at))
                admitted[identity] = min(first, at), max(last, at)
    await _check_terms(audit)
    columns = [budget_window.c[name] for name in WINDOW]
    windows = set[UUID]()
    for *row, forgotten in await audit.session.execute(select(*columns, budget_window.c.forgotten)):
        window = BudgetWindow(*row)
        windows.add(window.id)
        if problem := _problem_of(window, admitted.get(window.id)):
            audit.report("a budget's window was altered", window.tenant_id, f"window {window.id}: {problem}")
        spent[window.id] += int(forgotten)
        for side, says, sums in (("held", window.held, held), ("spent", window.spent, spent)):
            if says != sums[window.id]:
                detail = f"{window.scope} {window.subject}: {side} is {says}, and adds up to {sums[window.id]}"
                audit.report("a budget is not the sum of its requests", window.tenant_id, detail)
    for identity in sorted((held.keys() | spent.keys()) - windows):
        audit.report("a budget's window is missing", identity, "requests were counted in it, or reserve from it")


def _problem_of(window: BudgetWindow, admitted: tuple[int, int] | None) -> str | None:
    """What cannot be of a window, whatever was used of it. `admitted`: the first and last of its requests."""
    limit = BudgetLimit(**{name: getattr(window, name) for name in TERMS})
    if limit.starts_at(window.starts_at) != window.starts_at:
        return "no window of its span begins then"
    ends_at = window.resets_at
    if admitted and (admitted[0] < window.starts_at or (ends_at is not None and admitted[1] >= ends_at + _SLACK_US)):
        return "its requests were admitted in another"
    if window.over != (max(0, window.spent + window.held - window.limit_pico) if window.action == "block" else 0):
        return f"over is {window.over}"
    if window.told and str(window.told) not in window.thresholds.split(","):
        return f"told is {window.told}"
    return None


_SLACK_US = 10_000_000
"""An allowance may outlast a window by seconds, in microseconds."""
_SAME = ("tenant_id", "scope", "subject", "span", "limit_pico", "action", "thresholds")


async def _check_terms(audit: AuditContext) -> None:
    """Each window agrees with its budget, and balances state how many budgets are in force."""
    set_, window = budget.c, budget_window.c
    joined = budget_window.outerjoin(budget, set_.budget_id == window.budget_id)
    differs = or_(set_.budget_id.is_(None), *(set_[name] != window[name] for name in _SAME))
    wrong = select(window.tenant_id, window.id).select_from(joined).where(differs)  # all tenants, here and below
    for tenant, identity in await audit.session.execute(wrong):
        audit.report("a budget's window is not under its terms", tenant, f"window {identity}")
    counts = select(set_.tenant_id, func.count()).where(set_.removed_at.is_(None)).group_by(set_.tenant_id)
    in_force: dict[UUID, int] = {row[0]: row[1] for row in await audit.session.execute(counts)}
    for tenant, says in await audit.session.execute(select(balance.c.tenant_id, balance.c.budgets)):
        if says != in_force.get(tenant, 0):
            detail = f"the balance says {says}, in force are {in_force.get(tenant, 0)}"
            audit.report("a balance does not know its budgets", tenant, detail)
