"""Counting what was spent in the budgets that its holds were reserved from, and giving back what they held, once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from billing.budgets.windows import BudgetWindow, describe, resets
from billing.holds.records import join, split
from billing.holds.store import EndedHolds
from billing.money import format_pico
from billing.transaction.money_transaction import MoneyTransaction, OutboxMessage
from billing.usage import UsageEvent
from storage.database.base import new_id

THRESHOLD = "budget.threshold"
"""The outbox topic of a budget of which a threshold was reached: once for each threshold and window."""


class BudgetCharges(msgspec.Struct, frozen=True):
    """Holds that ended and usage that is new; `late` are the budgets of usage that came after its hold had ended, or
    that corrects other usage."""

    ended: Sequence[EndedHolds]
    spent: Sequence[UsageEvent] = ()
    late: Mapping[UUID, str] = {}
    currencies: Mapping[UUID, str] = {}


async def charge_budgets(books: MoneyTransaction, use: BudgetCharges) -> list[OutboxMessage]:
    """Settle budgets; return who is to be told what. The balances of all tenants are locked."""
    held: dict[UUID, int] = defaultdict(int)
    budgets: dict[UUID, str] = {event: join(windows) for event, of in use.late.items() if (windows := split(of))}
    for some in use.ended:
        if windows := split(some.budgets):
            budgets |= dict.fromkeys(some.ids, join(windows))
        for window in windows:
            held[window] += some.amount_pico
    if not budgets:
        return []
    costs: dict[UUID, int] = defaultdict(int)
    charged = {event.id: (event.tenant_id, budgets[event.id]) for event in use.spent if event.id in budgets}
    for event in use.spent:
        for window in split(budgets.get(event.id, "")):
            costs[window] += event.cost_pico
    notices: list[OutboxMessage] = []
    after: list[BudgetWindow] = []
    for found in await books.budgets.windows(held.keys() | costs.keys()):
        changed, reached = found.holding(-held[found.id]).spending(costs[found.id])
        after.append(changed)
        if reached:
            notices.append(_notice(changed, reached, use.currencies.get(found.tenant_id, "")))
    await books.budgets.save(after)
    await books.budgets.charge(charged)
    return notices


def _notice(window: BudgetWindow, percent: int, currency: str) -> OutboxMessage:
    end = resets(window)
    told = {
        "budget": str(window.budget_id),
        "what": describe(window.scope, window.span, window.subject),
        "scope": window.scope,
        "subject": window.subject,
        "subject_name": window.subject,
        "window": window.span,
        "threshold_percent": percent,
        "spent": format_pico(window.spent),
        "limit": format_pico(window.limit_pico),
        "currency": currency,
        "resets_at": None if end is None else end.isoformat(),
    }
    return OutboxMessage(new_id(), window.tenant_id, THRESHOLD, msgspec.json.encode(told).decode())


def named(payload: str, name: str) -> str:
    """A notice that says what people call the subject of its budget, beside its id."""
    told = msgspec.json.decode(payload)
    told |= {"subject_name": name, "what": describe(told["scope"], told["window"], name)}
    return msgspec.json.encode(told).decode()
