"""How requests were served, by hour; how often a lease that ended was read, and how many tokens it had for itself."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0044"
down_revision = "r0042"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KEYS = ("tenant_id", "hour", "project_id", "model", "lane", "measure", "bucket")


def upgrade() -> None:
    op.create_table(
        "service_hour",
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("hour", COUNT, nullable=False),
        sa.Column("project_id", ID, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("model", "lane", "measure")),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("requests", COUNT, nullable=False),
        sa.PrimaryKeyConstraint(*KEYS, name="pk_service_hour"),
        sqlite_strict=True,
    )
    op.create_index("ix_service_hour_hour", "service_hour", ["hour"])
    for name in ("reads", "new_tokens"):  # not known of those that ended before
        op.add_column("ended_lease", sa.Column(name, COUNT, nullable=True))


def downgrade() -> None:
    for name in ("reads", "new_tokens"):
        op.drop_column("ended_lease", name)
    op.drop_table("service_hour")
