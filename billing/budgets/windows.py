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
    """A budget as an administrator set it. `subject` is the project's or key's id, or the tag; empty for a tenant.

    `thresholds` are percentages of the limit, in rising order: a message is sent when what was spent reaches one.
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
    """One window of a budget; amounts are in pico-units. `over` is by how much a blocking one is exceeded, by usage
    that came after its hold had expired, or because the limit was lowered. `told` is the highest threshold of which a
    message was sent."""

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
        """With this much more held (less, if negative). More never raises `over`: the database refuses it."""
        after = msgspec.structs.replace(self, held=self.held + pico)
        return after if pico > 0 else after._covered()

    def spending(self, pico: int) -> tuple[BudgetWindow, int]:
        """With this much used; and the highest threshold that was reached by it, 0 for none."""
        spent = self.spent + pico
        told = max(self.told, _reached(self.thresholds, spent, self.limit_pico))
        after = msgspec.structs.replace(self, spent=spent, told=told)._covered()
        return after, told if told > self.told else 0

    def limited(self, limit: BudgetLimit) -> BudgetWindow:
        """Under another limit: thresholds that are not reached under it are sent again when they are."""
        changed = msgspec.structs.replace(
            self, limit_pico=limit.limit_pico, action=limit.action, thresholds=limit.thresholds
        )
        passed = _reached(limit.thresholds, self.spent, limit.limit_pico)
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
