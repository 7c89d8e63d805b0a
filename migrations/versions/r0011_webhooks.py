"""Webhooks: endpoints, deliveries, attempts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0011"
down_revision = "r0010"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "webhook_endpoint",
        *(sa.Column(name, ID, nullable=False) for name in ("id", "tenant_id")),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("url", "topics", "description", "state", "reason")),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("previous_secret", sa.LargeBinary(), nullable=True),
        sa.Column("previous_until", COUNT, nullable=True),
        sa.Column("created_at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_endpoint"),
        sa.CheckConstraint("state IN ('enabled', 'disabled', 'removed')", name=op.f("ck_webhook_endpoint_state")),
        sqlite_strict=True,
    )
    op.create_index("ix_webhook_endpoint_tenant_id", "webhook_endpoint", ["tenant_id"])
    op.create_table(
        "webhook_delivery",
        *(sa.Column(name, ID, nullable=False) for name in ("id", "tenant_id", "endpoint_id", "event_id")),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("topic", "body", "state")),
        sa.Column("attempts", sa.Integer(), nullable=False),
        *(sa.Column(name, COUNT, nullable=False) for name in ("created_at", "due_since", "next_at", "leased_until")),
        sa.Column("finished_at", COUNT, nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_delivery"),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["webhook_endpoint.id"], name="fk_webhook_delivery_endpoint_id_webhook_endpoint"
        ),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'failed')", name=op.f("ck_webhook_delivery_state")),
        sqlite_strict=True,
    )
    op.create_index(
        "ix_webhook_delivery_endpoint_id_event_id", "webhook_delivery", ["endpoint_id", "event_id"], unique=True
    )
    op.create_index("ix_webhook_delivery_tenant_id_id", "webhook_delivery", ["tenant_id", "id"])
    pending = sa.text("state = 'pending'")
    op.create_index(
        "ix_webhook_delivery_pending", "webhook_delivery", ["next_at"], sqlite_where=pending, postgresql_where=pending
    )
    op.create_table(
        "webhook_attempt",
        sa.Column("delivery_id", ID, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", COUNT, nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("milliseconds", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("delivery_id", "number", name="pk_webhook_attempt"),
        sa.ForeignKeyConstraint(
            ["delivery_id"], ["webhook_delivery.id"], name="fk_webhook_attempt_delivery_id_webhook_delivery"
        ),
        sqlite_strict=True,
    )


def downgrade() -> None:
    for table in ("webhook_attempt", "webhook_delivery", "webhook_endpoint"):
        op.drop_table(table)
