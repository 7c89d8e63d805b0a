"""Leases depend on ended ones before them in their chain until it is certain that those are paid for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0057"
down_revision = "r0056"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COLUMNS = (("lease", "unsettled_base"), ("ended_lease", "base"))


def upgrade() -> None:
    for table, column in COLUMNS:
        op.add_column(table, sa.Column(column, ID, nullable=True))
        there = sa.text(f"{column} IS NOT NULL")
        op.create_index(f"ix_{table}_{column}", table, [column], postgresql_where=there, sqlite_where=there)


def downgrade() -> None:
    for table, column in COLUMNS:
        op.drop_index(f"ix_{table}_{column}", table)
        op.drop_column(table, column)
