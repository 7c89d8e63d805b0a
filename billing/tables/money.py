"""The tables of usage and holds: events, holds, balances, the ledger, rollups and budgets."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from billing.tables.prices import price, price_version
from billing.usage import COUNTS, DIMENSIONS, DRAFTS, METERS
from storage.database.base import STRICT, Base, Count, Id, Pico

__all__ = ["price", "price_version"]  # beside what is defined here: imported so that the metadata has them

ACCOUNTS = (
    "'bad_debt', 'breakage', 'charges', 'clearing', 'credited', 'deferred', 'goodwill', 'invoiced', "
    "'prepaid', 'promo', 'receivable', 'restricted', 'revenue', 'rounding_carry', 'tax', 'tax_relief', 'written_off'"
)

grant = Table(
    "grant",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False, index=True),
    Column("amount_pico", Pico, nullable=False),
    Column("currency", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Count, nullable=False),
    Column("priority", Integer, nullable=False, server_default=text("100")),
    Column("expires_at", Count, nullable=True),
    Column("model", Text, nullable=True),
    Column("project_id", Id, nullable=True),
    CheckConstraint("amount_pico > 0", name="positive"),
    **STRICT,
)

grant_balance = Table(
    "grant_balance",
    Base.metadata,
    Column("grant_id", Id, ForeignKey("grant.id"), primary_key=True),
    Column("tenant_id", Id, nullable=False, index=True),
    *(Column(name, Pico, nullable=False) for name in ("remaining", "used", "gone")),
    Column("held", Pico, nullable=False, server_default=text("0")),
    *(CheckConstraint(f"{name} >= 0", name=f"{name}_not_negative") for name in ("remaining", "used", "gone")),
    CheckConstraint("held >= 0 AND held <= remaining", name="covered"),
    **STRICT,
)
"""What became of each grant: `remaining`, `used` and `gone` are together its amount; of one for one model or project,
open holds count on `held`. Changed only by who has locked the tenant's balance."""

balance = Table(
    "balance",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("currency", Text, nullable=False),
    Column("credit", Pico, nullable=False),
    Column("debit", Pico, nullable=False),
    Column("held", Pico, nullable=False),
    Column("overdraft", Pico, nullable=False),
    Column("promo", Pico, nullable=False, server_default=text("0")),
    Column("receivable", Pico, nullable=False, server_default=text("0")),
    Column("credit_line", Pico, nullable=False, server_default=text("0")),
    Column("holds", Count, nullable=False, server_default=text("0")),
    Column("budgets", Count, nullable=False, server_default=text("0")),
    Column("restricted", Pico, nullable=False, server_default=text("0")),
    CheckConstraint("credit - debit - held + overdraft + credit_line >= 0", name="covered"),
    CheckConstraint("held >= 0", name="held_not_negative"),
    CheckConstraint("overdraft >= 0", name="overdraft_not_negative"),
    CheckConstraint("promo >= 0", name="promo_not_negative"),
    CheckConstraint("receivable >= 0", name="receivable_not_negative"),
    CheckConstraint("credit_line >= 0", name="credit_line_not_negative"),
    CheckConstraint("restricted >= 0", name="restricted_not_negative"),
    **STRICT,
)
"""What a tenant has: `credit` was put in, `debit` was used, `held` is reserved by open holds.

Of what is left, `promo` was given and is used first; the rest was paid, and `receivable` was used before it was paid.
Up to `credit_line` may be used so: 0 for a prepaid tenant. Each column but `held` and `credit_line` is a sum of the
ledger's entries.
`overdraft` is 0 but for usage that arrived after its hold had expired and the money was promised to others, and where
the credit line was lowered below what is used of it: then it is what is missing. Nothing else raises it, so reserving
can never bring what is available below zero.
`holds` is how many holds there were, but for those that `billing.retention` forgot: each is open, or has ended once.
Those that were taken out of an allowance count when their usage is settled.
`budgets` is how many are in force.
`restricted` is what grants for one model or project have left, beside all that: holds count on those grants themselves.
"""

hold_batch = Table(
    "hold_batch",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("gateway", Text, nullable=False),
    Column("sources", Text, nullable=False),
    Column("admitted_at", Count, nullable=False),
    Column("expires_at", Count, nullable=False),
    *(Column(name, Id, nullable=False) for name in ("first", "last")),
    Column("open", Integer, nullable=False),
    Column("amount_pico", Pico, nullable=False),
    *(Column(name, LargeBinary, nullable=False) for name in ("entries", "requests")),
    CheckConstraint("open > 0", name="open"),
    CheckConstraint("amount_pico >= 0", name="not_negative"),
    **STRICT,
)
"""Open holds, those in a row that were taken together (`billing.holds.batches`): `open` of them, of `amount_pico` in
all. One that ends leaves its row; what it was is in its usage event, or in `ended_hold`.

An allowance (`billing.reservation.allowances`) is a hold too, alone in its row, and shrinks by what is used of it.

`sources` is what each is reserved from beside the balance (`billing.holds.records`): windows of budgets, and
grants for one model or project. The first of them expires at `expires_at`, or later. `first` and `last` are the least
and the greatest id of a request that was ever in the row. There is no index but the key: each would cost every request,
and only recovery and sweeping look for anything else, through few rows.
"""

