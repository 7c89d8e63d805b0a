"""Leases know the one before them, and whether their writers have begun and paid; prefixes that operators share."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0033"
down_revision = "r0032"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("lease", sa.Column("base", ID, nullable=True))
    op.add_column("lease", sa.Column("told", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("lease", sa.Column("paid", sa.Integer(), nullable=False, server_default="0"))
    op.create_index("ix_lease_base", "lease", ["base"])
    op.execute("UPDATE lease SET told = billed, paid = billed")
    op.create_table(
        "shared_prefix",
        sa.Column("id", ID, nullable=False),
        sa.Column("reach", sa.Text(), nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("tokens", COUNT, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("shared_by", "reason")),
        sa.Column("shared_at", COUNT, nullable=False),
        sa.Column("ended_at", COUNT, nullable=True),
        *(sa.Column(name, sa.Text(), nullable=True) for name in ("ended_by", "end_reason")),
        sa.PrimaryKeyConstraint("id", name="pk_shared_prefix"),
        sqlite_strict=True,
    )


def downgrade() -> None:
    op.drop_table("shared_prefix")
    op.drop_index("ix_lease_base", "lease")
    for name in ("paid", "told", "base"):
        op.drop_column("lease", name)
