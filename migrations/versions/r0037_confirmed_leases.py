"""Leases know the one before them, and whether their writers have begun and paid."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0037"
down_revision = "r0036"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")


def upgrade() -> None:
    op.add_column("lease", sa.Column("base", ID, nullable=True))
    op.add_column("lease", sa.Column("told", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("lease", sa.Column("paid", sa.Integer(), nullable=False, server_default="0"))
    op.create_index("ix_lease_base", "lease", ["base"])
    op.execute("UPDATE lease SET told = billed, paid = billed")


def downgrade() -> None:
    op.drop_index("ix_lease_base", "lease")
    for name in ("paid", "told", "base"):
        op.drop_column("lease", name)
