"""The tables of budgets."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Table, Text, UniqueConstraint, text

from storage.database.base import STRICT, Base, Count, Id, Pico

_TERMS = ("scope", "subject", "span")


def _terms() -> list[Column[str]]:
    return [Column(name, Text, nullable=False) for name in _TERMS]


budget = Table(
    "budget",
    Base.metadata,
    Column("budget_id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    *_terms(),
    Column("limit_pico", Pico, nullable=False),
    Column("action", Text, nullable=False),
    Column("thresholds", Text, nullable=False),
    Column("removed_at", Count, nullable=True),
    CheckConstraint("limit_pico >= 0", name="not_negative"),
    UniqueConstraint("tenant_id", *_TERMS, name="uq_budget_tenant_id_scope_subject_span"),
    **STRICT,
)
"""What administrators set, and removed ones: set again, they go on where they were."""

budget_window = Table(
    "budget_window",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("budget_id", Id, nullable=False),
    Column("tenant_id", Id, nullable=False),
    *_terms(),
    Column("limit_pico", Pico, nullable=False),
    Column("action", Text, nullable=False),
    Column("thresholds", Text, nullable=False),
    Column("starts_at", Count, nullable=False),
    Column("held", Pico, nullable=False),
    Column("spent", Pico, nullable=False),
    Column("over", Pico, nullable=False),
    Column("told", Count, nullable=False),
    Column("forgotten", Pico, nullable=False, server_default=text("0")),
    CheckConstraint("action <> 'block' OR spent + held <= limit_pico + over", name="covered"),
    CheckConstraint("held >= 0", name="held_not_negative"),
    CheckConstraint("over >= 0", name="over_not_negative"),
    UniqueConstraint("budget_id", "starts_at", name="uq_budget_window_budget_id_starts_at"),
    **STRICT,
)
"""What was reserved and used of a budget in one window. `forgotten`: the part of `spent` whose rows of `budget_charge`
were deleted (`billing.retention`). Whoever changes another column holds the lock of its tenant's balance."""

budget_charge = Table(
    "budget_charge",
    Base.metadata,
    Column("request_id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("budgets", Text, nullable=False),
    **STRICT,
)
"""Which windows a settled request was counted in: what `spent` is the sum of, beside what is `forgotten`."""