ended_hold = Table(
    "ended_hold",
    Base.metadata,
    Column("request_id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("amount_pico", Count, nullable=False),
    Column("gateway", Text, nullable=False),
    Column("admitted_at", Count, nullable=False),
    Column("expires_at", Count, nullable=False),
    Column("budgets", Text, nullable=False, server_default=text("''")),
    Column("request", LargeBinary, nullable=False),
    Column("state", Text, nullable=False),
    Column("ended_at", Count, nullable=False),
    CheckConstraint("state IN ('released', 'expired')", name="state"),
    **STRICT,
)
"""Holds that ended without usage, or before it came: should it come all the same, they say on which terms. `budgets` is
what `sources` was, `request` the whole `HoldRequest`."""

usage_traits = Table(
    "usage_traits",
    Base.metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    *(Column(name, Text, nullable=False) for name in DIMENSIONS),
    UniqueConstraint(*DIMENSIONS, name="uq_usage_traits"),
    **STRICT,
)
"""What many events have in common, once for each combination that occurs (`billing.events.columns`)."""


def _facts() -> list[Column[Any]]:
    return [
        *(Column(name, Id, nullable=False) for name in ("tenant_id", "project_id", "key_id")),
        Column("price_version", Integer, nullable=False),
        _mostly_none("context_from"),
        *(Column(name, Count, nullable=False) for name in ("admitted_at", "finished_at")),
        Column("period", Text, nullable=False),
        Column("sequence", Count, nullable=False),
        Column("attempt", Integer, nullable=False),
        *(_mostly_none(f"count_{name}") for name in COUNTS),
        *(_mostly_none(meter) for meter in METERS),
        Column("cost_pico", Count, nullable=False),
        Column("corrects", Id, nullable=True),
    ]


def _mostly_none(name: str) -> Column[Any]:
    """Tokens, of which most events have none: what is not written is 0."""
    return Column(name, Integer, nullable=False, server_default=text("0"))


_NEVER_NEGATIVE = (*(f"count_{name}" for name in COUNTS), *METERS, "cost_pico")

usage_fact = Table(
    "usage_fact",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("traits", Integer, nullable=False),
    *_facts(),
    CheckConstraint(
        f"corrects IS NOT NULL OR ({' AND '.join(f'{name} >= 0' for name in _NEVER_NEGATIVE)})", name="not_negative"
    ),
    Index(None, "tenant_id", "admitted_at"),
    Index(
        None,
        "corrects",
        sqlite_where=text("corrects IS NOT NULL"),
        postgresql_where=text("corrects IS NOT NULL"),
    ),
    **STRICT,
    postgresql_partition_by="RANGE (id)",
)
"""Usage events as they are stored: narrow, since there are more of them than of all else. Read `usage_event` instead.

On PostgreSQL a partition holds the ids of one month (`billing.events.partitions`), so that the id stays the one key of
all. That a journal's sequence belongs to one request is not a key, which would cost each event as much again; the
audit checks it. Nor is the period in the index beside the key, which is a fifth of what an event costs: whoever asks
for a period says from when on its events were admitted (`billing.events.rollups.earliest`).
"""

usage_event = Table(
    "usage_event",
    MetaData(),
    Column("id", Id, primary_key=True),
    *_facts(),
    *(Column(name, Text, nullable=False) for name in DIMENSIONS),
)
"""The view of usage events with all that they say. PostgreSQL joins the traits only where a query names one."""

rollup_hour = Table(
    "rollup_hour",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("period", Text, primary_key=True),
    Column("hour", Count, primary_key=True, autoincrement=False),
    Column("project_id", Id, primary_key=True),
    Column("key_id", Id, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("lane", Text, primary_key=True),
    Column("price_version", Integer, primary_key=True, autoincrement=False),
    Column("context_from", Count, primary_key=True, autoincrement=False, server_default=text("0")),
    Column("requests", Count, nullable=False),
    *(Column(meter, Count, nullable=False) for meter in METERS),
    Column("cost_high", Count, nullable=False),
    Column("cost_low", Count, nullable=False),
    *(Column(name, Count, nullable=False, server_default=text("0")) for name in DRAFTS),
    **STRICT,
    postgresql_with={"fillfactor": 70},
)
"""What the events admitted in an hour add up to; `hour` is its first instant. The cost is `cost_high` × 10⁹ +
`cost_low`, sums of quotients and remainders that cannot overflow where a sum of costs could."""

ledger_txn = Table(
    "ledger_txn",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("kind", Text, nullable=False),
    Column("period", Text, nullable=False),
    Column("posted_at", Count, nullable=False),
    Column("memo", Text, nullable=False, server_default=text("''")),
    Index(None, "tenant_id", "posted_at"),
    **STRICT,
)

ledger_entry = Table(
    "ledger_entry",
    Base.metadata,
    Column("txn_id", Id, ForeignKey("ledger_txn.id"), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("tenant_id", Id, nullable=False),
    Column("currency", Text, nullable=False),
    Column("debit", Text, nullable=False),
    Column("credit", Text, nullable=False),
    Column("amount_pico", Pico, nullable=False),
    Column("grant_id", Id, nullable=True),
    CheckConstraint("amount_pico > 0", name="positive"),
    CheckConstraint("debit <> credit", name="two_accounts"),
    *(CheckConstraint(f"{side} IN ({ACCOUNTS})", name=side) for side in ("debit", "credit")),
    **STRICT,
)
"""Both sides of each entry in one row: a transaction that does not sum to zero in its currency cannot be written."""

refused_settlement = Table(
    "refused_settlement",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("request_id", Id, nullable=False, index=True),
    Column("cause", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("refused_at", Count, nullable=False),
    **STRICT,
)
"""Durable records that could not be settled, whole, with the cause: never dropped, and never in the way of others."""

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
