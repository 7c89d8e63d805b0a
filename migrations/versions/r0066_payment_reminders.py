"""Reminders of overdue invoices by e-mail, and which tenants want none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0066"
down_revision = "r0065"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
WAITING = "state IN ('queued', 'sending')"


def upgrade() -> None:
    op.create_table(
        "payment_reminder",
        *(sa.Column(name, ID, nullable=False) for name in ("id", "tenant_id", "invoice_id")),
        sa.Column("level", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("state", "recipient", "subject", "problem")),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_at", COUNT, nullable=False),
        sa.Column("sent_at", COUNT, nullable=True),
        *(sa.Column(name, COUNT, nullable=False) for name in ("created_at", "updated_at")),
        sa.CheckConstraint(
            "state IN ('queued', 'sending', 'sent', 'refused', 'unknown', 'canceled')",
            name=op.f("ck_payment_reminder_state"),
        ),
        sa.CheckConstraint("level >= 1", name=op.f("ck_payment_reminder_level")),
        sa.CheckConstraint("state <> 'sent' OR sent_at IS NOT NULL", name=op.f("ck_payment_reminder_sent")),
        sa.PrimaryKeyConstraint("id", name="pk_payment_reminder"),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoice.id"], name="fk_payment_reminder_invoice_id_invoice"),
        sa.UniqueConstraint("invoice_id", "level", name="uq_payment_reminder_invoice_id_level"),
        sqlite_strict=True,
    )
    op.create_index("ix_payment_reminder_tenant_id", "payment_reminder", ["tenant_id"])
    where = sa.text(WAITING)
    op.create_index(
        "ix_payment_reminder_waiting", "payment_reminder", ["due_at"], sqlite_where=where, postgresql_where=where
    )
    op.create_table(
        "reminder_policy",
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("enabled", sa.Integer(), nullable=False),
        sa.Column("updated_at", COUNT, nullable=False),
        sa.CheckConstraint("enabled IN (0, 1)", name=op.f("ck_reminder_policy_enabled")),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_reminder_policy"),
        sqlite_strict=True,
    )


def downgrade() -> None:
    op.drop_table("reminder_policy")
    op.drop_table("payment_reminder")
