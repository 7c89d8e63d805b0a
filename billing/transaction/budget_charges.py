"""Charging budgets: usage counts in the windows that its hold was reserved from, which hold nothing for it any more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeAlias
from uuid import UUID

import msgspec

from billing.budgets.windows import BudgetWindow, describe, resets
from billing.holds.store import EndedHolds
from billing.money import format_pico
from billing.transaction.money_transaction import MoneyTransaction, OutboxMessage
from billing.usage import UsageEvent
from storage.database.base import new_id
from storage.database.public_ids import public_id

THRESHOLD = "budget.threshold"
"""The outbox topic of a budget's threshold that was reached: once for each threshold and window."""


class BudgetCharges(msgspec.Struct, frozen=True):
    """What to charge: holds that `ended`, and new usage that was `spent`. `late` has the windows of events that came
    after their hold had ended, or that correct other usage."""

    ended: Sequence[EndedHolds]
    spent: Sequence[UsageEvent] = ()
    late: Mapping[UUID, tuple[UUID, ...]] = {}
    currencies: Mapping[UUID, str] = {}


async def charge_budgets(money: MoneyTransaction, charges: BudgetCharges) -> list[OutboxMessage]:
    """Charge the windows of budgets; return the notices of thresholds that were reached. The balances of all tenants
    are locked."""
    held: dict[UUID, int] = defaultdict(int)
    windows: dict[UUID, tuple[UUID, ...]] = {event: late for event, late in charges.late.items() if late}
    for group in charges.ended:
        if group.sources.windows:
            windows |= dict.fromkeys(group.ids, group.sources.windows)
        for window in group.sources.windows:
            held[window] += group.amount_pico
    if not windows:
        return []
    costs: dict[UUID, int] = defaultdict(int)
    counted = {event.id: (event.tenant_id, windows[event.id]) for event in charges.spent if event.id in windows}
    for event in charges.spent:
        for window in windows.get(event.id, ()):
            costs[window] += event.cost_pico
    notices: list[OutboxMessage] = []
    after: list[BudgetWindow] = []
    for before in await money.budgets.windows(held.keys() | costs.keys()):
        changed, reached = before.holding(-held[before.id]).spending(costs[before.id])
        after.append(changed)
        if reached:
            notices.append(_notice(changed, reached, charges.currencies.get(before.tenant_id, "")))
    await money.budgets.save(after)
    await money.budgets.record_charges(counted)
    return notices


def _notice(window: BudgetWindow, percent: int, currency: str) -> OutboxMessage:
    end = resets(window)
    payload = {
        "budget": public_id("budget", window.budget_id),
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
    return OutboxMessage(new_id(), window.tenant_id, THRESHOLD, msgspec.json.encode(payload).decode())


NameLookup: TypeAlias = Callable[[UUID], Awaitable[Mapping[str, tuple[str, str]]]]
"""Tenant id -> the public ids and names of its projects and keys, by their ids."""


async def name_budget_subjects(messages: Iterable[OutboxMessage], names_of: NameLookup) -> dict[UUID, str]:
    """The payload of each message, by its id; a budget's with the public id and the name of its subject,
    which billing does not know."""
    payloads: dict[UUID, str] = {}
    names: dict[UUID, Mapping[str, tuple[str, str]]] = {}
    for message in messages:
        payloads[message.id] = message.payload
        if message.topic == THRESHOLD and (subject := (notice := msgspec.json.decode(message.payload))["subject"]):
            if message.tenant_id not in names:
                names[message.tenant_id] = await names_of(message.tenant_id)
            shown, name = names[message.tenant_id].get(subject, (subject, subject))
            what = describe(notice["scope"], notice["window"], name)
            notice |= {"subject": shown, "subject_name": name, "what": what}
            payloads[message.id] = msgspec.json.encode(notice).decode()
    return payloads
