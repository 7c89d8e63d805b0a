"""Budgets: how much of a tenant's money a part of it may use in a window of time; and the arithmetic of one window.

A budget is for the tenant, a project, a key or a tag, in each calendar month or day (UTC), or in all. One that blocks
is reserved from like the balance, whole or not at all; one that notifies only counts. Usage counts in the window in
which its request was admitted.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec

from billing.calendar import period_bounds, period_of
from billing.holds.records import HoldRequest
from storage.database.base import from_instant, to_instant

BudgetScope = Literal["tenant", "project", "key", "tag"]
Span = Literal["month", "day", "total"]
Action = Literal["block", "notify"]

FULL = 100
"""Per cent."""


class BudgetLimit(msgspec.Struct, frozen=True):
    """What an administrator set. `subject` is the project's or key's id, or the tag; nothing for a tenant.

    `thresholds` are percentages of the limit, in rising order: once what was spent reaches one, others are told.
    """

    budget_id: UUID
    tenant_id: UUID
    scope: BudgetScope
    subject: str
    span: Span
    limit_pico: int
    action: Action
    thresholds: str

    def is_for(self, request: HoldRequest) -> bool:
        """Whether the request uses this budget."""
        if request.tenant_id != self.tenant_id:
            return False
        subjects = {"project": str(request.project_id), "key": str(request.key_id), "tag": request.tag}
        return self.scope == "tenant" or subjects[self.scope] == self.subject

    def starts_at(self, now: int) -> int:
        """The first instant of the window that `now` is in."""
        if self.span == "total":
            return 0
        if self.span == "month":
            return period_bounds(period_of(now))[0]
        return to_instant(from_instant(now).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0))


class BudgetWindow(msgspec.Struct, frozen=True):
    """One window of a budget, in pico-units. `over` is by how much a blocking one is passed, by usage that arrived
    after its hold had expired, or because the limit was lowered; `told` is the highest threshold that was told of."""

    id: UUID
    budget_id: UUID
    tenant_id: UUID
    scope: BudgetScope
    subject: str
    span: Span
    limit_pico: int
    action: Action
    thresholds: str
    starts_at: int
    held: int = 0
    spent: int = 0
    over: int = 0
    told: int = 0

    @property
    def available(self) -> int | None:
        """What may still be reserved; None if nothing is ever refused."""
        return None if self.action == "notify" else self.limit_pico - self.spent - self.held

    @property
    def resets_at(self) -> int | None:
        """When the next window begins, in microseconds since the Unix epoch; None for a total."""
        if self.span == "total":
            return None
        if self.span == "month":
            return period_bounds(period_of(self.starts_at))[1]
        return to_instant(from_instant(self.starts_at) + timedelta(days=1))

    def holding(self, pico: int) -> BudgetWindow:
        """With this much more held: more never makes up for what is not there, less may."""
        after = msgspec.structs.replace(self, held=self.held + pico)
        return after if pico > 0 else after._covered()

    def spending(self, pico: int) -> tuple[BudgetWindow, int]:
        """With this much used, and the highest threshold that was reached by it; 0 for none."""
        spent = self.spent + pico
        told = max(self.told, _reached(self.thresholds, spent, self.limit_pico))
        after = msgspec.structs.replace(self, spent=spent, told=told)._covered()
        return after, told if told > self.told else 0

    def limited(self, terms: BudgetLimit) -> BudgetWindow:
        """Under other terms: thresholds that were passed under a lower limit are told again when they are reached."""
        changed = msgspec.structs.replace(
            self, limit_pico=terms.limit_pico, action=terms.action, thresholds=terms.thresholds
        )
        passed = _reached(terms.thresholds, self.spent, terms.limit_pico)
        return msgspec.structs.replace(changed, told=passed)._covered()

    def _covered(self) -> BudgetWindow:
        missing = self.spent + self.held - self.limit_pico if self.action == "block" else 0
        return msgspec.structs.replace(self, over=max(0, missing))


def _reached(thresholds: str, spent: int, limit: int) -> int:
    """The highest of the percentages that was reached; 0 for none."""
    return max((percent for percent in map(int, thresholds.split(",")) if spent * FULL >= percent * limit), default=0)


def describe(scope: BudgetScope, span: Span, name: str) -> str:
    """Whose budget it is, in words: "the monthly budget of the project …". `name`: what people call its subject."""
    of = {"month": "monthly", "day": "daily", "total": "total"}[span]
    return f"the {of} budget of the {scope} {name}".rstrip()


def resets(window: BudgetWindow) -> datetime | None:
    """When the window ends, as a moment in UTC."""
    return None if window.resets_at is None else from_instant(window.resets_at)
