"""The context tier that priced a request becomes part of its event, and a key of the rollups.

What was there was priced from 0 on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0003"
down_revision = "r0002"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

CLASSES = ("5m", "30m", "1h", "12h", "24h")
METERS = ("uncached", "read_automatic", *(f"read_{c}" for c in CLASSES), *(f"write_{c}" for c in CLASSES), "output")
KEYS = ("tenant_id", "period", "hour", "project_id", "key_id", "model", "lane", "price_version")
SUMS = ("requests", *METERS, "cost_high", "cost_low")


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    kind = "BIGINT" if postgres else "INTEGER"
    op.execute(
        f"ALTER TABLE usage_event ADD COLUMN context_from {kind} DEFAULT 0 NOT NULL "
        "CONSTRAINT ck_usage_event_context_from CHECK (context_from >= 0)"
    )
    if postgres:
        op.execute("ALTER TABLE rollup_hour ADD COLUMN context_from BIGINT DEFAULT 0 NOT NULL")
        op.drop_constraint("pk_rollup_hour", "rollup_hour")
        op.create_primary_key("pk_rollup_hour", "rollup_hour", [*KEYS, "context_from"])
        return
    op.rename_table("rollup_hour", "rollup_hour_before")
    op.create_table(
        "rollup_hour",
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("period", sa.Text, nullable=False),
        sa.Column("hour", COUNT, autoincrement=False, nullable=False),
        *(sa.Column(name, ID, nullable=False) for name in ("project_id", "key_id")),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("model", "lane")),
        sa.Column("price_version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("context_from", COUNT, autoincrement=False, nullable=False, server_default=sa.text("0")),
        *(sa.Column(name, COUNT, nullable=False) for name in SUMS),
        sa.PrimaryKeyConstraint(*KEYS, "context_from", name="pk_rollup_hour"),
        sqlite_strict=True,
    )
    names = ", ".join((*KEYS, *SUMS))
    op.execute(f"INSERT INTO rollup_hour ({names}) SELECT {names} FROM rollup_hour_before")  # noqa: S608  # of columns
    op.drop_table("rollup_hour_before")


def downgrade() -> None:
    raise RuntimeError("prices by context tier cannot be said in the earlier schema: restore a backup")
