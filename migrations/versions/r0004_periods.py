"""Billing periods that close, and the gateway epochs that they wait for."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "r0004"
down_revision = "r0003"
branch_labels = None
depends_on = None

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "billing_period",
        sa.Column("period", sa.Text(), nullable=False),
        sa.Column("starts_at", COUNT, nullable=False),
        sa.Column("ends_at", COUNT, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("closed_at", COUNT, nullable=True),
        sa.Column("root", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("period", name="pk_billing_period"),
        sa.CheckConstraint("state IN ('open', 'closing', 'closed')", name=op.f("ck_billing_period_state")),
        sa.CheckConstraint("(state = 'closed') = (closed_at IS NOT NULL)", name=op.f("ck_billing_period_closed_at")),
        sa.CheckConstraint("starts_at < ends_at", name=op.f("ck_billing_period_order")),
        sqlite_strict=True,
    )
    op.create_table(
        "gateway_epoch",
        sa.Column("epoch", sa.Text(), nullable=False),
        sa.Column("gateway", sa.Text(), nullable=False),
        *(sa.Column(name, COUNT, nullable=False) for name in ("started_at", "seen_at", "watermark")),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("epoch", name="pk_gateway_epoch"),
        sa.CheckConstraint("state IN ('live', 'ended', 'dead')", name=op.f("ck_gateway_epoch_state")),
        sqlite_strict=True,
    )
    _keep_closed()
    _carry_over()


def _keep_closed() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE TRIGGER closed BEFORE UPDATE OR DELETE ON billing_period FOR EACH ROW "
            "WHEN (OLD.state = 'closed') EXECUTE FUNCTION refuse_change()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER closed_billing_period_{verb.lower()} BEFORE {verb} ON billing_period "
            "WHEN OLD.state = 'closed' BEGIN SELECT RAISE(ABORT, 'a closed billing_period is immutable'); END"
        )


def _carry_over() -> None:
    """The months from the first request to the last; all are open, and close in their order."""
    bind = op.get_bind()
    first, last = bind.execute(
        sa.text(
            "SELECT min(period), max(period) FROM "
            "(SELECT period FROM hold UNION SELECT period FROM usage_event) AS periods WHERE period <> ''"
        )
    ).one()
    if first is None:
        return
    period = sa.table("billing_period", *map(sa.column, ("period", "starts_at", "ends_at", "state")))
    year, month = (int(part) for part in first.split("-"))
    while (name := f"{year:04d}-{month:02d}") <= last:
        start = datetime(year, month, 1, tzinfo=UTC)
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)
        ends = int(datetime(year, month, 1, tzinfo=UTC).timestamp()) * 1_000_000
        starts = int(start.timestamp()) * 1_000_000
        bind.execute(period.insert().values(period=name, starts_at=starts, ends_at=ends, state="open"))


def downgrade() -> None:
    raise RuntimeError("what was closed stays closed: restore a backup")
