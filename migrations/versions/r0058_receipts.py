"""Receipts: the closed days of tenants' files, and which projects get receipts with every answer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0058"
down_revision = "r0057"
branch_labels = None
depends_on = None

STRICT = {"sqlite_strict": True}
_ID = sa.UUID().with_variant(sa.LargeBinary(16), "sqlite")
_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_PICO = sa.Numeric(38, 0).with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "receipt_day",
        sa.Column("tenant_id", _ID, nullable=False),
        sa.Column("day", sa.Text(), nullable=False),
        sa.Column("period", sa.Text(), nullable=False),
        sa.Column("link", _COUNT, nullable=False),
        sa.Column("pending_from", _COUNT, nullable=False),
        sa.Column("events", _COUNT, nullable=False),
        sa.Column("late", _COUNT, nullable=False),
        sa.Column("cost_pico", _PICO, nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("closed_at", _COUNT, nullable=False),
        sa.CheckConstraint("events >= late AND late >= 0", name=op.f("ck_receipt_day_events")),
        sa.CheckConstraint("link >= 0 AND pending_from > 0", name=op.f("ck_receipt_day_links")),
        sa.PrimaryKeyConstraint("tenant_id", "day", name=op.f("pk_receipt_day")),
        **STRICT,
    )
    op.create_index(op.f("ix_receipt_day_tenant_id_period"), "receipt_day", ["tenant_id", "period"])
    op.create_table(
        "receipt_policy",
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("tenant_id", _ID, nullable=False),
        sa.Column("always", sa.Integer(), nullable=False),
        sa.Column("changed_at", _COUNT, nullable=False),
        sa.CheckConstraint("always IN (0, 1)", name=op.f("ck_receipt_policy_always")),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_receipt_policy")),
        **STRICT,
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON receipt_day "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    else:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER immutable_receipt_day_{verb.lower()} BEFORE {verb} ON receipt_day "
                "BEGIN SELECT RAISE(ABORT, 'receipt_day is immutable'); END"
            )


def downgrade() -> None:
    op.drop_table("receipt_policy")
    op.drop_table("receipt_day")
