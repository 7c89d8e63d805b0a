"""Checking budgets against what they are made of: open holds, and the usage that was counted in them."""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

from sqlalchemy import func, select

from billing.audit.scope import Scope
from billing.budgets.books import WINDOW
from billing.budgets.windows import BudgetWindow
from billing.holds.records import split
from billing.tables.budgets import budget_charge, budget_window
from billing.tables.money import hold, usage_fact


async def check_budgets(scope: Scope) -> None:
    """What each window holds and has spent must be what open holds and counted events add up to (with what is
    forgotten of those), for every tenant."""
    held: dict[UUID, int] = defaultdict(int)
    open_holds = select(hold.c.tenant_id, hold.c.budgets, func.sum(hold.c.amount_pico)).where(hold.c.budgets != "")
    for _, budgets, amount in await scope.session.execute(open_holds.group_by(hold.c.tenant_id, hold.c.budgets)):
        for identity in split(budgets):
            held[identity] += int(amount)
    spent: dict[UUID, int] = defaultdict(int)
    counted = budget_charge.outerjoin(usage_fact, usage_fact.c.id == budget_charge.c.request_id)
    charges = select(budget_charge.c.request_id, budget_charge.c.budgets, usage_fact.c.cost_pico).select_from(counted)
    async for request, budgets, cost in await scope.session.stream(charges):
        if cost is None:
            scope.found("a budget counted a request without usage", request, "it has no event")
        for identity in split(budgets):
            spent[identity] += cost or 0
    columns = [budget_window.c[name] for name in WINDOW]
    for *row, forgotten in await scope.session.execute(select(*columns, budget_window.c.forgotten)):
        window = BudgetWindow(*row)
        spent[window.id] += int(forgotten)
        for side, says, sums in (("held", window.held, held), ("spent", window.spent, spent)):
            if says != sums[window.id]:
                detail = f"{window.scope} {window.subject}: {side} is {says}, and adds up to {sums[window.id]}"
                scope.found("a budget is not the sum of its requests", window.tenant_id, detail)
