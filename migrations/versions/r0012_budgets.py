"""Budgets, their windows, and which windows a settled request was counted in."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0012"
down_revision = "r0011"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
PICO = sa.Numeric(38, 0).with_variant(sa.Integer(), "sqlite")
TERMS = ("scope", "subject", "span")


def column(name: str, kind: sa.types.TypeEngine[Any] | type[sa.Text], *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def _terms() -> list[sa.Column[Any]]:
    return [
        *(column(name, ID) for name in ("budget_id", "tenant_id")),
        *(column(name, sa.Text) for name in TERMS),
        column("limit_pico", PICO),
        column("action", sa.Text),
        column("thresholds", sa.Text),
    ]


def upgrade() -> None:
    op.create_table(
        "budget",
        *_terms(),
        column("removed_at", COUNT, null=True),
        sa.PrimaryKeyConstraint("budget_id", name="pk_budget"),
        sa.CheckConstraint("limit_pico >= 0", name=op.f("ck_budget_not_negative")),
        sa.UniqueConstraint("tenant_id", *TERMS, name="uq_budget_tenant_id_scope_subject_span"),
        sqlite_strict=True,
    )
    op.create_table(
        "budget_window",
        column("id", ID),
        *_terms(),
        column("starts_at", COUNT),
        *(column(name, PICO) for name in ("held", "spent", "over")),
        column("told", COUNT),
        sa.PrimaryKeyConstraint("id", name="pk_budget_window"),
        sa.CheckConstraint(
            "action <> 'block' OR spent + held <= limit_pico + over", name=op.f("ck_budget_window_covered")
        ),
        *(
            sa.CheckConstraint(f"{name} >= 0", name=op.f(f"ck_budget_window_{name}_not_negative"))
            for name in ("held", "over")
        ),
        sa.UniqueConstraint("budget_id", "starts_at", name="uq_budget_window_budget_id_starts_at"),
        sqlite_strict=True,
    )
    op.create_table(
        "budget_charge",
        *(column(name, ID) for name in ("request_id", "tenant_id")),
        column("budgets", sa.Text),
        sa.PrimaryKeyConstraint("request_id", name="pk_budget_charge"),
        sqlite_strict=True,
    )


def downgrade() -> None:
    for table in ("budget_charge", "budget_window", "budget"):
        op.drop_table(table)
